"""Cutting the flat vector into slices, one per parameter-sync task."""

from __future__ import annotations

from itertools import pairwise

from sparkdl.layout import ParamLayout

MAX_SLICE_BYTES = 64 << 20
"""An executor's heap holds several frames of a slice at a time, its moments among them: with slices of
200 MB, 4 GiB were not enough. And no frame comes near the 2 GiB that a JVM array can hold."""


def bounds(numel: int, slices: int) -> list[tuple[int, int]]:
    """Return [start, stop) of each slice; the first ``numel % slices`` are one element longer."""
    size, longer = divmod(numel, slices)
    starts = [n * size + min(n, longer) for n in range(slices + 1)]
    return list(pairwise(starts))


def count(layout: ParamLayout, partitions: int) -> int:
    """Choose the number of slices: one per partition, more where a slice would be too large."""
    needed = -(-layout.nbytes // MAX_SLICE_BYTES)
    return min(max(partitions, needed), layout.numel)
