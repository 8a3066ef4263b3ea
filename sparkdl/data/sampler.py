"""Which rows belong to which iteration.

An epoch visits every row exactly once. With n rows and T = ceil(n / batch_size) iterations,
iteration t takes rows floor(t·n_p/T) up to floor((t+1)·n_p/T) of partition p's permutation for
that epoch, so every partition, however large, is spread evenly over the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl import seeding

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


@lru_cache(maxsize=4)  # a worker serves few partitions at a time; each entry is n integers
def permutation(rows: int, seed: int, epoch: int, partition: int) -> Indices:
    """Return the order in which an epoch visits a partition's rows (numpy's PCG64 shuffle)."""
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
