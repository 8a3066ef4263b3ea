"""Optimizers whose step needs sums over weights that one shard does not hold.

LARS and LAMB need the norm of each parameter, L-BFGS dot products of all weights. Each shard works out its
part of the sums, the parts are added, and every shard makes its step with the totals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor


class ReducingOptimizer(torch.optim.Optimizer):
    """An optimizer whose step needs sums over weights that one shard does not hold.

    A subclass gives :meth:`partials` and :meth:`apply`. On a whole model it is an ordinary torch optimizer:
    :meth:`step` calls one after the other. On shards each has an optimizer of its own, loaded with the
    shard's state, and the sums of all are added in between. Both run under ``torch.no_grad()``.

    State may hold tensors of the parameter's number of elements, cut with it, and scalars or small tensors of
    two or no dimensions, which every part has whole.

    Attributes:
        per_parameter: whether the sums are those of each parameter or of all weights.
    """

    per_parameter: ClassVar[bool] = True

    def partials(self) -> Tensor:
        """Return this optimizer's part of the sums; weights stay as they are, moments may change.

        Returns:
            float64. With ``per_parameter`` of shape (number of tensors over all groups in order, k), zeros
            for tensors without a gradient; else of shape (k,), over all tensors. k is the same on all shards.
        """
        raise NotImplementedError

    def apply(self, totals: Tensor) -> None:
        """Update the weights in place.

        Args:
            totals: sums of what :meth:`partials` of all shards has returned, same shape.
        """
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make one step on the whole model; return the loss of ``closure``, which evaluates it again."""
        loss = evaluate(closure)
        self.apply(self.partials())
        return loss

    def members(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """Iterate over all tensors, each with its group, in the order of the rows of the sums."""
        for group in self.param_groups:
            for tensor in group["params"]:
                yield group, tensor


def evaluate(closure: Callable[[], float] | None) -> float | None:
    """Evaluate the model again, with gradients, if a step was asked to."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def norm_squares(first: Tensor, second: Tensor) -> Tensor:
    """Return the squared norms of two tensors, float64 of shape (2,)."""
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in (first, second)]
    return torch.stack(norms).square()


def no_sums(tensor: Tensor) -> Tensor:
    """Return the row of a tensor that adds nothing: zeros, float64 of shape (2,)."""
    return torch.zeros(2, dtype=torch.float64, device=tensor.device)
