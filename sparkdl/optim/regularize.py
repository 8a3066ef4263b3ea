"""Penalties on the size of weights, added to the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl.exceptions import ConfigError, is_number
from sparkdl.optim.segments import segments
from sparkdl.wire.layout import ParamLayout


@dataclass(frozen=True, slots=True)
class Penalty:
    """Adds ``l1 * sum(|w|) + l2 / 2 * sum(w ** 2)`` to the loss, by its gradient.

    Other than an optimizer's ``weight_decay`` it takes part in clipping.
    """

    l1: float = 0.0  # adds ``l1 * sign(w)`` to the gradient
    l2: float = 0.0  # adds ``l2 * w`` to the gradient

    def __post_init__(self) -> None:
        for name, value in (("l1", self.l1), ("l2", self.l2)):
            if not is_number(value) or not 0 <= value < math.inf:
                raise ConfigError(f"{name}={value!r}: expected a finite number of at least 0")

    def __bool__(self) -> bool:
        return bool(self.l1 or self.l2)


def regularize(
    gradient: torch.Tensor,
    weights: torch.Tensor,
    penalties: Sequence[Penalty],
    layout: ParamLayout,
    start: int,
    stop: int,
    used: NDArray[np.bool_],
) -> None:
    """Add the penalties, one per parameter group, to a shard's gradient, shape (stop - start,), in place.

    ``used`` tells per parameter whether it has a gradient; those without stay without.
    """
    for segment in segments(layout, start, stop):
        penalty = penalties[layout.params[segment.param].group]
        if penalty and used[segment.param]:
            lo, hi = segment.start - start, segment.stop - start
            if penalty.l1:
                gradient[lo:hi].add_(weights[lo:hi].sign(), alpha=penalty.l1)
            if penalty.l2:
                gradient[lo:hi].add_(weights[lo:hi], alpha=penalty.l2)
