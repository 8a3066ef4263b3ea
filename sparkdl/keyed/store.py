"""The entries of a keyed table: numbers for ids, and by number counts, rows, optimizer state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkdl.keyed.columns import BLOCK, FreshState, Held, Places, blocks
from sparkdl.keyed.mix import Ids
from sparkdl.keyed.slots import SlotTable, compact
from sparkdl.wire.arrays import InMemory
from sparkdl.wire.frame import Array

_NONE = -1


class EntryHeads(NamedTuple):
    """Entries without their rows."""

    ids: Ids
    counts: NDArray[np.int64]  # how often each was looked up
    last: NDArray[np.int64]  # completed iterations when it was looked up last
    admitted: NDArray[np.bool_]  # whether it has a row


class Counted(NamedTuple):
    """Entries whose look-ups have been counted."""

    total: NDArray[np.int64]  # how often each was looked up
    admitted: NDArray[np.bool_]  # whether it has a row
    # completed iterations when it was looked up the last time before; 0 for a new one
    before: NDArray[np.int64]


class MemoryStore:
    """Entries by number, in memory: 0 for the first id that was added, 1 for the next, and so on.

    A row has a place, which entries without a row have not.
    """

    def __init__(self, width: int, dtype: np.dtype[np.generic]) -> None:
        self._slots = SlotTable()
        self._counts, self._last, self._places = (InMemory(np.int64) for _ in range(3))
        self._columns = Held(width, dtype)

    @property
    def names(self) -> Sequence[str]:
        """Names of the columns; one is that of the rows themselves."""
        return self._columns.names

    @property
    def rows(self) -> int:
        """How many entries have a row."""
        return len(self._columns)

    @property
    def at_once(self) -> int:
        """Entries that may be copied at a time."""
        return BLOCK

    def __len__(self) -> int:
        """Return how many entries there are."""
        return len(self._slots)

    def find(self, ids: Ids) -> Places:
        """Return the number of each id; -1 for those that are not there."""
        return self._slots.find(ids)

    def number(self, ids: Ids) -> Places:
        """Return the number of each id, each given once; those that are not there get one."""
        numbers = self._slots.find(ids)
        new = numbers < 0
        if new.any():
            size = len(self._slots)
            numbers[new] = self._slots.add(ids[new])
            total = len(self._slots)
            for array, value in ((self._counts, 0), (self._last, 0), (self._places, _NONE)):
                array.grow(total)
                array.values[size:total] = value
        return numbers

    def heads(self, numbers: Places) -> EntryHeads:
        """Return copies of entries, but for their rows."""
        last: NDArray[np.int64] = self._last.values[numbers]
        return EntryHeads(
            self._slots.ids[numbers], self._counts.values[numbers], last, self.admitted(numbers)
        )

    def late(self, since: int) -> Places:
        """Return the numbers of entries that were looked up since so many completed iterations."""
        return np.flatnonzero(self._last.values[: len(self)] >= since)

    def note(self, numbers: Places, counts: NDArray[np.int64], last: NDArray[np.int64] | int) -> None:
        """Write how often entries were looked up, and when."""
        self._counts.values[numbers] = counts
        self._last.values[numbers] = last

    def count(self, numbers: Places, counts: NDArray[np.int64], iteration: int) -> Counted:
        """Count look-ups; return what is known of the entries now."""
        total = self._counts.values[numbers] + counts
        before = self._last.values[numbers]
        self.note(numbers, total, iteration)
        return Counted(total, self.admitted(numbers), before)

    def admitted(self, numbers: Places) -> NDArray[np.bool_]:
        """Return which entries have a row."""
        there: NDArray[np.bool_] = self._places.values[numbers] != _NONE
        return there

    def read(self, numbers: Places, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Return copies of columns, all by default, of entries that have a row, each given once."""
        return self._columns.read(self._places.values[numbers], names)

    def write(self, numbers: Places, columns: Mapping[str, Array]) -> None:
        """Write columns of entries that have a row, each given once."""
        self._columns.write(self._places.values[numbers], columns)

    def admit(self, numbers: Places, columns: Mapping[str, Array]) -> None:
        """Give entries their row; other columns are zero."""
        first = len(self._columns)
        self._columns.add(columns)
        self._places.values[numbers] = np.arange(first, len(self._columns))

    def extend(self, fresh: FreshState) -> None:
        """Have further columns, of which a function tells the values from the rows."""
        self._columns.extend(fresh)

    def keep(self, chosen: NDArray[np.bool_]) -> None:
        """Have some entries alone, in the same order; the last rows take the places of those that go."""
        size = len(self)
        freed = self._places.values[:size][~chosen]
        freed = np.sort(freed[freed != _NONE])
        left = len(self._columns) - len(freed)
        moved = np.flatnonzero((self._places.values[:size] >= left) & chosen)
        to = freed[: len(moved)]
        for block in blocks(len(moved)):
            own = moved[block]
            self._columns.write(to[block], self._columns.read(self._places.values[own]))
            self._places.values[own] = to[block]
        self._columns.shorten(left)
        for array in (self._counts, self._last, self._places):
            compact(array.values, chosen)
        self._slots.keep(chosen)
