"""An index from ids to entries, in few bytes for each id: the ids themselves are elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from sparkdl.keyed.mix import Ids, mix
from sparkdl.wire.frame import Array

_LEAST = 64
_FULL, _RENEWED = 0.75, 0.6
_CELL = 5
_MISSING = -1

Numbers = NDArray[np.int64]


class CompactIndex:
    """A hash table with linear probing, of numbers and a byte of each id's hash.

    An id is compared with that of an entry only if the bytes are equal, and an entry that is not in memory is
    read for that: once for an id that is there, and seldom for one that is not.
    """

    def __init__(self) -> None:
        self._size = 0
        self._clear(_LEAST)

    def _clear(self, cells: int) -> None:
        self._numbers = np.zeros(cells, np.uint32)  # 1 + a number, or 0
        self._marks = np.zeros(cells, np.uint8)

    @staticmethod
    def bytes_for(ids: int) -> int:
        """Return what so many ids take, at most."""
        return int(ids / _RENEWED * _CELL)

    def find(self, ids: Ids, ids_at: Callable[[Numbers], Ids]) -> Numbers:
        """Return each id's number, -1 if it is not there; ``ids_at`` may be asked for a number twice."""
        return self.search(ids, lambda numbers, which: ids_at(numbers) == ids[which])

    def search(self, ids: Ids, is_same: Callable[[Numbers, Numbers], NDArray[np.bool_]]) -> Numbers:
        """Return the number of each id; -1 for those that are not there.

        ``is_same`` returns whether entries with some numbers are those of ids, given by their places in
        ``ids``. It is asked for many at once: for each id the first entry with the same byte, and if that is
        another one, the next.
        """
        found = np.full(len(ids), _MISSING, np.int64)
        places, marks = self._first(ids)
        left = np.arange(len(ids))
        while len(left):
            left, places, numbers = self._alike(left, places, marks)
            same = is_same(numbers, left)
            found[left[same]] = numbers[same]
            left, places = left[~same], self._next(places[~same])
        return found

    def _alike(
        self, left: Numbers, places: Numbers, marks: NDArray[np.uint8]
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Go on to the next entry with each id's byte; return ids that have one, its place, its number."""
        alike: list[tuple[Numbers, ...]] = [(left[:0], places[:0], left[:0])]
        while len(left):
            numbers = self._numbers[places]
            same = (self._marks[places] == marks[left]) & (numbers != 0)
            alike.append((left[same], places[same], numbers[same].astype(np.int64) - 1))
            other = ~same & (numbers != 0)
            left, places = left[other], self._next(places[other])
        ids, where, which = (np.concatenate(parts) for parts in zip(*alike, strict=True))
        return ids, where, which

    def add(self, numbers: Numbers, ids: Ids, all_ids: Callable[[], Iterable[Ids]]) -> None:
        """Find places for entries that are not there yet, whose numbers follow.

        ``all_ids`` returns the ids of all entries, these among them, in the order of their numbers.
        """
        self._size += len(numbers)
        if self._size > _FULL * len(self._numbers):
            self.renew(self._size, all_ids())
        else:
            self._place(numbers, ids)

    def renew(self, size: int, all_ids: Iterable[Ids]) -> None:
        """Have the ids of so many entries, in the order of their numbers."""
        self._size = size
        self._clear(0)  # the old ones go before the new ones come
        self._clear(max(_LEAST, int(size / _RENEWED)))
        first = 0
        for ids in all_ids:
            self._place(np.arange(first, first + len(ids)), ids)
            first += len(ids)

    def _first(self, ids: Ids) -> tuple[Numbers, NDArray[np.uint8]]:
        """Return the first place of each id, and its byte."""
        mixed = mix(ids.view(np.uint64))
        low = mixed & np.uint64(0xFFFFFFFF)
        places = ((low * np.uint64(len(self._numbers))) >> np.uint64(32)).astype(np.int64)
        return places, (mixed >> np.uint64(56)).astype(np.uint8)

    def _next(self, places: Numbers) -> Numbers:
        places = places + 1
        places[places == len(self._numbers)] = 0
        return places

    def _place(self, numbers: Numbers, ids: Ids) -> None:
        places, marks = self._first(ids)
        values: Array = self._numbers
        own = (numbers + 1).astype(values.dtype)
        while len(own):
            free = values[places] == 0
            values[places[free]] = own[free]  # of several for one place, the last one gets it
            lost = values[places] != own
            self._marks[places[~lost]] = marks[~lost]
            own, marks, places = own[lost], marks[lost], self._next(places[lost])
