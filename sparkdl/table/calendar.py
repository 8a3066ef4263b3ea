"""Parts of dates by arithmetic alone, so that Spark, numpy and ONNX count alike."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from sparkdl.wire.frame import Array

Part = Literal["weekday", "month", "hour"]
PARTS: tuple[Part, ...] = get_args(Part)
_DAY = 86400.0

VALUES: dict[Part, tuple[str, ...]] = {
    "weekday": ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    "month": ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    "hour": tuple(str(hour) for hour in range(24)),
}
"""What each part can be, in order."""


def part_of(values: Array, part: Part, are_days: bool) -> Array:
    """Return a part of dates or timestamps, from 0: weekday (Monday is 0), month (January is 0) or hour.

    ``values`` are days, or seconds in UTC, since 1970-01-01; no NaN.
    """
    if part == "hour":
        hours: Array = np.floor(np.mod(values, _DAY) / 3600).astype(np.int64)
        return np.minimum(hours, 23)
    days = np.floor(values if are_days else values / _DAY).astype(np.int64)
    return (days + 3) % 7 if part == "weekday" else month_of(days)


def month_of(days: Array) -> Array:
    """Return the month, from 0, of days since 1970-01-01.

    In years that begin in March, months follow a period of 153 days for each five, whatever the leap years.
    """
    day_of_era = (days + 719468) % 146097  # an era has 400 years
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month: Array = ((5 * day_of_year + 2) // 153 + 2) % 12
    return month
