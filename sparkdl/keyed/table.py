"""A table from ids to rows, and what becomes of its entries: admission, updates, eviction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.keyed import bloom
from sparkdl.keyed.bloom import CELLS, CountingBloom
from sparkdl.keyed.columns import FreshState, Places, blocks
from sparkdl.keyed.entries import ROW, Entries
from sparkdl.keyed.memory import RowMemory
from sparkdl.keyed.mix import Ids, initial_rows
from sparkdl.keyed.store import MemoryStore
from sparkdl.keyed.tiers import TieredStore
from sparkdl.wire.frame import Array

HOT = 100
"""Iterations: an id that was looked up within the last ones is hot."""
_LEAST_LOG = 4096  # so many evictions are remembered in any case; see :meth:`Entries.changed`


@dataclass(frozen=True, slots=True)
class TableRule:
    """How the entries of a table come and go."""

    width: int  # elements of a row
    dtype: str  # of the rows
    seed: int  # from which, with its id, the first row of an id follows
    std: float  # standard deviation of first rows
    min_count: int = 1  # look-ups after which an id gets a row
    # iterations without a look-up after which an entry is evicted; ``None`` for no limit
    max_age: int | None = None
    min_norm: float = 0.0  # rows with a smaller Euclidean norm are evicted; 0 for none
    evict_every: int = 1000  # iterations from one eviction to the next
    # count look-ups of ids without a row; ``None``: such ids have entries
    counters: CountingBloom | None = None

    @property
    def spread(self) -> int:
        """How many pages have the counters of all ids; 0 without counters."""
        return 0 if self.counters is None else self.counters.pages

    @property
    def of_pages(self) -> TableRule:
        """The rule of the table that has the pages of counters."""
        return TableRule(CELLS, bloom.dtype_for(self.min_count).name, 0, 0.0)

    def evicts(self, iteration: int) -> bool:
        """Return whether entries are evicted before an iteration."""
        limited = self.max_age is not None or self.min_norm > 0
        return limited and iteration > 0 and iteration % self.evict_every == 0


class KeyedTable:
    """Rows by id, with their optimizer state, in memory with the bound of ``memory`` if it is there.

    ``scalars`` is the optimizer's state of the table as a whole; ``hot`` counts hot ids of the last look-ups,
    ``first`` those of them that are the first of their id since the iteration that was given.
    """

    def __init__(self, rule: TableRule, memory: RowMemory | None = None) -> None:
        self.rule = rule
        self.scalars: dict[str, Any] = {}
        self.hot = self.first = 0
        self._memory = memory
        self._clear()

    def _clear(self) -> None:
        self._gone: Ids = np.empty(0, np.int64)
        self._gone_at = np.empty(0, np.int64)
        self._logged = 0
        self._recent: tuple[Ids, Places] = np.empty(0, np.int64), np.empty(0, np.int64)
        width, dtype = self.rule.width, np.dtype(self.rule.dtype)
        self._store: MemoryStore | TieredStore = (
            MemoryStore(width, dtype) if self._memory is None else TieredStore(width, dtype, self._memory)
        )
        rule = self.rule
        self._pages = KeyedTable(rule.of_pages, self._memory) if rule.counters is not None else None
        self._waiting: int | None = 0

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same rule; rows are values, and so is the seed, saved with them."""
        if not isinstance(other, KeyedTable):
            return NotImplemented
        return replace(self.rule, seed=0) == replace(other.rule, seed=0)

    __hash__ = object.__hash__

    def __len__(self) -> int:
        """Return how many ids have a row."""
        return self._store.rows

    @property
    def known(self) -> int:
        """How many ids there are, with and without a row; with counters about so many."""
        if self._waiting is None:
            assert self._pages is not None
            store = self._pages._store
            self._waiting = sum(int(store.heads(some).counts.sum()) for some in self._pages._blocks())
        return len(self._store) + self._waiting

    @property
    def state_names(self) -> list[str]:
        """Names of the optimizer's state of each row."""
        return [name for name in self._store.names if name != ROW]

    @property
    def admitted(self) -> Ids:
        """The ids that have a row, in no order."""
        heads = [self._store.heads(numbers) for numbers in self._blocks()]
        return np.concatenate([np.empty(0, np.int64), *(own.ids[own.admitted] for own in heads)])

    def look_up(self, ids: Ids) -> tuple[NDArray[np.bool_], Array]:
        """Return which ids have a row, and these rows; nothing is counted."""
        numbers = self._find(ids)
        there = numbers >= 0
        there[there] = self._store.admitted(numbers[there])
        return there, self._store.read(numbers[there], [ROW])[ROW]

    def count(
        self, ids: Ids, counts: NDArray[np.int64], iteration: int, fresh: FreshState, since: int = 0
    ) -> int:
        """Count look-ups, and give ids that are admitted by this their first row."""
        if self.rule.counters is not None:
            ids, counts = self._let_in(ids, counts, iteration)
        numbers = self._store.number(ids)
        if (ids[1:] > ids[:-1]).all():
            self._recent = ids, numbers
        total, admitted, before = self._store.count(numbers, counts, iteration)
        self.hot = int(counts[(total > counts) & (before >= iteration - HOT)].sum())
        self.first = int((before < since).sum())
        new = ~admitted & (total >= self.rule.min_count)
        if not new.any():
            return 0
        rule = self.rule
        rows = initial_rows(rule.seed, ids[new], rule.width, rule.std, np.dtype(rule.dtype))
        self._store.admit(numbers[new], {ROW: rows, **(fresh(rows) if self.state_names else {})})
        return len(rows)

    def _let_in(self, ids: Ids, counts: NDArray[np.int64], iteration: int) -> tuple[Ids, NDArray[np.int64]]:
        """Count ids without an entry; return those that have one, or get one, and look-ups of each.

        For ids that get one these are all their look-ups, also those of iterations before.
        """
        rule, pages, waiting = self.rule, self._pages, self.known - len(self._store)
        assert rule.counters is not None
        assert pages is not None
        new = np.flatnonzero(self._store.find(ids) < 0)
        if not len(new):
            return ids, counts
        found = bloom.count(
            rule.counters,
            pages._store,
            ids[new],
            counts[new],
            iteration,
            least=rule.min_count,
            max_age=rule.max_age,
        )
        self._waiting = waiting + found.more
        counts = counts.copy()
        counts[new] = found.total
        out = new[found.total < rule.min_count]
        return np.delete(ids, out), np.delete(counts, out)

    def columns_of(self, ids: Ids) -> dict[str, Array]:
        """Return copies of the rows, and of their state, of ids that all have one."""
        return self._store.read(self._find(ids))

    def update(self, ids: Ids, columns: Mapping[str, Array], fresh: FreshState, iteration: int) -> None:
        """Write rows, and their state, of ids that all have one, for so many completed iterations.

        ``fresh`` returns the optimizer's state of rows, for columns that are not there yet.
        """
        if columns.keys() - set(self._store.names):
            self._logged = iteration  # all rows change
            self._store.extend(fresh)
        self._store.write(self._find(ids), columns)

    def evict(self, iteration: int) -> Ids:
        """Remove entries that the rule evicts before an iteration; return their ids."""
        rule, store = self.rule, self._store
        if not rule.evicts(iteration):
            return np.empty(0, np.int64)
        out = np.zeros(len(store), np.bool_)
        if rule.max_age is not None:
            out[:] = True
            out[store.late(iteration - rule.max_age)] = False
        if rule.min_norm > 0:
            for block in self._blocks():
                numbers = block[store.admitted(block)]
                rows = store.read(numbers, [ROW])[ROW].astype(np.float64)
                out[numbers] |= np.sqrt((rows * rows).sum(1)) < rule.min_norm
        gone = np.sort(store.heads(np.flatnonzero(out)).ids)
        self._keep(~out)
        self._log(gone, np.full(len(gone), iteration))
        most = max(_LEAST_LOG, len(store))
        if len(self._gone) > most:
            self._logged = max(self._logged, int(self._gone_at[-most - 1]) + 1)
            self._log(gone[:0], gone[:0])
        return gone

    def _drop(self, ids: Ids) -> None:
        numbers = self._store.find(ids)
        chosen = np.ones(len(self._store), np.bool_)
        chosen[numbers[numbers >= 0]] = False
        self._keep(chosen)

    def _keep(self, chosen: NDArray[np.bool_]) -> None:
        """Have some entries alone."""
        if not chosen.all():
            self._store.keep(chosen)
            self._recent = np.empty(0, np.int64), np.empty(0, np.int64)

    def _log(self, gone: Ids, at: NDArray[np.int64]) -> None:
        """Note evictions, and forget those that are not asked for any more."""
        gone, at = np.concatenate([self._gone, gone]), np.concatenate([self._gone_at, at])
        known = at >= self._logged
        self._gone, self._gone_at = gone[known], at[known]

    def entries(self) -> Entries:
        """Return all entries; in a file if memory is bounded and they are many."""
        return self._with_pages(self._entries(np.arange(len(self._store))), 0)

    def changes(self, ids: Ids, gone: Ids, iteration: int) -> Entries:
        """Return the change that an iteration has made.

        ``ids`` are those that it has written, also some without an entry, ``gone`` those evicted before.
        """
        if self._logged >= iteration > 0:
            return self.entries()
        at = np.full(len(gone), iteration)
        numbers = self._find(ids)
        found = self._with_pages(self._entries(numbers[numbers >= 0]), iteration)
        return replace(found, gone=gone, gone_at=at, since=max(1, iteration))

    def changed(self, since: int) -> Entries:
        """Return what has changed since so many completed iterations; see :meth:`Entries.changed`."""
        if not since or since < self._logged:
            return self.entries()
        return self._with_pages(self._entries(self._store.late(since)), since).changed(since)

    def _with_pages(self, found: Entries, since: int) -> Entries:
        """Return entries with the pages of counters that have changed since so many completed iterations."""
        if self._pages is None:
            return found
        return replace(found, pages=self._pages.changed(since), spread=self.rule.spread)

    def _entries(self, numbers: Places) -> Entries:
        log: dict[str, Any] = {"gone": self._gone, "gone_at": self._gone_at, "logged": self._logged}
        store, memory = self._store, self._memory
        if memory is None or len(numbers) <= store.at_once:
            heads = store.heads(numbers)
            return Entries(*heads, store.read(numbers[heads.admitted]), dict(self.scalars), **log)
        own = [memory.array(dtype) for dtype in (np.int64, np.int64, np.int64, np.bool_)]
        columns = {name: memory.array(self.rule.dtype, self.rule.width) for name in store.names}
        for array in own:
            array.grow(len(numbers))
        at = 0
        for begin in range(0, len(numbers), store.at_once):
            some = numbers[begin : begin + store.at_once]
            heads = store.heads(some)
            for array, values in zip(own, heads, strict=True):
                array.values[begin : begin + len(some)] = values
            found = store.read(some[heads.admitted])
            for name, values in found.items():
                columns[name].grow(at + len(values))
                columns[name].values[at : at + len(values)] = values
            at += len(found[ROW])
            memory.settle()
        ids, counts, last, admitted = (array.values[: len(numbers)] for array in own)
        rows = {name: array.values[:at] for name, array in columns.items()}
        return Entries(ids, counts, last, admitted, rows, dict(self.scalars), **log)

    def _blocks(self) -> Iterator[Places]:
        """Yield the numbers of all entries, some at a time."""
        return blocks(len(self._store), self._store.at_once)

    def put(self, entries: Entries) -> None:
        """Have other entries, or make a change: remove those that are gone, and write the others."""
        if entries.since:
            self._drop(entries.gone)
        else:
            self._clear()
        self._write(entries)
        if self._pages is not None and entries.pages is not None:
            self._pages.put(entries.pages)
            self._waiting = None

    def _write(self, entries: Entries) -> None:
        """Have entries, beside others; so many at a time that bounded memory is enough."""
        at, store, size = 0, self._store, self._store.at_once
        for begin in range(0, max(1, len(entries.ids)), size):
            part = slice(begin, begin + size)
            numbers = store.number(entries.ids[part])
            store.note(numbers, entries.counts[part], entries.last[part])
            with_row = numbers[entries.admitted[part]]
            rows = slice(at, at + len(with_row))
            self._put_rows(with_row, {name: values[rows] for name, values in entries.columns.items()})
            at += len(with_row)
        self._logged = max(self._logged, entries.logged)
        self._log(entries.gone, entries.gone_at)
        self.scalars = dict(entries.scalars)

    def _find(self, ids: Ids) -> Places:
        """Return the numbers of ids; those of the last count need no search in the whole table."""
        recent, numbers = self._recent
        if not len(recent):
            return self._store.find(ids)
        at = np.minimum(np.searchsorted(recent, ids), len(recent) - 1)
        found, other = numbers[at], recent[at] != ids
        if other.any():
            found[other] = self._store.find(ids[other])
        return found

    def _put_rows(self, numbers: Places, columns: Mapping[str, Array]) -> None:
        """Write the columns of some entries, which get a row if they have none."""
        old = self._store.admitted(numbers)
        self._store.admit(numbers[~old], {name: values[~old] for name, values in columns.items()})
        if old.any():
            self._store.write(numbers[old], {name: values[old] for name, values in columns.items()})
