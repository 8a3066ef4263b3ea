"""The rows of each iteration.

An epoch visits every row exactly once. With n rows and T = ceil(n / batch_size) iterations,
iteration t takes rows floor(t·n_p/T) up to floor((t+1)·n_p/T) of partition p's permutation for
that epoch, so every partition, however large, is spread evenly over the epoch.

When the partitions change in the middle of an epoch, that no longer tells which rows were visited. The rows
that were not are then named by their positions in the source, which no move changes: a *cursor*. The
rest of the epoch visits these rows, each once, and the next epoch is an ordinary one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl import seeding
from sparkdl.access.base import BytesRef
from sparkdl.data.store import partition as store
from sparkdl.data.store.partition import Token
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


_REMEMBERED = 1 << 30
"""So many bytes of orders a process remembers: a task may run many partitions in turn."""


class _Latest:
    """Remembers for each partition that was used lately the latest array, and what it is of.

    The one that was used last is kept, however large it is.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Hashable, Array]] = {}

    def get(self, partition: Hashable, of: Hashable, make: Callable[[], Array]) -> Array:
        """Return the array, which is made if another one is the latest."""
        known = self._known.pop(partition, None)
        if known is None or known[0] != of:
            known = of, make()
        self._known[partition] = known  # used last
        total = sum(array.nbytes for _, array in list(self._known.values()))
        for outdated, (_, array) in list(self._known.items())[:-1]:
            if total <= _REMEMBERED:
                break
            self._known.pop(outdated, None)
            total -= array.nbytes
        return known[1]


_orders, _left = _Latest(), _Latest()


def permutation(rows: int, seed: int, epoch: int, partition: int) -> Indices:
    """Return the order in which an epoch visits a partition's rows (numpy's PCG64 shuffle)."""
    return _orders.get((rows, seed, partition), epoch, lambda: _shuffled(rows, seed, epoch, partition))


def _shuffled(rows: int, seed: int, epoch: int, partition: int) -> Indices:
    generator = np.random.Generator(np.random.PCG64(seeding.derive(seeding.ORDER, seed, epoch, partition)))
    order = np.arange(rows, dtype=np.int32 if rows < 2**31 else np.int64)
    generator.shuffle(order)
    order.flags.writeable = False
    return order


def rows_of(
    partition_rows: int, iterations: int, t: int, *, seed: int, epoch: int, partition: int, shuffle: bool
) -> Indices:
    """Return the row numbers that a partition contributes to iteration ``t`` of an epoch."""
    lo, hi = share(partition_rows, iterations, t)
    if lo == hi:
        return np.empty(0, np.int32)
    return _order(partition_rows, seed, epoch, partition, shuffle)[lo:hi]


def rows_left(
    partition_rows: int, iterations: int, t: int, *, seed: int, epoch: int, partition: int, shuffle: bool
) -> Indices:
    """Return the row numbers that a partition contributes to iteration ``t`` and those after it."""
    lo, _ = share(partition_rows, iterations, t)
    return _order(partition_rows, seed, epoch, partition, shuffle)[lo:]


def _order(rows: int, seed: int, epoch: int, partition: int, shuffle: bool) -> Indices:
    return permutation(rows, seed, epoch, partition) if shuffle else np.arange(rows, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class CursorRef:
    """What a task needs to find the rows that are left of an epoch."""

    first: int
    left: BytesRef

    def rows(self, token: Token) -> Array:
        """Return the numbers of a partition's rows that are left, ascending.

        Raises:
            PartitionMissingError: if the partition's files are not on this executor.
        """
        return _left.get(token.partition, (self.left, token), lambda: _rows_among(self.left, token))


def _rows_among(sent: BytesRef, token: Token) -> Array:
    left = np.frombuffer(sent.read(), np.int64)
    found = store.read_positions(token, token.in_order())
    return np.flatnonzero(np.isin(found, left, assume_unique=True))


@dataclass(frozen=True, slots=True)
class Place:
    """An iteration's place in its epoch.

    Attributes:
        epoch: completed epochs.
        step: completed iterations of the epoch.
        steps: iterations of the epoch.
        cursor: the rows that remain in the epoch, if rows have moved.
    """

    epoch: int
    step: int
    steps: int
    cursor: CursorRef | None = None

    def rows(self, token: Token, seed: int, shuffle: bool) -> Array:
        """Return the row numbers that a partition contributes to this iteration."""
        return self._pick(rows_of, token, seed, shuffle)

    def rows_left(self, token: Token, seed: int, shuffle: bool) -> Array:
        """Return the row numbers that it contributes to this iteration and those after it."""
        return self._pick(rows_left, token, seed, shuffle)

    def _pick(self, which: Any, token: Token, seed: int, shuffle: bool) -> Array:
        first = self.cursor.first if self.cursor is not None else 0
        among = self.cursor.rows(token) if self.cursor is not None else None
        rows: Array = which(
            token.rows if among is None else len(among),
            self.steps - first,
            self.step - first,
            seed=seed,
            epoch=self.epoch,
            partition=token.partition,
            shuffle=shuffle,
        )
        return rows if among is None else among[rows]
