"""Places of records in a file: one behind the other, as in a log.

Records leave memory in no order. To write each where another one was read takes a system call for each, and
some 3 microseconds in it; one behind the other they take a call for all. So places that become free are not
used one by one. The file has *segments*, and a segment is used again when all of its places are free. If
there is none, the one with the fewest records is cleaned: these are read and written behind the others
(Rosenblum and Ousterhout, "The design and implementation of a log-structured file system", 1992).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROOM = 2  # the file has about so many places for each record. Segments are cleaned before it gets more.
_LEAST_SEGMENTS = 4

Places = NDArray[np.int32]


class Log:
    """Places of a file, by segments."""

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self._live = np.zeros(_LEAST_SEGMENTS, np.int32)  # records of each segment
        self._segments = 0  # that have been used
        self._empty: list[int] = []  # among them
        self._open = -1  # the segment that is being filled
        self._filled = segment
        self._records = 0

    @property
    def size(self) -> int:
        """How many places the file has, used or not."""
        return self._segments * self.segment

    @property
    def _room(self) -> int:
        """How many places can be taken without a further segment."""
        return self.segment - self._filled + len(self._empty) * self.segment

    def size_with(self, count: int) -> int:
        """Return how many places the file may have once so many more are taken."""
        return self.size + max(0, -(-(count - self._room) // self.segment)) * self.segment

    def to_clean(self, count: int) -> int | None:
        """Return a segment to clean before so many places are taken; ``None`` if there is room."""
        most = max(_LEAST_SEGMENTS, -(-_ROOM * (self._records + count) // self.segment))
        if self._room >= count or self._segments < most:
            return None
        live = self._live[: self._segments].copy()
        live[[self._open, *self._empty]] = self.segment
        found = int(live.argmin())
        return found if live[found] < self.segment else None

    def places_of(self, segment: int) -> Places:
        """Return all places of a segment."""
        return np.arange(segment * self.segment, (segment + 1) * self.segment, dtype=np.int32)

    def free(self, places: Places) -> None:
        """Have no record at places, of which each had one."""
        segments, counts = np.unique(places // self.segment, return_counts=True)
        self._live[segments] -= counts.astype(np.int32)
        self._records -= len(places)
        self._empty += [int(n) for n in segments[self._live[segments] == 0] if n != self._open]

    def take(self, count: int) -> Places:
        """Return places for records, which lie side by side but for ends of segments."""
        parts = []
        self._records += count
        while count:
            if self._filled == self.segment:
                self._begin()
            own = min(count, self.segment - self._filled)
            first = self._open * self.segment + self._filled
            parts.append(np.arange(first, first + own, dtype=np.int32))
            self._live[self._open] += own
            self._filled += own
            count -= own
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def _begin(self) -> None:
        """Fill another segment."""
        if self._open >= 0 and not self._live[self._open]:
            self._empty.append(self._open)
        if self._empty:
            self._open = self._empty.pop()
        else:
            self._open, self._segments = self._segments, self._segments + 1
            if self._segments > len(self._live):
                self._live = np.concatenate([self._live, np.zeros_like(self._live)])
        self._filled = 0
