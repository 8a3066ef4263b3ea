"""A table from ids to rows, and what becomes of its entries: admission, updates, eviction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.frame import Array
from sparkdl.keyed.arrays import InMemory
from sparkdl.keyed.columns import BLOCK, Columns, FreshState, Held, blocks
from sparkdl.keyed.entries import ROW, Entries
from sparkdl.keyed.memory import RowMemory
from sparkdl.keyed.mix import Ids, initial_rows
from sparkdl.keyed.slots import Slots, compact
from sparkdl.keyed.tiers import Tiered

_NONE = -1
HOT = 100
"""Iterations: an id that was looked up within the last ones is hot."""
_LEAST_LOG = 4096
"""So many evictions are remembered in any case; see :meth:`Entries.changed`."""


@dataclass(frozen=True, slots=True)
class TableRule:
    """How the entries of a table come and go.

    Attributes:
        width: elements of a row.
        dtype: of the rows.
        seed: from which, with its id, the first row of an id follows.
        std: standard deviation of first rows.
        min_count: look-ups after which an id gets a row.
        max_age: iterations without a look-up after which an entry is evicted; ``None`` for no limit.
        min_norm: rows with a smaller Euclidean norm are evicted; 0 for none.
        evict_every: iterations from one eviction to the next.
    """

    width: int
    dtype: str
    seed: int
    std: float
    min_count: int = 1
    max_age: int | None = None
    min_norm: float = 0.0
    evict_every: int = 1000

    def evicts(self, iteration: int) -> bool:
        """Return whether entries are evicted before an iteration."""
        limited = self.max_age is not None or self.min_norm > 0
        return limited and iteration > 0 and iteration % self.evict_every == 0


class KeyedTable:
    """Rows by id, with their optimizer state.

    Args:
        rule: how entries come and go.
        memory: bounds memory; ``None`` for no bound.

    Attributes:
        rule: as given.
        scalars: the optimizer's state of the table as a whole.
        hot: of the look-ups that were counted last, how many were of hot ids.
    """

    def __init__(self, rule: TableRule, memory: RowMemory | None = None) -> None:
        self.rule = rule
        self.scalars: dict[str, Any] = {}
        self.hot = 0
        self._memory = memory
        self._clear()

    def _clear(self) -> None:
        self._slots = Slots()
        self._counts, self._last, self._places = (InMemory(np.int64) for _ in range(3))
        self._gone: Ids = np.empty(0, np.int64)
        self._gone_at = np.empty(0, np.int64)
        self._logged = 0
        self._recent: tuple[Ids, NDArray[np.int64]] = np.empty(0, np.int64), np.empty(0, np.int64)
        width, dtype = self.rule.width, np.dtype(self.rule.dtype)
        self._rows: Columns = (
            Held(width, dtype) if self._memory is None else Tiered(width, dtype, self._memory, [ROW])
        )

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same rule; rows are values, and so is the seed, saved with them."""
        if not isinstance(other, KeyedTable):
            return NotImplemented
        return replace(self.rule, seed=0) == replace(other.rule, seed=0)

    __hash__ = object.__hash__

    def __len__(self) -> int:
        """Return how many ids have a row."""
        return len(self._rows)

    @property
    def known(self) -> int:
        """How many ids there are, with and without a row."""
        return len(self._slots)

    @property
    def state_names(self) -> list[str]:
        """Names of the optimizer's state of each row."""
        return [name for name in self._rows.names if name != ROW]

    @property
    def admitted(self) -> Ids:
        """The ids that have a row, in no order."""
        size = len(self._slots)
        found: Ids = self._slots.ids[self._places.values[:size] != _NONE]
        return found

    def look_up(self, ids: Ids) -> tuple[NDArray[np.bool_], Array]:
        """Return which ids have a row, and these rows; nothing is counted."""
        places = self._places_of(ids)
        there = places != _NONE
        return there, self._rows.read(places[there], [ROW])[ROW]

    def count(self, ids: Ids, counts: NDArray[np.int64], iteration: int, fresh: FreshState) -> int:
        """Count look-ups, and give ids that are admitted by this their first row.

        Args:
            ids: the ids, each once.
            counts: look-ups of each.
            iteration: completed iterations.
            fresh: returns the optimizer's state of new rows.

        Returns:
            How many ids got a row.
        """
        slots = self._slots_of(ids)
        if (ids[1:] > ids[:-1]).all():
            self._recent = ids, slots
        known = self._counts.values[slots] > 0
        self.hot = int(counts[known & (self._last.values[slots] >= iteration - HOT)].sum())
        self._counts.values[slots] += counts
        self._last.values[slots] = iteration
        without = self._places.values[slots] == _NONE
        new = slots[without & (self._counts.values[slots] >= self.rule.min_count)]
        if len(new):
            rule = self.rule
            rows = initial_rows(rule.seed, self._slots.ids[new], rule.width, rule.std, np.dtype(rule.dtype))
            state = fresh(rows) if self.state_names else {}
            self._put_rows(new, {ROW: rows, **state})
        return len(new)

    def columns_of(self, ids: Ids) -> dict[str, Array]:
        """Return copies of the rows, and of their state, of ids that all have one."""
        return self._rows.read(self._places_of(ids))

    def update(self, ids: Ids, columns: Mapping[str, Array], fresh: FreshState, iteration: int) -> None:
        """Write rows, and their state, of ids that all have one.

        Args:
            ids: the ids.
            columns: new values by name.
            fresh: returns the optimizer's state of rows, for columns that are not there yet.
            iteration: completed iterations after this update.
        """
        if columns.keys() - set(self._rows.names):
            self._logged = iteration  # all rows change
            self._rows = self._rows.extended(fresh)
        self._rows.write(self._places_of(ids), columns)

    def evict(self, iteration: int) -> Ids:
        """Remove entries that the rule evicts before an iteration; return their ids."""
        rule, size = self.rule, len(self._slots)
        if not rule.evicts(iteration):
            return np.empty(0, np.int64)
        out = np.zeros(size, np.bool_)
        if rule.max_age is not None:
            out |= self._last.values[:size] < iteration - rule.max_age
        if rule.min_norm > 0:
            for slots in blocks(size):
                places = self._places.values[slots]
                there = places != _NONE
                rows = self._rows.read(places[there], [ROW], used=False)[ROW].astype(np.float64)
                out[slots[there]] |= np.sqrt((rows * rows).sum(1)) < rule.min_norm
        gone = np.sort(self._slots.ids[out])
        self._drop(gone)
        self._log(gone, np.full(len(gone), iteration))
        most = max(_LEAST_LOG, len(self._slots))
        if len(self._gone) > most:
            self._logged = max(self._logged, int(self._gone_at[-most - 1]) + 1)
            self._log(gone[:0], gone[:0])
        return gone

    def _drop(self, ids: Ids) -> None:
        """Remove entries; the last rows take the places of those that go."""
        slots = self._slots.find(ids)
        slots = slots[slots >= 0]
        if not len(slots):
            return
        size = len(self._slots)
        chosen = np.ones(size, np.bool_)
        chosen[slots] = False
        freed = self._places.values[slots]
        freed = np.sort(freed[freed != _NONE])
        left = len(self._rows) - len(freed)
        moved = np.flatnonzero((self._places.values[:size] >= left) & chosen)
        to = freed[: len(moved)]
        for block in blocks(len(moved)):
            own = moved[block]
            self._rows.write(to[block], self._rows.read(self._places.values[own], used=False))
            self._places.values[own] = to[block]
        self._rows.shorten(left)
        for array in (self._counts, self._last, self._places):
            compact(array.values, chosen)
        self._slots.keep(chosen)
        self._recent = ids[:0], slots[:0]

    def _log(self, gone: Ids, at: NDArray[np.int64]) -> None:
        """Note evictions, and forget those that are not asked for any more."""
        gone, at = np.concatenate([self._gone, gone]), np.concatenate([self._gone_at, at])
        known = at >= self._logged
        self._gone, self._gone_at = gone[known], at[known]

    def entries(self) -> Entries:
        """Return all entries; in a file if memory is bounded and they are many."""
        return self._entries(np.arange(len(self._slots)))

    def changes(self, ids: Ids, gone: Ids, iteration: int) -> Entries:
        """Return the change that an iteration has made.

        Args:
            ids: of the entries that it has written.
            gone: ids of those that it has evicted before.
            iteration: completed iterations.

        Returns:
            All entries if all of them have changed.
        """
        if self._logged >= iteration > 0:
            return self.entries()
        at = np.full(len(gone), iteration)
        found = self._entries(self._find(ids))
        return replace(found, gone=gone, gone_at=at, since=max(1, iteration))

    def changed(self, since: int) -> Entries:
        """Return what has changed since so many completed iterations; see :meth:`Entries.changed`."""
        if not since or since < self._logged:
            return self.entries()
        size = len(self._slots)
        return self._entries(np.flatnonzero(self._last.values[:size] >= since)).changed(since)

    def _entries(self, slots: NDArray[np.int64]) -> Entries:
        """Return the entries with these numbers."""
        log: dict[str, Any] = {"gone": self._gone, "gone_at": self._gone_at, "logged": self._logged}
        if self._memory is None or len(slots) <= BLOCK:
            return Entries(*self._own(slots), self._columns_at(slots), dict(self.scalars), **log)
        own = [self._memory.array(dtype) for dtype in (np.int64, np.int64, np.int64, np.bool_)]
        for array in own:
            array.grow(len(slots))
        rows = int((self._places.values[slots] != _NONE).sum())
        columns = {name: self._memory.array(self.rule.dtype, self.rule.width) for name in self._rows.names}
        for array in columns.values():
            array.grow(rows)
        at = 0
        for block in blocks(len(slots)):
            for array, values in zip(own, self._own(slots[block]), strict=True):
                array.values[block[0] : block[-1] + 1] = values
            found = self._columns_at(slots[block])
            for name, values in found.items():
                columns[name].values[at : at + len(values)] = values
            at += len(found[ROW])
            self._memory.settle()
        ids, counts, last, admitted = (array.values[: len(slots)] for array in own)
        kept = {name: array.values[:rows] for name, array in columns.items()}
        return Entries(ids, counts, last, admitted, kept, dict(self.scalars), **log)

    def _own(self, slots: NDArray[np.int64]) -> tuple[Ids, Array, Array, NDArray[np.bool_]]:
        """Return ids, counts, last look-ups, and whether there are rows."""
        return (
            self._slots.ids[slots],
            self._counts.values[slots],
            self._last.values[slots],
            self._places.values[slots] != _NONE,
        )

    def _columns_at(self, slots: NDArray[np.int64]) -> dict[str, Array]:
        places = self._places.values[slots]
        return self._rows.read(places[places != _NONE], used=False)

    def put(self, entries: Entries) -> None:
        """Have other entries, or make a change: remove those that are gone, and write the others."""
        if entries.since:
            self._drop(entries.gone)
        else:
            self._clear()
        self._write(entries)

    def _write(self, entries: Entries) -> None:
        """Have entries, beside others; so many at a time that bounded memory is enough."""
        at = 0
        for begin in range(0, max(1, len(entries.ids)), BLOCK):
            part = slice(begin, begin + BLOCK)
            slots = self._slots_of(entries.ids[part])
            self._counts.values[slots] = entries.counts[part]
            self._last.values[slots] = entries.last[part]
            with_row = slots[entries.admitted[part]]
            rows = slice(at, at + len(with_row))
            self._put_rows(with_row, {name: values[rows] for name, values in entries.columns.items()})
            at += len(with_row)
        self._logged = max(self._logged, entries.logged)
        self._log(entries.gone, entries.gone_at)
        self.scalars = dict(entries.scalars)

    def _slots_of(self, ids: Ids) -> NDArray[np.int64]:
        """Return the numbers of ids; new ones get one."""
        slots = self._slots.find(ids)
        new = slots < 0
        if new.any():
            size = len(self._slots)
            slots[new] = self._slots.add(ids[new])
            total = len(self._slots)
            for array, value in ((self._counts, 0), (self._last, 0), (self._places, _NONE)):
                array.grow(total)
                array.values[size:total] = value
        return slots

    def _find(self, ids: Ids) -> NDArray[np.int64]:
        """Return the numbers of ids; those of the last count need no search in the whole table."""
        recent, slots = self._recent
        if not len(recent):
            return self._slots.find(ids)
        at = np.minimum(np.searchsorted(recent, ids), len(recent) - 1)
        found, other = slots[at], recent[at] != ids
        if other.any():
            found[other] = self._slots.find(ids[other])
        return found

    def _places_of(self, ids: Ids) -> NDArray[np.int64]:
        slots = self._find(ids)
        places = np.full(len(ids), _NONE, np.int64)
        there = slots >= 0
        places[there] = self._places.values[slots[there]]
        return places

    def _put_rows(self, slots: NDArray[np.int64], columns: Mapping[str, Array]) -> None:
        """Write the columns of some slots, which get a place if they have none."""
        new = self._places.values[slots] == _NONE
        first = len(self._rows)
        self._rows.add({name: values[new] for name, values in columns.items()})
        self._places.values[slots[new]] = np.arange(first, len(self._rows))
        if not new.all():
            old = {name: values[~new] for name, values in columns.items()}
            self._rows.write(self._places.values[slots[~new]], old)
