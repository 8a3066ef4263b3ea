"""Gradients of a shard, and changed buffers, of all ranks: combined in the order of the ranks.

Frames arrive in any order, and floating-point addition is not associative. Sorting by source first is what
makes two runs equal to the bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl.allreduce.messages import Report, Reports, Shard
from sparkdl.compute.problems import NonFiniteGradient
from sparkdl.compute.spec import Combine
from sparkdl.optim.staleness import Staleness
from sparkdl.wire import buffers
from sparkdl.wire.frame import Array
from sparkdl.wire.held import Held, Owned, Shared
from sparkdl.wire.layout import ParamLayout
from sparkdl.wire.touched_rows import TouchedRows

_BLOCK = 1 << 16  # so many numbers are summed over all sources while they are in the processor's cache


@dataclass(frozen=True, slots=True)
class WeightedPart:
    """What one source partition contributes to a mean."""

    source: int  # the partition
    weight: float  # number of samples, or sum of their weights
    values: Held[Array]  # its mean gradient, or its buffers

    @property
    def array(self) -> Array:
        """The values, to be read."""
        return self.values.value


class NonFiniteMeanError(Exception):
    """Says that a mean is NaN or infinite."""

    def __init__(self, index: int, sources: list[int]) -> None:
        super().__init__(f"element {index}, sources {sources}")
        self.index = index
        self.sources = sources


@dataclass(slots=True)
class Gradients:
    """The gradients of elements from ``start`` on."""

    layout: ParamLayout  # of the flat vectors
    start: int  # first element
    parts: list[WeightedPart]  # gradients in source order
    used: NDArray[np.bool_]  # per parameter, whether any source has a gradient
    touched: dict[int, NDArray[np.bool_]]  # rows with a gradient, by parameter, of row-sparse gradients
    # the part of the mean that waits for the next update; ``None`` if no gradient ever does
    late: Array | None = field(default=None)
    # in place of parts the gradient of the only source, where it was computed
    unsent: torch.Tensor | None = field(default=None)

    @classmethod
    def of(cls, shards: Sequence[Shard], layout: ParamLayout, start: int, stop: int) -> Gradients:
        """Decode at least one source's gradient."""
        shards = sorted(shards, key=lambda shard: shard.source)
        sparse = [shard.rows(layout) for shard in shards]
        parts = [WeightedPart(s.source, s.weight, s.values(layout, start, stop)) for s in shards]
        used = np.logical_or.reduce([shard.used for shard in shards])
        # A source that has used a table without naming rows may have touched them all.
        tables = {index for rows in sparse for index in rows.tables}
        for shard, rows in zip(shards, sparse, strict=True):
            tables -= {i for i in tables if shard.used[i] and i not in rows.tables}
        touched: dict[int, NDArray[np.bool_]] = {}
        for index in tables:
            touched[index] = np.zeros(layout.params[index].shape[0], np.bool_)
            for rows in sparse:
                touched[index][rows.tables.get(index, [])] = True
        return cls(layout, start, parts, used, touched)

    def prepare(
        self, combine: Combine, iteration: int, staleness: Staleness | None = None
    ) -> NonFiniteGradient | None:
        """Look for NaN and take the mean, if that is how they are combined."""
        if self.unsent is not None:
            bad = first_non_finite_of(self.unsent)
            return None if bad is None else self._non_finite(iteration, bad, [0])
        if combine == "mean":
            try:
                if staleness is None:
                    mean = weighted_mean(self.parts)
                else:
                    late = [staleness.is_late(part.source, iteration) for part in self.parts]
                    mean, self.late = (self._share_of(late, which) for which in (False, True))
            except NonFiniteMeanError as error:
                return self._non_finite(iteration, error.index, error.sources)
            self.parts = [WeightedPart(self.parts[0].source, sum(p.weight for p in self.parts), Owned(mean))]
            return None
        for part in self.parts:
            bad = first_non_finite(part.array)
            if bad is not None:
                return self._non_finite(iteration, bad, non_finite_sources(self.parts, bad))
        return None

    def _share_of(self, late: Sequence[bool], which: bool) -> Array:
        """Return the part of the mean that the late gradients have, or those that are on time."""
        chosen = [part for part, own in zip(self.parts, late, strict=True) if own == which]
        if not chosen:
            return np.zeros_like(self.parts[0].array)
        return weighted_mean(chosen, sum(part.weight for part in self.parts))

    def shards(self) -> Iterator[Shard]:
        """Return them as messages, for the next phase."""
        tables = {index: np.flatnonzero(mask) for index, mask in self.touched.items()}
        rows = TouchedRows(self.layout, tables)
        for part in self.parts:
            yield Shard.of(part.source, part.weight, part.array, self.used, rows, self.start)

    def _non_finite(self, iteration: int, index: int, sources: Sequence[int]) -> NonFiniteGradient:
        parameter = self.layout.param_at(self.start + index).name
        return NonFiniteGradient(iteration, parameter, tuple(sources))


