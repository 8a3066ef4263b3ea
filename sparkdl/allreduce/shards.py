"""Cutting the flat vector into shards."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter

from sparkdl.wire.layout import ParamLayout

MAX_SHARD_BYTES = 64 << 20
"""An executor's heap holds several frames of a shard at a time, its moments among them: with shards of
200 MB, 4 GiB were not enough. And no frame comes near the 2 GiB that a JVM array can hold."""


def bounds(layout: ParamLayout, count: int) -> list[tuple[int, int]]:
    """Return [start, stop) of each shard.

    The first ``numel % count`` are one element longer. A border within a stretch that may not be cut moves to
    the nearer of its ends, so that shards may be empty.
    """
    size, longer = divmod(layout.numel, count)
    starts = [n * size + min(n, longer) for n in range(count + 1)]
    return list(pairwise(_moved(layout.uncut, start) for start in starts))


def _moved(uncut: Sequence[tuple[int, int]], border: int) -> int:
    index = bisect_right(uncut, border, key=itemgetter(0)) - 1
    if index < 0:
        return border
    start, stop = uncut[index]
    if border >= stop:
        return border
    return start if border - start <= stop - border else stop


def largest(layout: ParamLayout, count: int) -> int:
    """Return the bytes of the largest shard, about: those of an even share, if shards may end anywhere."""
    even = layout.nbytes // count
    if not layout.uncut:
        return even
    return max(even, *((stop - start) * layout.itemsize for start, stop in bounds(layout, count)))


def count(layout: ParamLayout, partitions: int) -> int:
    """Choose the number of shards: one per partition, more where a shard would be too large."""
    needed = -(-layout.nbytes // MAX_SHARD_BYTES)
    return min(max(partitions, needed), layout.numel)
