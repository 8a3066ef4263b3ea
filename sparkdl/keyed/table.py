"""A table from ids to rows, and what becomes of its entries: admission, updates, eviction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.frame import Array
from sparkdl.keyed.entries import ROW, Entries
from sparkdl.keyed.mix import Ids, initial_rows
from sparkdl.keyed.slots import Slots

_NONE = -1
_LEAST_LOG = 4096
"""So many evictions are remembered in any case; see :meth:`Entries.changed`."""

FreshState = Callable[[Array], Mapping[str, Array]]
"""From new rows to the optimizer's state of each."""


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

    Attributes:
        rule: as given.
        scalars: the optimizer's state of the table as a whole.
    """

    def __init__(self, rule: TableRule) -> None:
        self.rule = rule
        self.scalars: dict[str, Any] = {}
        self._clear()

    def _clear(self) -> None:
        self._slots = Slots()
        self._counts = np.empty(0, np.int64)
        self._last = np.empty(0, np.int64)
        self._places = np.empty(0, np.int64)
        self._rows = 0
        self._gone: Ids = np.empty(0, np.int64)
        self._gone_at = np.empty(0, np.int64)
        self._logged = 0
        self._columns: dict[str, Array] = {ROW: np.empty((0, self.rule.width), self.rule.dtype)}

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same rule; rows are values, and so is the seed, saved with them."""
        if not isinstance(other, KeyedTable):
            return NotImplemented
        return replace(self.rule, seed=0) == replace(other.rule, seed=0)

    __hash__ = object.__hash__

    def __len__(self) -> int:
        """Return how many ids have a row."""
        return self._rows

    @property
    def known(self) -> int:
        """How many ids there are, with and without a row."""
        return len(self._slots)

    @property
    def state_names(self) -> list[str]:
        """Names of the optimizer's state of each row."""
        return [name for name in self._columns if name != ROW]

    @property
    def admitted(self) -> Ids:
        """The ids that have a row, in no order."""
        size = len(self._slots)
        found: Ids = self._slots.ids[self._places[:size] != _NONE]
        return found

    def look_up(self, ids: Ids) -> tuple[NDArray[np.bool_], Array]:
        """Return which ids have a row, and these rows; nothing is counted."""
        places = self._places_of(ids)
        there = places != _NONE
        return there, self._columns[ROW][places[there]]

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
        self._counts[slots] += counts
        self._last[slots] = iteration
        without = self._places[slots] == _NONE
        new = slots[without & (self._counts[slots] >= self.rule.min_count)]
        if len(new):
            rule = self.rule
            rows = initial_rows(rule.seed, self._slots.ids[new], rule.width, rule.std, np.dtype(rule.dtype))
            state = fresh(rows) if self.state_names else {}
            self._put_rows(new, {ROW: rows, **state})
        return len(new)

    def columns_of(self, ids: Ids) -> dict[str, Array]:
        """Return copies of the rows, and of their state, of ids that all have one."""
        places = self._places_of(ids)
        return {name: values[places] for name, values in self._columns.items()}

    def update(self, ids: Ids, columns: Mapping[str, Array], fresh: FreshState, iteration: int) -> None:
        """Write rows, and their state, of ids that all have one.

        Args:
            ids: the ids.
            columns: new values by name.
            fresh: returns the optimizer's state of rows, for columns that are not there yet.
            iteration: completed iterations after this update.
        """
        if columns.keys() - self._columns.keys():
            self._logged = iteration  # all rows change
            begun = fresh(self._columns[ROW])
            self._columns |= {name: np.array(begun[name]) for name in columns.keys() - self._columns.keys()}
        places = self._places_of(ids)
        for name, values in columns.items():
            self._columns[name][places] = values

    def evict(self, iteration: int) -> Ids:
        """Remove entries that the rule evicts before an iteration; return their ids."""
        rule, size = self.rule, len(self._slots)
        if not rule.evicts(iteration):
            return np.empty(0, np.int64)
        out = np.zeros(size, np.bool_)
        if rule.max_age is not None:
            out |= iteration - self._last[:size] > rule.max_age
        if rule.min_norm > 0:
            rows = self._columns[ROW][: self._rows].astype(np.float64)
            small = np.sqrt((rows * rows).sum(1)) < rule.min_norm
            admitted = self._places[:size] != _NONE
            out[admitted] |= small[self._places[:size][admitted]]
        gone = np.sort(self._slots.ids[out])
        self._drop(gone)
        self._log(gone, np.full(len(gone), iteration))
        most = max(_LEAST_LOG, len(self._slots))
        if len(self._gone) > most:
            self._logged = max(self._logged, int(self._gone_at[-most - 1]) + 1)
            self._log(gone[:0], gone[:0])
        return gone

    def _drop(self, ids: Ids) -> None:
        """Remove entries."""
        slots = self._slots.find(ids)
        if not (slots >= 0).any():
            return
        kept = self.entries()
        chosen = np.ones(len(kept.ids), np.bool_)
        chosen[slots[slots >= 0]] = False
        self._clear()
        self._write(kept.where(chosen))

    def _log(self, gone: Ids, at: NDArray[np.int64]) -> None:
        """Note evictions, and forget those that are not asked for any more."""
        gone, at = np.concatenate([self._gone, gone]), np.concatenate([self._gone_at, at])
        known = at >= self._logged
        self._gone, self._gone_at = gone[known], at[known]

    def entries(self) -> Entries:
        """Return all entries, as views where possible."""
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
        found = self._entries(self._slots.find(ids))
        return replace(found, gone=gone, gone_at=at, since=max(1, iteration))

    def changed(self, since: int) -> Entries:
        """Return what has changed since so many completed iterations; see :meth:`Entries.changed`."""
        if not since or since < self._logged:
            return self.entries()
        size = len(self._slots)
        return self._entries(np.flatnonzero(self._last[:size] >= since)).changed(since)

    def _entries(self, slots: NDArray[np.int64]) -> Entries:
        places = self._places[slots]
        admitted = places != _NONE
        rows = places[admitted]
        return Entries(
            self._slots.ids[slots],
            self._counts[slots],
            self._last[slots],
            admitted,
            {name: values[rows] for name, values in self._columns.items()},
            dict(self.scalars),
            self._gone,
            self._gone_at,
            logged=self._logged,
        )

    def put(self, entries: Entries) -> None:
        """Have other entries, or make a change: remove those that are gone, and write the others."""
        if entries.since:
            self._drop(entries.gone)
        else:
            self._clear()
        self._write(entries)

    def _write(self, entries: Entries) -> None:
        slots = self._slots_of(entries.ids)
        self._counts[slots] = entries.counts
        self._last[slots] = entries.last
        self._put_rows(slots[entries.admitted], entries.columns)
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
            self._counts = _grown(self._counts, total)
            self._last = _grown(self._last, total)
            self._places = _grown(self._places, total)
            self._counts[size:total] = 0
            self._last[size:total] = 0
            self._places[size:total] = _NONE
        return slots

    def _places_of(self, ids: Ids) -> NDArray[np.int64]:
        slots = self._slots.find(ids)
        there = slots >= 0
        places = np.full(len(ids), _NONE, np.int64)
        places[there] = self._places[slots[there]]
        return places

    def _put_rows(self, slots: NDArray[np.int64], columns: Mapping[str, Array]) -> None:
        """Write the columns of some slots, which get a place if they have none."""
        new = slots[self._places[slots] == _NONE]
        first, self._rows = self._rows, self._rows + len(new)
        self._places[new] = np.arange(first, self._rows)
        for name, values in columns.items():
            own = self._columns.get(name)
            if own is None:
                own = np.empty((0, self.rule.width), values.dtype)
            self._columns[name] = _grown(own, self._rows)
        places = self._places[slots]
        for name, values in columns.items():
            self._columns[name][places] = values


def _grown(values: Array, size: int) -> Array:
    """Return an array with room for so many elements, and for as many again when it has to grow."""
    if size <= len(values):
        return values
    grown = np.empty((max(size, 2 * len(values)), *values.shape[1:]), values.dtype)
    grown[: len(values)] = values
    return grown
