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
    the one that its calendar month is in.

    Attributes:
        every: so many units.
        unit: ``s``, ``min``, ``h``, ``D``, ``W``, ``M``, ``Q``, ``Y``, or empty for times that are integers.
    """

    every: int = 1
    unit: str = ""

    @classmethod
    def of(cls, text: str) -> Frequency:
        """Read a frequency such as ``"D"``, ``"15min"``, ``"M"``, or ``"1"`` for integers.

        Raises:
            ConfigError: if it is none.
        """
        found = _PATTERN.fullmatch(text) if isinstance(text, str) and text else None
        if found is None:
            raise ConfigError(
                f"frequency={text!r}: expected a number of s, min, h, D, W, M, Q or Y, such as 'D' or "
                "'15min'; for times that are integers their distance, such as '1'"
            )
        return cls(int(found[1] or 1), found[2] or "")

    @property
    def season(self) -> int:
        """Usual number of steps of a season: a day of hours, a week of days, a year of weeks or months."""
        return max(1, _SEASONS[self.unit] // self.every)

    def steps(self, times: Array) -> Array:
        """Return the number of each time's step; that of the first time is 0.

        Args:
            times: int64: microseconds since 1970, or integers where there is no unit.
        """
        if self.unit in _MONTHS:
            months = _month(times)
            found: Array = (months - months[0]) // (self.every * _MONTHS[self.unit])
            return found
        size = self.every * _FIXED.get(self.unit, 1)
        nearest: Array = (times - times[0] + size // 2) // size
        return nearest

    def after(self, last: int, steps: Array) -> Array:
        """Return the times so many steps after a time.

        Months keep the day, and the last day of a month stays the last one.
        """
        if self.unit not in _MONTHS:
            found: Array = last + steps.astype(np.int64) * self.every * _FIXED.get(self.unit, 1)
            return found
        time = np.array([last], np.int64)
        month = _month(time)[0]
        start = _start(time - time + month)[0]
        day = (last - start) // _FIXED["D"]
        months = month + steps.astype(np.int64) * self.every * _MONTHS[self.unit]
        starts, days = _start(months), (_start(months + 1) - _start(months)) // _FIXED["D"]
        is_last = day == (_start(_month(time) + 1)[0] - start) // _FIXED["D"] - 1
        kept = days - 1 if is_last else np.minimum(day, days - 1)
        shifted: Array = starts + kept * _FIXED["D"] + (last - start) % _FIXED["D"]
        return shifted


def _month(times: Array) -> Array:
    """Return the months since 1970 of microseconds."""
    months: Array = times.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
    return months


def _start(months: Array) -> Array:
    """Return the microseconds at which months begin."""
    times: Array = months.astype("datetime64[M]").astype("datetime64[us]").astype(np.int64)
    return times
