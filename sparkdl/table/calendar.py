"""Parts of dates, as Spark and an exported graph count them."""

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
    if part == "weekday":
        return (days + 3) % 7
    return days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12
