"""Columns in two tiers: rows that are used often in memory, the others in a mapped file.

A *record* is a row with its state, so that a row costs one page of the file. It is in one tier at a time.
When a record is used that is in the file, it changes places with one that was not used lately: one page of
the file is read and written, not two. A clock that counts uses up to three tells which record to give up
(GCLOCK: Smith, 1978). All of this is about where values are, and changes none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sparkdl.frame import Array
from sparkdl.keyed.arrays import InMemory, Reserved
from sparkdl.keyed.columns import Columns, FreshState, Places, blocks
from sparkdl.keyed.entries import ROW
from sparkdl.keyed.memory import RowMemory, parts

_HOTTEST = 3
_NONE = -1
_LEAST_SCANNED = 4096
_BESIDE = 10
"""Bytes of a record in memory beside it: its place, its uses, whether it must stay."""

Numbers = NDArray[np.int64]


class Tiered:
    """Columns of which memory holds a part.

    Args:
        width: elements of a row.
        dtype: of all columns.
        memory: what all tables share.
        names: of the columns.
    """

    def __init__(
        self, width: int, dtype: np.dtype[np.generic], memory: RowMemory, names: Sequence[str]
    ) -> None:
        self._width, self._dtype, self._memory = width, np.dtype(dtype), memory
        self.names: Sequence[str] = list(names)
        self._size = 0
        elements = width * len(names)
        self._bytes = elements * self._dtype.itemsize + _BESIDE
        most = memory.hot_bytes // self._bytes
        self._where = InMemory(np.int64)  # by place: number in memory, or ~number in the file
        self._file = memory.array(dtype, elements + 1)  # and one that is nothing
        self._used = 0  # of the file
        self._unused: Numbers = np.empty(0, np.int64)  # among these
        self._hot = Reserved(most, dtype, elements)
        self._places = Reserved(most, np.int64)  # by number in memory
        self._uses = Reserved(most, np.uint8)
        self._stays = Reserved(most, np.bool_)
        self._wanted = self._room = self._held = self._hand = 0

    def __len__(self) -> int:
        """Return how many places there are."""
        return self._size

    @property
    def held(self) -> int:
        """How many records are in memory."""
        return self._held

    def read(
        self, places: Places, names: Sequence[str] | None = None, *, used: bool = True
    ) -> dict[str, Array]:
        """Return copies of columns; what is used gets into memory."""
        if used:
            self._use(places)
        where = self._where.values[places]
        hot = where >= 0
        if hot.all():
            return {name: self._of(self._hot.values, name)[where] for name in names or self.names}
        records = np.empty((len(places), self._hot.values.shape[1]), self._dtype)
        records[hot] = self._hot.values[where[hot]]
        cold, left = np.flatnonzero(~hot), ~where[~hot]
        for part in parts(self._memory, len(left)):
            records[cold[part]] = self._records[left[part]]
        return {name: np.ascontiguousarray(self._of(records, name)) for name in names or self.names}

    def write(self, places: Places, columns: Mapping[str, Array]) -> None:
        """Write columns, wherever they are."""
        where = self._where.values[places]
        hot = where >= 0
        numbers = where[hot]
        for name, values in columns.items():
            self._of(self._hot.values, name)[numbers] = values[hot]
        cold, left = np.flatnonzero(~hot), ~where[~hot]
        for part in parts(self._memory, len(left)):
            for name, values in columns.items():
                self._of(self._records, name)[left[part]] = values[cold[part]]

    def add(self, columns: Mapping[str, Array]) -> None:
        """Write columns at new places, in memory as far as there is room."""
        if set(columns) - set(self.names):
            self._widen([*self.names, *(name for name in columns if name not in self.names)])
        count = len(columns[ROW])
        places = np.arange(self._size, self._size + count)
        records = np.zeros((count, self._width * len(self.names)), self._dtype)
        for name, values in columns.items():
            self._of(records, name)[:] = self._checked(name, values)
        self._size += count
        self._where.grow(self._size)
        self._ask()
        numbers = self._free(count, places[:0])
        self._to_file(numbers[self._places.values[numbers] != _NONE])
        kept = len(numbers)
        self._put(numbers, places[:kept], records[:kept])
        more = self._numbers_in_file(count - kept)
        self._where.values[places[kept:]] = ~more
        for part in parts(self._memory, len(more)):
            self._records[more[part]] = records[kept:][part]

    def extended(self, fresh: FreshState) -> Columns:
        """Return the same with further columns."""
        begun = fresh(np.zeros((0, self._width), self._dtype))
        self._widen([*self.names, *(name for name in begun if name not in self.names)])
        for places in blocks(self._size):
            rows = self.read(places, [ROW], used=False)[ROW]
            self.write(places, {name: self._checked(name, own) for name, own in fresh(rows).items()})
        return self

    def shorten(self, size: int) -> None:
        """Have no more places than these."""
        where = self._where.values[size : self._size]
        gone = where[where >= 0]
        self._places.values[gone] = _NONE
        self._uses.values[gone] = 0
        self._unused = np.concatenate([self._unused, ~where[where < 0]])
        self._size = size

    def hold(self, nbytes: int) -> None:
        """Have at most so many bytes in memory."""
        self._room = nbytes // self._bytes
        if self._held <= self._room:
            return
        out = np.arange(self._room, self._held)
        self._to_file(out[self._places.values[out] != _NONE])
        self._held = self._room
        self._hand = 0
        for own in (self._hot, self._places, self._uses, self._stays):
            own.free(self._held)

    def _widen(self, names: Sequence[str]) -> None:
        """Have other columns, which are zero where they are new."""
        wider = Tiered(self._width, self._dtype, self._memory, names)
        for places in blocks(self._size):
            wider.add(self.read(places, used=False))
        self._memory.forget(self)
        self._memory.forget(wider)
        vars(self).update(vars(wider))
        self._wanted = 0
        self._ask()

    def _checked(self, name: str, values: Array) -> Array:
        if values.dtype != self._dtype:
            raise TypeError(f"column {name!r} is {values.dtype}, the rows are {self._dtype}")
        return values

    @property
    def _records(self) -> Array:
        """The records in the file."""
        return self._file.values[:, :-1]

    def _of(self, records: Array, name: str) -> Array:
        begin = self._width * self.names.index(name)
        return records[:, begin : begin + self._width]

    def _ask(self) -> None:
        """Ask for memory for all records, if it is not enough."""
        if self._size * self._bytes > self._wanted:
            self._wanted = self._size * self._bytes * 5 // 4
            self.hold(self._memory.ask(self, self._wanted))

    def _use(self, places: Places) -> None:
        """Get records into memory, as far as there is room."""
        where = self._where.values[places]
        hot = where[where >= 0]
        self._uses.values[hot] = np.minimum(self._uses.values[hot] + 1, _HOTTEST)
        if len(hot) == len(where):
            return
        numbers = self._free(len(where) - len(hot), hot)
        places = places[where < 0][: len(numbers)]
        left = ~where[where < 0][: len(numbers)]
        for part in parts(self._memory, len(numbers)):
            self._exchange(numbers[part], places[part], left[part])

    def _exchange(self, numbers: Numbers, places: Places, left: Numbers) -> None:
        """Let records of the file change places with those in memory."""
        # To read a page that is not there brings fifteen others with it, to write brings that page alone.
        self._file.values[left, -1] = 0
        records = self._records[left]
        before = self._places.values[numbers]
        taken = before != _NONE
        self._records[left[taken]] = self._hot.values[numbers[taken]]
        self._where.values[before[taken]] = ~left[taken]
        self._unused = np.concatenate([self._unused, left[~taken]])
        self._put(numbers, places, records)

    def _put(self, numbers: Numbers, places: Places, records: Array) -> None:
        """Write records to memory."""
        self._hot.values[numbers] = records
        self._places.values[numbers] = places
        self._uses.values[numbers] = 0
        self._where.values[places] = numbers

    def _to_file(self, numbers: Numbers) -> None:
        """Copy records from memory to the file."""
        to = self._numbers_in_file(len(numbers))
        self._where.values[self._places.values[numbers]] = ~to
        for part in parts(self._memory, len(to)):
            self._records[to[part]] = self._hot.values[numbers[part]]

    def _numbers_in_file(self, count: int) -> Numbers:
        """Return numbers of the file that are free."""
        old = min(count, len(self._unused))
        found, self._unused = self._unused[len(self._unused) - old :], self._unused[: len(self._unused) - old]
        first, self._used = self._used, self._used + count - old
        self._file.grow(self._used)
        return np.concatenate([found, np.arange(first, self._used)])

    def _free(self, count: int, stay: Numbers) -> Numbers:
        """Return at most so many numbers in memory, whose records can go; not those that have to stay."""
        before, self._held = self._held, min(self._room, self._held + count)
        new = np.arange(before, self._held)
        self._places.values[new] = _NONE
        self._stays.values[stay] = True
        found, missing, left = [new], count - len(new), (_HOTTEST + 2) * before
        while missing and left > 0:
            size = min(before - self._hand, max(_LEAST_SCANNED, 4 * missing))
            uses = self._uses.values[self._hand : self._hand + size]
            idle = (uses == 0) & ~self._stays.values[self._hand : self._hand + size]
            chosen = np.flatnonzero(idle)[:missing]
            passed = size if len(chosen) < missing else int(chosen[-1]) + 1
            uses[:passed] -= uses[:passed] > 0
            found.append(chosen + self._hand)
            self._stays.values[found[-1]] = True
            missing, left = missing - len(chosen), left - passed
            self._hand = (self._hand + passed) % before
        self._stays.values[stay] = False
        for numbers in found[1:]:
            self._stays.values[numbers] = False
        return np.concatenate(found)
