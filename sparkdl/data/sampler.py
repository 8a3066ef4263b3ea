"""The rows of each iteration, and how they are read: from the partition store, or from the files of a scan.

An epoch of n rows has T = ceil(n / batch_size) iterations and visits every row exactly once. Which rows
share a batch is the same for any number of partitions, if rows were dealt to these: see
:mod:`sparkdl.data.streams`. The partitions of a source that keeps its own, of series, of folds each have a
permutation: iteration t takes rows floor(t·n_p/T) up to floor((t+1)·n_p/T) of partition p's, so every
partition, however large, is spread evenly over the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparkdl import seeding
from sparkdl.data.columns import TablePlan
from sparkdl.data.scan.reader import reader_of
from sparkdl.data.store.partition import Token, read_positions, read_rows
from sparkdl.data.streams import FROM_THE_BEGINNING, Dealt, Epoch, Since, epoch_of
from sparkdl.wire.frame import Array

Indices = NDArray[Any]


def iterations_per_epoch(rows: int, batch_size: int) -> int:
    """Return T = ceil(rows / batch_size)."""
    return -(-rows // batch_size)


def share(partition_rows: int, iterations: int, t: int) -> tuple[int, int]:
    """Return the range of a partition's permutation that iteration ``t`` takes."""
    return t * partition_rows // iterations, (t + 1) * partition_rows // iterations


def global_rows(partition_rows: Sequence[int], iterations: int, t: int) -> int:
    """Return the number of rows of iteration ``t`` over all partitions."""
    return sum(hi - lo for lo, hi in (share(n, iterations, t) for n in partition_rows))


_REMEMBERED = 1 << 30  # so many bytes of orders a process remembers: a task may run many partitions in turn


_Known = TypeVar("_Known", Indices, Epoch)


class _Latest(Generic[_Known]):
    """Remembers for each partition used lately the latest order, and what it is of; the last one always."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Hashable, _Known]] = {}

    def get(self, partition: Hashable, of: Hashable, make: Callable[[], _Known]) -> _Known:
        """Return the order, which is made if another one is the latest."""
        known = self._known.pop(partition, None)
        if known is None or known[0] != of:
            known = of, make()
        self._known[partition] = known  # used last
        total = sum(order.nbytes for _, order in list(self._known.values()))
        for outdated, (_, order) in list(self._known.items())[:-1]:
            if total <= _REMEMBERED:
                break
            self._known.pop(outdated, None)
            total -= order.nbytes
        return known[1]


_orders: _Latest[Indices] = _Latest()
_epochs: _Latest[Epoch] = _Latest()


def permutation(rows: int, seed: int, epoch: int, partition: int) -> Indices:
    """Return the order in which an epoch visits a partition's rows."""
    return _orders.get((rows, seed, partition), epoch, lambda: seeding.shuffled(rows, seed, epoch, partition))


def rows_of(
    partition_rows: int, iterations: int, t: int, *, seed: int, epoch: int, partition: int, shuffle: bool
) -> Indices:
    """Return the row numbers that a partition contributes to iteration ``t`` of an epoch."""
    lo, hi = share(partition_rows, iterations, t)
    if lo == hi:
        return np.empty(0, np.int32)
    return permutation(partition_rows, seed, epoch, partition)[lo:hi] if shuffle else np.arange(lo, hi)


@dataclass(frozen=True, slots=True)
class EpochPlace:
    """An iteration's place in its epoch."""

    epoch: int  # completed epochs
    step: int  # completed iterations of the epoch
    steps: int  # iterations of the epoch
    total: int = 0  # rows of all partitions
    # from where on the epoch has so many iterations; its beginning, if rows were not dealt
    since: Since = FROM_THE_BEGINNING

    def rows(self, token: Token, seed: int, shuffle: bool) -> Rows:
        """Return a partition's rows of this iteration; PartitionMissingError if a manifest is not here."""
        if token.scan:
            slots = self.since.slots(self.total, self.steps, self.step)
            return reader_of(token).in_epoch(slots, seed, self.epoch, shuffle, token.partition, token.dealt)
        return StoredRows(token, self._numbers(token, seed, shuffle))

    def _numbers(self, token: Token, seed: int, shuffle: bool) -> Array:
        """Return the numbers in a partition's files of its rows among the slots of the iteration."""
        if not token.dealt:
            place = {"seed": seed, "epoch": self.epoch, "partition": token.partition}
            return rows_of(token.rows, self.steps, self.step, shuffle=shuffle, **place)
        dealt = Dealt(self.total, token.partition, token.dealt)
        found = _epochs.get(
            (dealt, seed, shuffle), self.epoch, lambda: epoch_of(dealt, seed, self.epoch, shuffle)
        )
        return found.rows(self.since.slots(self.total, self.steps, self.step))


class Rows(Protocol):
    """Some rows of a partition, in some order."""

    def __len__(self) -> int: ...

    @property
    def numbers(self) -> Array:
        """Their numbers: in the partition's files, or over all files of a scan."""

    def read(self, keys: Collection[str] | None = None) -> dict[str, Array]:
        """Gather them into fresh arrays by column key, of all columns or of some.

        Raises PartitionMissingError if their files are not here, DataError if a scan's rows are no tensors.
        """

    def positions(self) -> Array:
        """Return where they stand in the source, int64 growing in its order; or PartitionMissingError."""

    def name(self, plan: TablePlan, index: int) -> str:
        """Name one of them, for errors."""

    def file_bytes(self) -> int:
        """Return the bytes of a table's files that this process has begun to read since the last call."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of the partition store; see :class:`Rows`."""

    token: Token
    numbers: Array

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, keys: Collection[str] | None = None) -> dict[str, Array]:
        """See :class:`Rows`."""
        return read_rows(self.token, self.numbers, keys)

    def positions(self) -> Array:
        """See :class:`Rows`."""
        return read_positions(self.token, self.numbers)

    def name(self, plan: TablePlan, index: int) -> str:
        """See :class:`Rows`."""
        return plan.name_row(int(read_positions(self.token, self.numbers[index : index + 1])[0]))

    def file_bytes(self) -> int:
        """See :class:`Rows`; the store's own files do not count."""
        return 0


def in_order(token: Token, first: int = 0, size: int | None = None) -> Rows:
    """Return ``size`` rows from a row on, fewer at the end; PartitionMissingError if no manifest is here."""
    stop = token.rows if size is None else min(first + size, token.rows)
    if token.scan:
        return reader_of(token).in_order(token.first + first, token.first + stop)
    return StoredRows(token, np.arange(first, stop))
