"""Staleness on purpose: gradients of some partitions enter the weights one update late.

Asynchronous trainers of recommenders let slow workers bring gradients of weights that have changed
meanwhile. *Global batch aggregation* (GBA; Su et al., NeurIPS 2022) gives each gradient a token, the global
batch that it belongs to, adds those of an update up, and lets late ones count less, or not at all. Here a
schedule that follows from the seed says which gradients are late. So a replay gives the same bits, and the
effect of staleness on a model can be measured without the accidents of timing.

A late gradient waits beside the optimizer's state of its weights, under the name :data:`LATE`. It survives,
and moves, with that state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl import seeding
from sparkdl.exceptions import ConfigError, integer_option, is_number
from sparkdl.optim.segments import segments
from sparkdl.wire.layout import ParamLayout
from sparkdl.wire.touched_rows import row_width

LATE = "late"
"""Name of the gradient that waits, in the state of each weight and row."""

_DRAWN = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Lets gradients of some partitions enter the weights one update late.

    In each iteration a gradient is on time, or waits for the update after it, whichever a draw from ``seed``,
    iteration and partition says. A late gradient has its share of the global batch that it belongs to, times
    ``decay``. A row of a table whose gradient waits gets it when it is updated next: it is one update behind,
    whatever the number of iterations in between.

    An iteration takes as long as without: nobody leaves before the others. This is to measure what
    asynchronous training does to the accuracy of a model, and to train as it would.

    Attributes:
        share: share of gradients that are late, from 0 (synchronous, to the bit) to 1.
        decay: factor of late gradients: 1 to take them as they are, 0 to drop them.
        rows_only: whether only rows of embedding variables are updated late, and all other weights on time.
        seed: of the draw.

    Raises:
        ConfigError: if a value cannot work.
    """

    share: float = 1.0
    decay: float = 1.0
    rows_only: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, number in (("share", self.share), ("decay", self.decay)):
            if not is_number(number) or not 0 <= number <= 1:
                raise ConfigError(f"Staleness({name}={number!r}): expected a number from 0 to 1")
        integer_option("Staleness", "seed", self.seed, 0)
        if not isinstance(self.rows_only, bool):
            raise ConfigError(f"Staleness(rows_only={self.rows_only!r}): expected True or False")

    def is_late(self, source: int, iteration: int) -> bool:
        """Return whether a partition's gradient is late.

        Args:
            source: the partition.
            iteration: completed iterations before the one of the gradient.
        """
        return seeding.derive(seeding.STALENESS, self.seed, iteration, source) < self.share * _DRAWN


def joined(
    gradient: torch.Tensor, late: torch.Tensor, before: torch.Tensor, now: torch.Tensor, decay: float
) -> torch.Tensor:
    """Add late gradients of the update before to a gradient, in place; return those that wait now.

    ``now`` tells of which elements there is a gradient in this update; the others go on waiting.
    """
    gradient += torch.where(now, decay * before, 0.0)
    return torch.where(now, late, before)


def elements_with_gradient(
    layout: ParamLayout,
    start: int,
    stop: int,
    used: NDArray[np.bool_],
    touched: Mapping[int, NDArray[np.bool_]],
) -> torch.Tensor:
    """Return which elements [start, stop) have a gradient in this update."""
    found = np.zeros(stop - start, np.bool_)
    for segment in segments(layout, start, stop):
        rows, spec = touched.get(segment.param), layout.params[segment.param]
        own: NDArray[np.bool_] | np.bool_ = used[segment.param]
        if rows is not None and own:
            whole = np.repeat(rows, row_width(spec))
            own = whole[segment.start - spec.offset : segment.stop - spec.offset]
        found[segment.start - start : segment.stop - start] = own
    return torch.from_numpy(found)
