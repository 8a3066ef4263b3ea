"""Times without a zone: what the clock of a zone shows, and the instants at which it does.

Arrow's clocks, and those of pandas 2, have no summer time after 2037, where files of zones end with a rule in
place of a list. Python's zoneinfo follows the rule, as Java does, and says what a clock shows. Arrow says
which instant a clock meant: such times come from pandas, by ``toPandas()`` and in UDFs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import TypeVar
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.exceptions import DataError
from sparkdl.wire.frame import Array

T = TypeVar("T")

UTC = "UTC"
_SAME = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "UCT", "Zulu", "Z", "")
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone(timedelta()))
_PERIOD = 146_097
"""Days of 400 years: the rules of clocks are the same a period later, once they have no exceptions."""
_FIRST, _LAST = ((day - date(1970, 1, 1)).days for day in (date(1, 1, 3), date(2800, 1, 1)))
"""The first day that Python can ask for, and the first one for which a day of a period earlier is asked."""
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d\d))?")


def zone_named(name: str) -> str:
    """Return a zone of Java by a name that Arrow has as well, such as ``+02:00`` for ``GMT+2``."""
    found = _OFFSET.fullmatch(name)
    if found is None:
        return UTC if name in _SAME else name
    sign, hours, minutes = found.groups()
    offset = f"{sign}{int(hours):02}:{minutes or '00'}"
    return UTC if offset[1:] == "00:00" else offset


def localized(name: str, times: pa.Array, zone: str) -> pa.Array:
    """Return instants: those with a zone as they are, others as the zone's clock shows them.

    Of two instants at which it shows the same the first is taken, and a time that it skips is as far behind
    the last one before: as Java does. Raises DataError if Arrow does not know the zone.
    """
    if times.type.tz is not None or zone == UTC:
        return times
    if _OFFSET.fullmatch(zone):  # Arrow 15 knows no such name
        count, values = _UNITS[times.type.unit], times.cast(pa.int64())
        ahead = _offset(_zone(zone), 0) * count
        return pc.subtract(values, ahead).cast(pa.timestamp(times.type.unit, UTC))
    # With "earliest" a skipped time becomes the last one before it, in the clock of before.
    instants = _known(
        name, zone, lambda: pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="earliest")
    )
    missing = pc.subtract(times.cast(pa.int64()), pc.local_timestamp(instants).cast(pa.int64()))
    return pc.add(instants.cast(pa.int64()), missing).cast(pa.timestamp(times.type.unit, UTC))


def local(name: str, times: pa.Array, zone: str) -> pa.Array:
    """Return what the clock of a zone shows: times without a zone as they are; errors as above."""
    if times.type.tz is None:
        return times
    count, values = _UNITS[times.type.unit], times.cast(pa.int64())
    offsets = _known(name, zone, lambda: _offsets(pc.fill_null(values, 0).to_numpy() // count, _zone(zone)))
    return pc.add(values, pa.array(offsets * count)).cast(pa.timestamp(times.type.unit))


def _zone(name: str) -> tzinfo:
    found = _OFFSET.fullmatch(name)
    if found is None:
        return timezone(timedelta()) if name == UTC else ZoneInfo(name)
    sign, hours, minutes = found.groups()
    ahead = timedelta(hours=int(hours), minutes=int(minutes or 0))
    return timezone(-ahead if sign == "-" else ahead)


def _offsets(seconds: Array, zone: tzinfo) -> Array:
    """Return how many seconds a zone's clock is ahead of UTC; most days have one offset."""
    days, at = np.unique(seconds // _DAY, return_inverse=True)
    late = _LAST - _PERIOD + (days - _LAST) % _PERIOD
    asked = np.where(days < _LAST, np.maximum(days, _FIRST), late)
    ends = np.array([_of_day(zone, day) for day in asked.tolist()], np.int64).reshape(-1, 2)
    found: Array = ends[at, 0]
    changing = np.flatnonzero((ends[:, 0] != ends[:, 1])[at])
    moments = asked[at[changing]] * _DAY + seconds[changing] % _DAY
    found[changing] = [_offset(zone, moment) for moment in moments.tolist()]
    return found


@lru_cache(1 << 16)
def _of_day(zone: tzinfo, day: int) -> tuple[int, int]:
    """Return the offsets in the first and in the last second of a day."""
    return _offset(zone, day * _DAY), _offset(zone, day * _DAY + _DAY - 1)


def _offset(zone: tzinfo, second: int) -> int:
    ahead = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    return int((ahead or timedelta()).total_seconds())


def _known(name: str, zone: str, run: Callable[[], T]) -> T:
    try:
        return run()
    except (pa.ArrowInvalid, KeyError, ValueError, OSError) as error:
        raise DataError(
            f"column {name!r}: its times follow the clock of {zone!r}, the session's zone in the fit, which "
            f"this machine does not know ({error!s:.100}): install its time zone data (tzdata), or pass "
            "instants in UTC",
            code="data-type",
        ) from error
