"""The times of a series' steps: those of its rows, and of steps that have none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl.series.frequency import Frequency
from sparkdl.wire.frame import Array

NO_INSTANT = int(np.iinfo(np.int64).min)
"""Instead of the instant of a step that has no row."""


@dataclass(frozen=True, slots=True)
class Dates:
    """When the steps of a series are."""

    frequency: Frequency  # distance of the steps
    day: int  # of the month, see :meth:`sparkdl.series.frequency.Frequency.day`
    clock: Array  # time of each step up to that of the last row, int64
    last: int  # what the times after the last row are counted from
    # where the clock is that of a time zone, microseconds since 1970 in UTC of each step's row, and
    # ``NO_INSTANT`` where it has none: an hour that a clock repeats is two instants
    instants: Array | None = None

    @classmethod
    def of_rows(cls, frequency: Frequency, steps: Array, times: Array, instants: Array | None) -> Dates:
        """Return the times of all steps; those without a row are on the usual clock."""
        count, day = int(steps[-1]) + 1, frequency.day(times)
        clock, usual = np.empty(count, np.int64), frequency.on_usual_clock(times)
        for before in np.flatnonzero(np.diff(steps) > 1).tolist():
            gap = np.arange(steps[before] + 1, steps[before + 1])
            clock[gap] = frequency.after(int(usual[before]), gap - steps[before], day)
        clock[steps] = times
        if instants is None:
            return cls(frequency, day, clock, int(usual[-1]))
        known = np.full(count, NO_INSTANT)
        known[steps] = instants
        return cls(frequency, day, clock, int(usual[-1]), known)

    def between(self, start: int, stop: int) -> tuple[Array, Array | None]:
        """Return clock and instants of some steps; those after the last row follow it."""
        ahead = np.arange(1, max(0, stop - len(self.clock)) + 1)
        after = self.frequency.after(self.last, ahead, self.day)
        clock = np.concatenate([self.clock, after])[start:stop]
        if self.instants is None:
            return clock, None
        return clock, np.concatenate([self.instants, np.full(len(ahead), NO_INSTANT)])[start:stop]
