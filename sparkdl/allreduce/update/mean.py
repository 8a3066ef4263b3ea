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
from sparkdl.held import Held, Owned

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
    values: Held[Array]

    @property
    def array(self) -> Array:
        """The values, to be read."""
        return self.values.value


class NonFiniteMeanError(Exception):
    """Says that a mean is NaN or infinite.

    Args:
        index: the first such element.
        sources: the sources that are so there.
    """

    def __init__(self, index: int, sources: list[int]) -> None:
        super().__init__(f"element {index}, sources {sources}")
        self.index = index
        self.sources = sources


def weighted_mean(parts: Sequence[Part], total: float | None = None) -> Array:
    """Return the mean of the parts by weight, summed in source order; the caller may overwrite it.

    A single part is returned as it is, bit for bit.

    Args:
        parts: at least one; the mean takes the memory of the first one that is owned.
        total: the sum of all weights, if these are not all parts: their share of the mean is returned then.

    Raises:
        NonFiniteMeanError: if an element is NaN or infinite.
    """
    ordered = sorted(parts, key=lambda part: part.source)
    values = [part.array for part in ordered]
    mean = next((part.array for part in ordered if isinstance(part.values, Owned)), None)
    if mean is None:
        mean = buffers.empty_like(values[0])
    total = sum(part.weight for part in ordered) if total is None else total
    scale = mean.dtype.type
    shares = [scale(part.weight / total) for part in ordered]
    summed, scaled = np.empty((2, min(len(mean), _BLOCK)), mean.dtype)
    for start in range(0, len(mean), _BLOCK):
        blocks = [own[start : start + _BLOCK] for own in values]
        found = blocks[0]
        if len(blocks) > 1 or shares[0] != 1:
            found = np.multiply(blocks[0], shares[0], out=summed[: len(found)])
            for block, share in zip(blocks[1:], shares[1:], strict=True):
                found += np.multiply(block, share, out=scaled[: len(found)])
        bad = first_non_finite(found)  # while it is in the processor's cache
        if bad is not None:
            raise NonFiniteMeanError(start + bad, non_finite_sources(ordered, start + bad))
        mean[start : start + _BLOCK] = found
    return mean


def first_non_finite(values: Array) -> int | None:
    """Return the first element that is NaN or infinite; ``None`` if all are numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(values)  # one pass; NaN and infinity survive a sum, and a sum is rarely too large
    if np.isfinite(total):
        return None
    bad = np.flatnonzero(~np.isfinite(values))
    return int(bad[0]) if len(bad) else None


def non_finite_sources(parts: Sequence[Part], index: int) -> list[int]:
    """Return the sources in whose values an element is NaN or infinite."""
    return [part.source for part in parts if not np.isfinite(part.array[index])]


def weighted_drift(start: Array, parts: Sequence[Part]) -> Array:
    """Average buffers as ``x0 + sum(w·(x - x0))``: equal parts stay equal to the bit.

    Args:
        start: values before the iteration; the result if there are no parts.
        parts: values after it, by source.
    """
    if not parts:
        return start
    ordered = sorted(parts, key=lambda part: part.source)
    total = sum(part.weight for part in ordered)
    first = np.array(ordered[0].array)
    result = first.copy()
    for part in ordered[1:]:
        # Where equal, also where both are infinite, there is no difference to add.
        drift = np.zeros_like(first)
        np.subtract(part.array, first, out=drift, where=part.array != first)
        result += drift * result.dtype.type(part.weight / total)
    return result
