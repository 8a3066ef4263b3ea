"""A log that strangers cannot fill."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_MOST_KINDS = 256


class Sparing(logging.Filter):
    """Lets few records of a kind pass in a period; the next period's first says how many were left out.

    Records are of a kind if they come from one line of a program.
    """

    def __init__(
        self, most: int = 10, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._most, self._seconds, self._clock = most, seconds, clock
        self._kinds: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        kind, now = (record.pathname, record.lineno), self._clock()
        since, count = self._kinds.get(kind, (now, 0))
        if now - since >= self._seconds:
            if count > self._most:
                record.msg = f"{record.getMessage()} (and {count - self._most} more in {now - since:.0f} s)"
                record.args = ()
            since, count = now, 0
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = since, count + 1
        return count < self._most
