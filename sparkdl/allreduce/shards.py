"""Cutting the flat vector into shards."""

from __future__ import annotations

from itertools import pairwise

from sparkdl.wire.layout import ParamLayout

MAX_SHARD_BYTES = 64 << 20
"""An executor's heap holds several frames of a shard at a time, its moments among them: with shards of
200 MB, 4 GiB were not enough. And no frame comes near the 2 GiB that a JVM array can hold."""


def bounds(numel: int, count: int) -> list[tuple[int, int]]:
    """Return [start, stop) of each shard; the first ``numel % count`` are one element longer."""
    size, longer = divmod(numel, count)
    starts = [n * size + min(n, longer) for n in range(count + 1)]
    return list(pairwise(starts))


def count(layout: ParamLayout, partitions: int) -> int:
    """Choose the number of shards: one per partition, more where a shard would be too large."""
    needed = -(-layout.nbytes // MAX_SHARD_BYTES)
    return min(max(partitions, needed), layout.numel)