def checksum(sources: Iterable[tuple[int, float]]) -> int:
    """Return a checksum of sources with their weights: equal for all shards, unless a source ran twice.

    The pairs themselves would be partitions times shards numbers for the driver, in each iteration.
    """
    return zlib.crc32(np.array(sorted(sources), np.float64).tobytes())


def weighted_mean(parts: Sequence[WeightedPart], total: float | None = None) -> Array:
    """Return the mean of the parts by weight, summed in source order; the caller may overwrite it.

    It takes the memory of the first part that is owned; a single part is returned as it is, bit for bit. With
    ``total``, the sum of all weights, their share of the mean is returned.
    """
    ordered = sorted(parts, key=lambda part: part.source)
    values = [part.array for part in ordered]
    mean = next((part.array for part in ordered if isinstance(part.values, Owned)), None)
    if mean is None:
        mean = buffers.empty_like(values[0])
    total = sum(part.weight for part in ordered) if total is None else total
    scale = mean.dtype.type
    # Class weights below 0 can add up to 0: the mean is infinite then, as torch's is.
    shares = [scale(part.weight / total if total else np.inf) for part in ordered]
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


def first_non_finite_of(values: torch.Tensor) -> int | None:
    """Return what :func:`first_non_finite` does, on any device."""
    if values.device.type == "cpu":
        return first_non_finite(values.numpy())
    if torch.isfinite(values.sum()):
        return None
    bad = torch.isfinite(values).logical_not_().nonzero()
    return int(bad[0]) if len(bad) else None


def non_finite_sources(parts: Sequence[WeightedPart], index: int) -> list[int]:
    """Return the sources in whose values an element is NaN or infinite."""
    return [part.source for part in parts if not np.isfinite(part.array[index])]


def combine_reports(reports: Sequence[Report], buffers: Array, counters: Array) -> Reports:
    """Put the reports of all partitions together, and average the buffers that they have changed.

    Of counters, integer and boolean buffers, the largest are taken.
    """
    reports = sorted(reports, key=lambda report: report.source)
    active = [report for report in reports if report.weight > 0]
    arrays: dict[str, Array] = {}
    if any("buffers" in report.buffers for report in active):
        parts = [WeightedPart(r.source, r.weight, Shared(r.buffers.get("buffers", buffers))) for r in active]
        arrays["buffers"] = weighted_drift(parts)
    if any("counters" in report.buffers for report in active):
        arrays["counters"] = np.maximum.reduce([r.buffers.get("counters", counters) for r in active])
    return Reports([report.scalars() for report in reports], arrays)


def weighted_drift(parts: Sequence[WeightedPart]) -> Array:
    """Average buffers as ``x0 + sum(w·(x - x0))``: equal parts stay equal to the bit."""
    ordered = sorted(parts, key=lambda part: part.source)
    total = sum(part.weight for part in ordered)
    first = np.array(ordered[0].array)
    result = first.copy()
    for part in ordered[1:]:
        result += _difference(part.array, first) * result.dtype.type(part.weight / total)
    return result


def average_buffers(before: Array | None, buffers: Array, weight: float) -> Array | None:
    """Let new buffers enter their average; they are small and at hand on the driver."""
    if not weight:
        return before
    if before is None or weight == 1.0:
        return buffers
    average: Array = before + before.dtype.type(weight) * _difference(buffers, before)
    return average


def _difference(after: Array, before: Array) -> Array:
    """Return what has been added; nothing where both are equal, also where both are infinite."""
    drift = np.zeros_like(before)
    np.subtract(after, before, out=drift, where=after != before)
    return drift
