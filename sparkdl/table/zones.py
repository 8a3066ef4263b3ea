"""Times without a zone: what the clock of a zone shows, and the instants at which it does."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.exceptions import DataError

UTC = "UTC"
_SAME = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "UCT", "Zulu", "Z", "")
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
    the last one before: as Java does.

    Raises:
        DataError: naming the column, if Arrow does not know the zone.
    """
    if times.type.tz is not None or zone == UTC:
        return times
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
    there = times.cast(pa.timestamp(times.type.unit, zone))  # the instants are in UTC, whatever zone it names
    return _known(name, zone, lambda: pc.local_timestamp(there))


def _known(name: str, zone: str, run: Callable[[], pa.Array]) -> pa.Array:
    try:
        return run()
    except pa.ArrowInvalid as error:
        raise DataError(
            f"column {name!r}: its times follow the clock of {zone!r}, the session's zone in the fit, which "
            f"this machine does not know ({error!s:.100}): install its time zone data (tzdata), or pass "
            "instants in UTC",
            code="data-type",
        ) from error
