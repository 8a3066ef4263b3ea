"""Numbers for ids: 0 for the first id that was added, 1 for the next, and so on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparkdl.keyed.mix import Ids, mix

_LEAST = 64
_EMPTY = -1


class Slots:
    """A hash table with linear probing, searched and filled for many ids at a time."""

    def __init__(self) -> None:
        self._ids: Ids = np.empty(_LEAST, np.int64)
        self._size = 0
        self._places = np.full(2 * _LEAST, _EMPTY, np.int64)

    def __len__(self) -> int:
        return self._size

    @property
    def ids(self) -> Ids:
        """The ids, in the order of their numbers."""
        return self._ids[: self._size]

    def find(self, ids: Ids) -> NDArray[np.int64]:
        """Return the number of each id; -1 for those that are not there."""
        mask = len(self._places) - 1
        found = np.full(len(ids), _EMPTY, np.int64)
        places = self._first_places(ids)
        left = np.arange(len(ids))
        while len(left):
            numbers = self._places[places]
            there = numbers != _EMPTY
            left, places, numbers = left[there], places[there], numbers[there]
            same = self._ids[numbers] == ids[left]
            found[left[same]] = numbers[same]
            left, places = left[~same], (places[~same] + 1) & mask
        return found

    def add(self, ids: Ids) -> NDArray[np.int64]:
        """Number ids that are not there yet, each given once; return their numbers."""
        first, self._size = self._size, self._size + len(ids)
        if self._size > len(self._ids):
            grown = np.empty(max(self._size, 2 * len(self._ids)), np.int64)
            grown[:first] = self._ids[:first]
            self._ids = grown
        self._ids[first : self._size] = ids
        numbers = np.arange(first, self._size)
        if 2 * self._size > len(self._places):
            self._places = np.full(1 << (4 * self._size - 1).bit_length(), _EMPTY, np.int64)
            self._place(np.arange(self._size))
        else:
            self._place(numbers)
        return numbers

    def _first_places(self, ids: Ids) -> NDArray[np.int64]:
        return (mix(ids.view(np.uint64)) & np.uint64(len(self._places) - 1)).astype(np.int64)

    def _place(self, numbers: NDArray[np.int64]) -> None:
        mask = len(self._places) - 1
        places = self._first_places(self._ids[numbers])
        while len(numbers):
            free = self._places[places] == _EMPTY
            self._places[places[free]] = numbers[free]  # of several for one place, the last one gets it
            lost = self._places[places] != numbers
            numbers, places = numbers[lost], (places[lost] + 1) & mask
