"""A log that strangers cannot fill."""

from __future__ import annotations

import logging
import time

_MOST = 10
_SECONDS = 60
_MOST_KINDS = 256


class Sparing(logging.Filter):
    """Lets few records of a kind pass in a period; the next period's first says how many were left out.

    Records are of a kind if they come from one line of a program.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        kind, now = (record.pathname, record.lineno), time.monotonic()
        since, count = self._kinds.get(kind, (now, 0))
        if now - since >= _SECONDS:
            if count > _MOST:
                record.msg = f"{record.getMessage()} (and {count - _MOST} more in {now - since:.0f} s)"
                record.args = ()
            since, count = now, 0
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = since, count + 1
        return count < _MOST
