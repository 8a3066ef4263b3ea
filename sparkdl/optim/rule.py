"""The update rule: from the gradient of a shard to its new weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl.optim.clip import Clip
from sparkdl.optim.reduction import Reduction
from sparkdl.optim.regularize import regularize
from sparkdl.optim.shard.optimizer import ShardOptimizer, Touched
from sparkdl.optim.spec import OptimizerSpec
from sparkdl.optim.staleness import LATE, Staleness, elements_with_gradient, joined


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """Regularisation, clipping and optimizer, in this order.

    Attributes:
        optimizer: how to build the optimizer; knows the penalties of its groups.
        clip: how the gradient is clipped, if at all.
        staleness: which gradients come late, if any.
        seed: of the random numbers that the optimizer draws, if it draws any.
    """

    optimizer: OptimizerSpec
    clip: Clip | None = None
    staleness: Staleness | None = None
    seed: int = 0

    @property
    def reductions(self) -> int:
        """Number of sums over all shards that an update needs."""
        return self.optimizer.reductions + (0 if self.clip is None else self.clip.reductions)

    def update(
        self,
        shard_optimizer: ShardOptimizer,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        used: NDArray[np.bool_],
        hyper: Sequence[Mapping[str, Any]] = (),
        touched: Touched | None = None,
        late: torch.Tensor | None = None,
        draws: int | None = None,
    ) -> Reduction:
        """Update a shard in place: its weights, its gradient and the optimizer's state.

        Args:
            shard_optimizer: the optimizer on the shard, made from this rule's spec.
            weights: the shard, shape (stop - start,).
            gradient: its gradient, same shape; it is overwritten.
            used: per parameter of the layout, whether it has a gradient.
            hyper: see :meth:`ShardOptimizer.update`.
            touched: see :meth:`ShardOptimizer.update`.
            late: the part of the gradient that waits for the next update, same shape; ``None`` if no
                gradient ever does.
            draws: see :meth:`ShardOptimizer.update`.

        Yields:
            ``reductions`` times partial sums, and is sent their totals over all shards.
        """
        layout, start, stop = shard_optimizer.layout, shard_optimizer.start, shard_optimizer.stop
        if late is not None and self.staleness is not None:
            now = elements_with_gradient(layout, start, stop, used, touched or {})
            late = joined(gradient, late, shard_optimizer.take(LATE, gradient), now, self.staleness.decay)
        penalties = self.optimizer.group_penalties
        regularize(gradient, weights, penalties, layout, start, stop, used)
        if self.clip is not None:
            yield from self.clip.clip(gradient, layout, start, stop, used)
        yield from shard_optimizer.update(weights, gradient, used, hyper, touched, draws)
        if late is not None:
            shard_optimizer.put(LATE, late)
