"""The steps of a series: their numbers, and the times of steps to come."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from sparkdl.exceptions import ConfigError
from sparkdl.wire.frame import Array

_SECOND = 1_000_000  # times are microseconds since 1970
_FIXED = {
    "s": _SECOND,
    "min": 60 * _SECOND,
    "h": 3600 * _SECOND,
    "D": 86400 * _SECOND,
    "W": 7 * 86400 * _SECOND,
}
_MONTHS = {"M": 1, "Q": 3, "Y": 12}
_SEASONS = {"s": 60, "min": 60, "h": 24, "D": 7, "W": 52, "M": 12, "Q": 4, "Y": 1, "": 1}
_PATTERN = re.compile(r"([1-9]\d*)?(s|min|h|D|W|M|Q|Y)?")


@dataclass(frozen=True, slots=True)
class Frequency:
    """How far apart the steps of a series are.

    A time belongs to the nearest step, counted from the series' first time; in months, quarters and years to
    the one that its calendar month is in. Days and what is longer are counted on the calendar: times are
    those of a clock on the wall there.
    """

    every: int = 1  # so many units
    # ``s``, ``min``, ``h``, ``D``, ``W``, ``M``, ``Q``, ``Y``, or empty for times that are integers
    unit: str = ""

    @classmethod
    def of(cls, text: str) -> Frequency:
        """Read a frequency such as ``"D"``, ``"15min"``, ``"M"``, or ``"1"`` for integers."""
        found = _PATTERN.fullmatch(text) if isinstance(text, str) and text else None
        if found is None:
            raise ConfigError(
                f"frequency={text!r}: expected a number of s, min, h, D, W, M, Q or Y, such as 'D' or "
                "'15min'; for times that are integers their distance, such as '1'"
            )
        return cls(int(found[1] or 1), found[2] or "")

    def __str__(self) -> str:
        return f"{self.every}{self.unit}"

    @property
    def season(self) -> int:
        """Usual number of steps of a season: a day of hours, a week of days, a year of weeks or months.

        It is 1 where no whole number of steps makes a season.
        """
        steps, rest = divmod(_SEASONS[self.unit], self.every)
        return 1 if rest else steps

    def steps(self, times: Array) -> Array:
        """Return each time's step number, 0 for the first; int64 microseconds, or integers without a unit."""
        if self.unit in _MONTHS:
            months = _month(times)
            found: Array = (months - months[0]) // (self.every * _MONTHS[self.unit])
            return found
        size = self.every * _FIXED.get(self.unit, 1)
        nearest: Array = (times - times[0] + size // 2) // size
        return nearest

    @property
    def on_calendar(self) -> bool:
        """Whether steps are days or longer, which a zone's clock decides on."""
        return self.unit in ("D", "W", *_MONTHS)

    @property
    def whole_days(self) -> bool:
        """Whether dates can tell all steps apart."""
        return self.on_calendar or self.every * _FIXED.get(self.unit, 1) % _FIXED["D"] == 0

    def day(self, times: Array) -> int:
        """Return the day of the month that a series is on; months that are shorter have it on their last day.

        It is the day that most times are on. Of several it is the latest one: 31, the end of each month, if
        all times are the last day of their month. Where no day is that of most, the last time decides.
        """
        if self.unit not in _MONTHS:
            return 1
        month = _month(times)
        days = (times - _start(month)) // _FIXED["D"] + 1
        lengths = (_start(month + 1) - _start(month)) // _FIXED["D"]
        pairs, counts = np.unique(np.stack([days, lengths]), axis=1, return_counts=True)
        every = np.arange(1, 32)
        votes = 2 * ((np.minimum(every[:, None], pairs[1]) == pairs[0]) * counts).sum(1)
        votes += np.minimum(every, lengths[-1]) == days[-1]
        return int(every[votes == votes.max()][-1])

    def on_usual_clock(self, times: Array) -> Array:
        """Return times, of which one that leaves the time of day of most, more than half, is put back to it.

        A clock that is put forward shows the time that it skips as a later one, and midnights go on as such
        the day after. What comes after such a time may have a time of day of its own, and stays as it is; so
        do all times where steps are shorter than days, or no time of day is that of most.
        """
        if not self.on_calendar:
            return times
        day = _FIXED["D"]
        found, counts = np.unique(times % day, return_counts=True)
        if 2 * counts.max() <= len(times):
            return times
        ahead = (found[counts.argmax()] - times) % day
        usual: Array = times + np.where(ahead > day // 2, ahead - day, ahead)
        usual[1:] = np.where(ahead[:-1] == 0, usual[1:], times[1:])
        return usual

    def after(self, last: int, steps: Array, day: int) -> Array:
        """Return the times so many steps after a time of a series on a day of the month, see :meth:`day`."""
        if self.unit not in _MONTHS:
            return last + steps.astype(np.int64) * self.every * _FIXED.get(self.unit, 1)
        time = np.array([last], np.int64)
        months = _month(time) + steps.astype(np.int64) * self.every * _MONTHS[self.unit]
        starts = _start(months)
        lengths = (_start(months + 1) - starts) // _FIXED["D"]
        shifted: Array = starts + (np.minimum(day, lengths) - 1) * _FIXED["D"] + time % _FIXED["D"]
        return shifted


def _month(times: Array) -> Array:
    """Return the months since 1970 of microseconds."""
    return times.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)


def _start(months: Array) -> Array:
    """Return the microseconds at which months begin."""
    return months.astype("datetime64[M]").astype("datetime64[us]").astype(np.int64)
