"""Summing gradients and averaging buffers, always in the order of the source partitions.

Frames arrive in any order; floating-point addition is not associative. Sorting first is what makes
two runs equal to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparkdl import buffers
from sparkdl.frame import Array

_BLOCK = 1 << 16
"""So many numbers are summed over all sources while they are in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one source partition contributes.

    Attributes:
        source: source partition.
        weight: number of samples, or sum of their weights.
        values: its mean gradient, or its buffers.
    """

    source: int
    weight: float
    values: Array


def weighted_mean(parts: Sequence[Part]) -> Array:
    """Return the mean of the parts by weight, summed in source order, as a fresh array.

    A single part is returned as it is, bit for bit.
    """
    ordered = sorted(parts, key=lambda part: part.source)
    if len(ordered) == 1:
        return buffers.copy(ordered[0].values)
    total = sum(part.weight for part in ordered)
    scale = ordered[0].values.dtype.type
    (first, share), *others = [(part.values, scale(part.weight / total)) for part in ordered]
    mean = buffers.empty_like(first)
    scaled = np.empty(min(len(mean), _BLOCK), mean.dtype)
    for start in range(0, len(mean), _BLOCK):
        stop = min(start + _BLOCK, len(mean))
        np.multiply(first[start:stop], share, out=mean[start:stop])
        for values, weight in others:
            mean[start:stop] += np.multiply(values[start:stop], weight, out=scaled[: stop - start])
    return mean


def weighted_drift(start: Array, parts: Sequence[Part]) -> Array:
    """Average buffers as ``x0 + sum(w·(x - x0))``: equal parts stay equal to the bit.

    Args:
        start: values before the iteration, for when nobody contributes.
        parts: values after it, by source.
    """
    if not parts:
        return start
    ordered = sorted(parts, key=lambda part: part.source)
    total = sum(part.weight for part in ordered)
    first = np.array(ordered[0].values)
    result = first.copy()
    for part in ordered[1:]:
        # Where equal, also where both are infinite, there is no difference to add.
        drift = np.zeros_like(first)
        np.subtract(part.values, first, out=drift, where=part.values != first)
        result += drift * result.dtype.type(part.weight / total)
    return result
