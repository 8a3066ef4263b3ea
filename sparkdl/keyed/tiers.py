"""Entries in two tiers: those that are used often in memory, the others in a file.

A *record* is an entry: its id, its count, its row with the optimizer's state; so an entry costs one page of
the file. It is in one tier at a time. When a record is used that is in the file, it gets the place in memory
of one that was not used lately, and that one is written to the file, at the end of a
:class:`~sparkdl.keyed.log.Log`. Beside the records, memory has some 20 bytes for each entry:
:class:`~sparkdl.keyed.index.CompactIndex`, where the record is, and when it was last looked up. All of this
is about where values are, and changes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.keyed.columns import FreshState, Places, blocks
from sparkdl.keyed.entries import ROW
from sparkdl.keyed.hot import HotRecords
from sparkdl.keyed.index import CompactIndex
from sparkdl.keyed.log import Log
from sparkdl.keyed.memory import RowMemory
from sparkdl.keyed.mix import Ids, distinct
from sparkdl.keyed.slots import compact
from sparkdl.keyed.store import Counted, EntryHeads
from sparkdl.wire.arrays import Grown, Numbers
from sparkdl.wire.frame import Array

_HEAD = 16  # bytes of a record before its row: the id; twice the count, and 1 if there is a row
_SCRATCH = 4  # a batch is in memory so many times while it is worked on, about
_MOST = np.iinfo(np.int32).max // 2  # the file has twice as many places


class TieredStore:
    """Entries of which memory holds a part; otherwise as a :class:`~sparkdl.keyed.store.MemoryStore`."""

    def __init__(
        self, width: int, dtype: np.dtype[np.generic], memory: RowMemory, names: Sequence[str] = (ROW,)
    ) -> None:
        self._width, self._dtype, self._memory = width, np.dtype(dtype), memory
        self.names: Sequence[str] = list(names)
        self._content = _HEAD + width * len(names) * self._dtype.itemsize
        self._record = self._content + -self._content % 8
        self._file, self._ids = memory.records(self._record), memory.records(8)
        self._index = CompactIndex()
        self._where = Grown(np.int32)  # by number: place in memory, or ~place in the file
        self._last = Grown(np.uint32)
        self._size = 0
        self.rows = 0  # entries that have a row
        self.at_once = memory.at_once(self._record)  # entries that are read, written or copied at a time
        self._log = Log(memory.segment(self._record))
        self._hot = HotRecords(memory.nbytes // self._record + 1, self._record)
        self._batch = self._planned = 0

    def __len__(self) -> int:
        """Return how many entries there are."""
        return self._size

    def is_held(self, numbers: Places) -> NDArray[np.bool_]:
        """Return which entries are in memory."""
        return self._where.values[numbers] >= 0

    def find(self, ids: Ids) -> Places:
        """Return the number of each id, or -1."""
        return self._index.find(ids, self._ids_at)

    def number(self, ids: Ids) -> Places:
        """Return the number of each id; new ones get one. All get into memory, as far as there is room."""
        if len(ids) > self._batch:
            self._batch = len(ids) * 5 // 4
            self._ask()
        numbers = self._index.find(ids, self._fetched_ids)
        new = np.flatnonzero(numbers < 0)
        if len(new):
            held = self._where.values[np.delete(numbers, new)]
            numbers[new] = np.arange(self._size, self._size + len(new))
            made = ids[new]
            self._ids.grow(self._size + len(new))
            self._ids.write(numbers[new], made[:, None].view(np.uint8))
            records = np.zeros((len(new), self._record), np.uint8)
            records.view(np.int64)[:, 0] = made
            self._append(records, held[held >= 0])
            self._last.grow(self._size)
            self._last.values[numbers[new]] = 0
            self._index.add(numbers[new], made, self._all_ids)
        return numbers

    def heads(self, numbers: Places) -> EntryHeads:
        """Return copies of entries, but for their rows."""
        heads = self._get(numbers, np.int64, 0, 2)
        last = self._last.values[numbers].astype(np.int64)
        return EntryHeads(heads[:, 0].copy(), heads[:, 1] >> 1, last, (heads[:, 1] & 1).astype(np.bool_))

    def late(self, since: int) -> Places:
        """Return the numbers of entries that were looked up since so many completed iterations."""
        return np.flatnonzero(self._last.values[: self._size] >= max(0, since))

    def note(self, numbers: Places, counts: NDArray[np.int64], last: NDArray[np.int64] | int) -> None:
        """Write how often entries were looked up, and when."""
        before = self._get(numbers, np.int64, 1, 2)
        self._set(numbers, counts[:, None] << 1 | before & 1, 1)
        self._last.values[numbers] = last

    def count(self, numbers: Places, counts: NDArray[np.int64], iteration: int) -> Counted:
        """Count look-ups."""
        now = self._get(numbers, np.int64, 1, 2) + (counts[:, None] << 1)
        self._set(numbers, now, 1)
        before = self._last.values[numbers].astype(np.int64)
        self._last.values[numbers] = iteration
        return Counted(now[:, 0] >> 1, (now[:, 0] & 1).astype(np.bool_), before)

    def admitted(self, numbers: Places) -> NDArray[np.bool_]:
        """Return which entries have a row."""
        return (self._get(numbers, np.int64, 1, 2)[:, 0] & 1).astype(np.bool_)

    def read(self, numbers: Places, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Return copies of columns."""
        names = names or self.names
        first = [self._first(name) for name in names]
        if len(names) == 1 or self.is_held(numbers).all():
            own = [self._get(numbers, self._dtype, begin, begin + self._width) for begin in first]
            return dict(zip(names, own, strict=True))
        begin = min(first)
        records = self._get(numbers, self._dtype, begin, max(first) + self._width)
        return {
            name: np.ascontiguousarray(records[:, at - begin : at - begin + self._width])
            for name, at in zip(names, first, strict=True)
        }

    def write(self, numbers: Places, columns: Mapping[str, Array]) -> None:
        """Write columns."""
        for name, values in columns.items():
            if values.dtype != self._dtype:
                raise TypeError(f"column {name!r} is {values.dtype}, the rows are {self._dtype}")
            self._set(numbers, values, self._first(name))

    def admit(self, numbers: Places, columns: Mapping[str, Array]) -> None:
        """Give entries their row; other columns are zero since the entry was made."""
        if columns.keys() - set(self.names):
            self._widen([*self.names, *(name for name in columns if name not in self.names)])
        self._set(numbers, self._get(numbers, np.int64, 1, 2) | 1, 1)
        self.rows += len(numbers)
        self.write(numbers, columns)

    def extend(self, fresh: FreshState) -> None:
        """Have further columns."""
        begun = fresh(np.zeros((0, self._width), self._dtype))
        self._widen([*self.names, *(name for name in begun if name not in self.names)])
        for block in self._blocks():
            numbers = block[self.admitted(block)]
            self.write(numbers, fresh(self.read(numbers, [ROW])[ROW]))

    def keep(self, chosen: NDArray[np.bool_]) -> None:
        """Have some entries alone; their numbers become smaller, in the same order."""
        for block in self._blocks():
            gone = block[~chosen[block]]
            self.rows -= int(self.admitted(gone).sum())
            where = self._where.values[gone]
            self._hot.vacate(where[where >= 0])
            self._log.free(~where[where < 0])
        compact(self._last.values, chosen)
        size = compact(self._where.values, chosen)
        before, self._size = self._size, 0
        for block in self._blocks(before):
            kept = self._ids.read(block)[chosen[block]]
            numbers = np.arange(self._size, self._size + len(kept))
            self._ids.write(numbers, kept)
            self._size += len(kept)
            where = self._where.values[numbers]
            self._hot.whose[where[where >= 0]] = numbers[where >= 0]
        assert self._size == size
        self._index.renew(size, self._all_ids())

    def hold(self, nbytes: int) -> None:
        """Have at most so many bytes in memory."""
        beyond = self._hot.allow(nbytes)
        for begin in range(beyond.start, beyond.stop, self.at_once):
            out = np.arange(begin, min(beyond.stop, begin + self.at_once))
            self._to_file(out[self._hot.taken(out)])
        self._hot.cut()

    def _blocks(self, size: int | None = None) -> Iterator[Places]:
        """Yield the numbers of all entries, some at a time."""
        return blocks(self._size if size is None else size, self.at_once)

    def _all_ids(self) -> Iterator[Ids]:
        """Yield the ids of all entries, in the blocks of their numbers."""
        for block in self._blocks(self._size):
            yield self._ids.read(block).view(np.int64)[:, 0]

    def _ids_at(self, numbers: Places) -> Ids:
        return self._get(numbers, np.int64, 0, 1)[:, 0]

    def _fetched_ids(self, numbers: Places) -> Ids:
        """Return the ids of entries, which get into memory: most of them are those that are looked for."""
        self._use(distinct([numbers]))
        return self._ids_at(numbers)

    def _first(self, name: str) -> int:
        """Return the number of a column's first element in a record."""
        return _HEAD // self._dtype.itemsize + self._width * self.names.index(name)

    def _get(self, numbers: Places, dtype: Any, begin: int, stop: int) -> Array:
        """Return copies of some elements of records, in memory or in the file."""
        values: Array = self._hot.values.view(dtype)[:, begin:stop]
        where = self._where.values[numbers]
        held = where >= 0
        if held.all():
            return values[where]
        made = np.empty((len(numbers), stop - begin), dtype)
        made[held] = values[where[held]]
        cold, size = np.flatnonzero(~held), made.itemsize
        for at in range(0, len(cold), self.at_once):
            part = cold[at : at + self.at_once]
            made[part] = self._file.read(~where[part], begin * size, stop * size).view(dtype)
        return made

    def _set(self, numbers: Places, values: Array, begin: int) -> None:
        """Write some elements of records, wherever they are."""
        where = self._where.values[numbers]
        held = where >= 0
        to = self._hot.values.view(values.dtype)[:, begin : begin + values.shape[1]]
        if held.all():
            to[where] = values
            return
        to[where[held]] = values[held]
        cold = np.flatnonzero(~held)
        for at in range(0, len(cold), self.at_once):
            part = cold[at : at + self.at_once]
            self._file.write(~where[part], values[part].view(np.uint8), begin * values.itemsize)

    def _append(self, records: Array, stay: Numbers) -> None:
        """Have further entries, in memory as far as there is room."""
        numbers = np.arange(self._size, self._size + len(records))
        self._size += len(records)
        if self._size > _MOST:
            raise ValueError(f"{self._size} ids in one process, at most {_MOST}: use more partitions")
        self._where.grow(self._size)
        self._ask()
        places = self._hot.find(len(records), stay)
        self._to_file(places[self._hot.taken(places)])
        kept = len(places)
        self._put(places, numbers[:kept], records[:kept])
        self._where.values[numbers[kept:]] = ~self._written(records[kept:])

    def _widen(self, names: Sequence[str]) -> None:
        """Have other columns behind the old ones, which are zero where they are new."""
        if list(names) == list(self.names):
            return
        wider = TieredStore(self._width, self._dtype, self._memory, names)
        wider._batch = self._batch
        for block in self._blocks():
            records = np.zeros((len(block), wider._record), np.uint8)
            records[:, : self._content] = self._get(block, np.uint8, 0, self._content)
            wider._append(records, block[:0])
        self._memory.forget(self)
        self._memory.forget(wider)
        for name in ("_index", "_ids", "_last", "rows"):
            setattr(wider, name, getattr(self, name))
        vars(self).update(vars(wider))
        self._planned = 0
        self._ask()

    def _ask(self) -> None:
        """Ask for memory for all records, and for what is beside them, if it is not enough."""
        scratch = _SCRATCH * self._batch * self._record
        beside = self._planned * 8 + CompactIndex.bytes_for(self._planned) + scratch
        if self._size > self._planned or self._memory.beside(self) < beside:
            self._planned = max(self._planned, self._size * 5 // 4)
            beside = self._planned * 8 + CompactIndex.bytes_for(self._planned) + scratch
            self.hold(self._memory.ask(self, self._planned * self._hot.nbytes, beside))

    def _use(self, numbers: Places) -> None:
        """Get records into memory, as far as there is room."""
        where = self._where.values[numbers]
        held = where >= 0
        hot = where[held]
        self._hot.use(hot)
        if len(hot) == len(where):
            return
        places = self._hot.find(len(where) - len(hot), hot)
        numbers = numbers[~held][: len(places)]
        for at in range(0, len(places), self.at_once):
            part = slice(at, at + self.at_once)
            self._exchange(places[part], numbers[part])

    def _exchange(self, places: Numbers, numbers: Places) -> None:
        """Get records from the file to places in memory; those that are there go to the file."""
        where = self._where.values
        records = self._file.read(~where[numbers])
        taken = places[self._hot.taken(places)]
        before, out = self._hot.whose[taken], self._hot.values[taken]
        to = self._written(out)  # before anything else, for it may fail
        self._log.free(~where[numbers])  # as they are after cleaning
        self._put(places, numbers, records)
        where[before] = ~to

    def _put(self, places: Numbers, numbers: Places, records: Array) -> None:
        self._hot.put(places, numbers, records)
        self._where.values[numbers] = places

    def _to_file(self, places: Numbers) -> None:
        """Copy records from memory to the file."""
        for at in range(0, len(places), self.at_once):
            part = places[at : at + self.at_once]
            self._where.values[self._hot.whose[part]] = ~self._written(self._hot.values[part])

    def _written(self, records: Array) -> NDArray[np.int32]:
        """Write records behind the others; return where they are."""
        while (segment := self._log.to_clean(len(records))) is not None:
            self._clean(segment)
        self._file.grow(self._log.size_with(len(records)))
        places = self._log.take(len(records))
        self._file.write(places, records)
        return places

    def _clean(self, segment: int) -> None:
        """Write the records of a segment behind the others."""
        places = self._log.places_of(segment)
        records = self._file.read(places)
        ids = records.view(np.int64)[:, 0].copy()
        # A record is where its entry says; others were left behind when theirs was read.
        where = self._where.values
        numbers = self._index.search(ids, lambda found, which: where[found] == ~places[which])
        there = numbers >= 0
        self._file.grow(self._log.size_with(int(there.sum())))
        self._log.free(places[there])
        to = self._log.take(int(there.sum()))
        self._file.write(to, records[there])
        where[numbers[there]] = ~to
