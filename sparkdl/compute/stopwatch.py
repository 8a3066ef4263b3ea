"""The place of a task, and the seconds of its phases."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

_HOST = socket.gethostname()
ROW_UPDATE = "row_update"
"""Phase of a task in which owners have updated rows of embedding variables, beside the update of weights."""


class Stopwatch:
    """Times the phases of a task; ``file_bytes`` are those of a table's files that were read."""

    def __init__(self) -> None:
        self.started = time.time()
        self._begin = self._last = time.perf_counter()
        self.laps: dict[str, float] = {}
        self.file_bytes = 0

    def lap(self, phase: str) -> float:
        """Charge the time since the last lap to a phase, and return it."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        self.laps[phase] = self.laps.get(phase, 0.0) + seconds
        return seconds

    def add(self, phase: str, seconds: float) -> None:
        """Charge seconds for which this task has waited right before it began."""
        self.started, self._begin = self.started - seconds, self._begin - seconds
        self.laps[phase] = self.laps.get(phase, 0.0) + seconds

    def total(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._begin

    def facts(self) -> dict[str, Any]:
        """Return place, start, length, phases and bytes read of the task so far."""
        return {
            "host": _HOST,
            "pid": os.getpid(),
            "start": self.started,
            "seconds": self.total(),
            "phases": dict(self.laps),
            "file_bytes": self.file_bytes,
        }
