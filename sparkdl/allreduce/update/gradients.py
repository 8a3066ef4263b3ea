"""The gradients of one shard: one per source, or one after their mean."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sparkdl.allreduce.messages import Shard
from sparkdl.allreduce.update.mean import (
    NonFiniteMeanError,
    Part,
    first_non_finite,
    non_finite_sources,
    weighted_mean,
)
from sparkdl.compute.problems import NonFiniteGradient
from sparkdl.compute.spec import Combine
from sparkdl.frame import Array
from sparkdl.held import Owned
from sparkdl.layout import ParamLayout
from sparkdl.optim.staleness import Staleness
from sparkdl.rows import Rows


@dataclass(slots=True)
class Gradients:
    """The gradients of elements [start, stop).

    Attributes:
        layout: layout of the flat vectors.
        start: first element.
        stop: one past the last one.
        parts: gradients in source order.
        used: per parameter, whether any source has a gradient.
        touched: rows with a gradient, by parameter, of row-sparse gradients.
        late: the part of the mean that waits for the next update; ``None`` if no gradient ever does.
    """

    layout: ParamLayout
    start: int
    stop: int
    parts: list[Part]
    used: NDArray[np.bool_]
    touched: dict[int, NDArray[np.bool_]]
    late: Array | None = field(default=None)

    @classmethod
    def of(cls, shards: Sequence[Shard], layout: ParamLayout, start: int, stop: int) -> Gradients:
        """Decode at least one source's gradient."""
        shards = sorted(shards, key=lambda shard: shard.source)
        sparse = [shard.rows(layout) for shard in shards]
        parts = [Part(s.source, s.weight, s.values(layout, start, stop)) for s in shards]
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
        return cls(layout, start, stop, parts, used, touched)

    def prepare(
        self, combine: Combine, iteration: int, staleness: Staleness | None = None
    ) -> NonFiniteGradient | None:
        """Look for NaN and take the mean, if that is how they are combined.

        Args:
            combine: how they are combined.
            iteration: completed iterations.
            staleness: which of them come late, if any do.

        Returns:
            The problem, if there is one.
        """
        if combine == "mean":
            try:
                if staleness is None:
                    mean = weighted_mean(self.parts)
                else:
                    late = [staleness.is_late(part.source, iteration) for part in self.parts]
                    mean, self.late = (self._share_of(late, which) for which in (False, True))
            except NonFiniteMeanError as error:
                return self._non_finite(iteration, error.index, error.sources)
            self.parts = [Part(self.parts[0].source, sum(p.weight for p in self.parts), Owned(mean))]
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
        rows = Rows(self.layout, tables)
        for part in self.parts:
            yield Shard.of(part.source, part.weight, part.array, self.used, rows, self.start)

    def _non_finite(self, iteration: int, index: int, sources: Sequence[int]) -> NonFiniteGradient:
        """Name the parameter and the sources whose gradient is NaN or infinite."""
        parameter = self.layout.param_at(self.start + index).name
        return NonFiniteGradient(iteration, parameter, tuple(sources))


def checksum(shards: Sequence[Shard]) -> int:
    """Return a checksum of the sources and weights: equal for all shards, unless a source ran twice.

    The pairs themselves would be partitions times shards numbers for the driver, in each iteration.
    """
    pairs = sorted([shard.source, shard.weight] for shard in shards)
    return zlib.crc32(np.array(pairs, np.float64).tobytes())
