"""Numbers for ids: 0 for the first id that was added, 1 for the next, and so on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparkdl.keyed.columns import BLOCK
from sparkdl.keyed.mix import Ids, mix
from sparkdl.wire.arrays import InMemory
from sparkdl.wire.frame import Array

_LEAST = 64
_MISSING = -1
_MOST_SHORT = np.iinfo(np.int32).max


class SlotTable:
    """A hash table with linear probing, searched and filled for many ids at a time."""

    def __init__(self) -> None:
        self._ids = InMemory(np.int64)
        self._size = 0
        self._places = self._empty(2 * _LEAST)  # each with 1 + a number, or 0

    def _empty(self, size: int) -> Array:
        self._mask = size - 1
        return np.zeros(size, np.int32 if size < _MOST_SHORT else np.int64)

    def __len__(self) -> int:
        return self._size

    @property
    def ids(self) -> Ids:
        """The ids, in the order of their numbers."""
        return self._ids.values[: self._size]

    def find(self, ids: Ids) -> NDArray[np.int64]:
        """Return the number of each id; -1 for those that are not there."""
        found = np.full(len(ids), _MISSING, np.int64)
        places = self._first_places(ids)
        left = np.arange(len(ids))
        while len(left):
            numbers = self._places[places]
            there = numbers != 0
            left, places, numbers = left[there], places[there], numbers[there] - 1
            same = self._ids.values[numbers] == ids[left]
            found[left[same]] = numbers[same]
            left, places = left[~same], (places[~same] + 1) & self._mask
        return found

    def add(self, ids: Ids) -> NDArray[np.int64]:
        """Number ids that are not there yet, each given once; return their numbers."""
        first, self._size = self._size, self._size + len(ids)
        self._ids.grow(self._size)
        self._ids.values[first : self._size] = ids
        if 2 * self._size > self._mask + 1:
            self._renew()
        else:
            self._place(first)
        return np.arange(first, self._size)

    def keep(self, chosen: NDArray[np.bool_]) -> None:
        """Have some ids alone; their numbers become smaller, in the same order."""
        self._size = compact(self._ids.values, chosen)
        self._renew()

    def _renew(self) -> None:
        """Find a place for each number, among more of them if there are many."""
        self._places = self._empty(max(2 * _LEAST, 1 << (4 * self._size - 1).bit_length()))
        self._place(0)

    def _first_places(self, ids: Ids) -> NDArray[np.int64]:
        return (mix(ids.view(np.uint64)) & np.uint64(self._mask)).astype(np.int64)

    def _place(self, first: int) -> None:
        """Find places for all numbers from one on."""
        for begin in range(first, self._size, BLOCK):
            self._place_some(np.arange(begin, min(begin + BLOCK, self._size)))

    def _place_some(self, numbers: NDArray[np.int64]) -> None:
        values = self._places
        places = self._first_places(self._ids.values[numbers])
        while len(numbers):
            free = values[places] == 0
            values[places[free]] = numbers[free] + 1  # of several for one place, the last one gets it
            lost = values[places] != numbers + 1
            numbers, places = numbers[lost], (places[lost] + 1) & self._mask


def compact(values: Array, chosen: NDArray[np.bool_]) -> int:
    """Move chosen elements to the front, in their order; return how many there are."""
    size = 0
    for begin in range(0, len(chosen), BLOCK):
        some = chosen[begin : begin + BLOCK]
        part = values[begin : begin + len(some)][some]
        values[size : size + len(part)] = part
        size += len(part)
    return size
