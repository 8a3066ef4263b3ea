"""L-BFGS on shards: the two-loop recursion on dot products instead of vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sparkdl.optim.reducing import ReducingOptimizer

_MIN_CURVATURE = 1e-10


class LBFGS(ReducingOptimizer):
    """Limited-memory BFGS, one update per gradient, without a line search.

    The same steps as ``torch.optim.LBFGS(max_iter=1, line_search_fn=None)``, up to rounding. It is meant for
    gradients of the whole data: those of small batches make poor estimates of the curvature.

    The direction is a combination of the last moves s, the changes y of the gradient that they made, and the
    gradient g. Its coefficients follow from the dot products of these vectors alone (Chen, Wang and Zhou,
    "Large-scale L-BFGS using MapReduce", NIPS 2014). Those between older vectors are kept: one reduction of
    those with the newest s, y and g is all that a step needs.

    A parameter without a gradient counts as one whose gradient is zero, as in torch.

    Args:
        params: parameters, or one group of them.
        lr: length of a step. The first is shorter, by 1 / |g|₁ where that is less than 1.
        history_size: number of pairs (s, y) that are kept, each as large as the weights.
        tolerance_grad: nothing is done where no element of the gradient is larger.
        tolerance_change: no step is made along a direction with a slope smaller than this.

    Raises:
        ValueError: if an argument is out of range, or there are several groups.
    """

    per_parameter = False

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        history_size: int = 10,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
    ) -> None:
        at_least_0 = {"lr": lr, "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change}
        for name, value in at_least_0.items():
            if not value >= 0:
                raise ValueError(f"{name}={value}: expected at least 0")
        if not history_size >= 1:
            raise ValueError(f"history_size={history_size}: expected at least 1")
        super().__init__(params, {**at_least_0, "history_size": history_size})
        if len(self.param_groups) != 1:
            raise ValueError(f"params: expected one parameter group, found {len(self.param_groups)}")

    def partials(self) -> Tensor:
        """Return the dot products of the newest s, y and g, and what is to be known of g.

        Returns:
            Shape (3 (2 m + 3) + 2,) for a history of m: row by row the products of s, y and g with each kept
            s, each kept y, s, y and g; then the number of elements of g above the tolerance, and |g|₁.
        """
        group = self.param_groups[0]
        size = group["history_size"]
        device = group["params"][0].device
        products = torch.zeros(3, 2 * size + 3, dtype=torch.float64, device=device)
        above, length = torch.zeros(2, dtype=torch.float64, device=device)
        for weight in group["params"]:
            state = self.state.get(weight, {})
            gradient = _gradient(weight)
            newest = torch.zeros(3, weight.numel(), dtype=torch.float64, device=device)
            newest[2] = gradient
            if state:
                newest[0] = state["move"]
                newest[1] = gradient - state["gradient"]
                for slot in _slots(state["pairs"], size):
                    products[:, slot] += newest @ state[f"s.{slot}"].double()
                    products[:, size + slot] += newest @ state[f"y.{slot}"].double()
            products[:, 2 * size :] += newest @ newest.T
            above += (~(gradient.abs() <= group["tolerance_grad"])).sum()  # counts NaN too
            length += newest[2].abs().sum()
        return torch.cat([products.flatten(), torch.stack([above, length])])

    def apply(self, totals: Tensor) -> None:
        """Take up the newest pair, if it has curvature, and move along the new direction."""
        group = self.param_groups[0]
        size, weights = group["history_size"], group["params"]
        totals = totals.cpu()
        above, length = totals[-2:].tolist()
        if above == 0:
            return
        products = totals[:-2].reshape(3, -1).clone()
        # Each tensor's state has these: a shard may come to begin with any of them.
        shared = self.state[weights[0]]
        step, pairs = shared.get("step", 0) + 1, shared.get("pairs", 0)
        gram = torch.zeros(2 * size, 2 * size, dtype=torch.float64)
        if shared:
            gram.copy_(shared["gram"])
        slot = None
        if products[0, 2 * size + 1] > _MIN_CURVATURE:
            slot = pairs % size
            pairs += 1
            _take_up(gram, products, slot)
        coefficients, slope = _direction(gram, products[2], _slots(pairs, size))
        rate = group["lr"] * (min(1.0, 1.0 / length) if step == 1 else 1.0)
        for weight in weights:
            state, gradient = self.state[weight], _gradient(weight)
            if slot is not None:
                state[f"s.{slot}"] = state["move"]
                state[f"y.{slot}"] = gradient - state["gradient"]
            direction = gradient.double() * coefficients[-1]
            for other in _slots(pairs, size):
                direction.add_(state[f"s.{other}"], alpha=coefficients[other])
                direction.add_(state[f"y.{other}"], alpha=coefficients[size + other])
            move = direction.mul_(rate).to(weight.dtype)
            state.update(step=step, pairs=pairs, gram=gram, gradient=gradient.clone(), move=move)
            if not slope > -group["tolerance_change"]:
                weight.add_(move.view_as(weight))


def _gradient(weight: Tensor) -> Tensor:
    gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
    return gradient.reshape(-1)


def _slots(pairs: int, size: int) -> list[int]:
    """Return where the kept pairs are, the oldest first, when so many have been taken up."""
    return [index % size for index in range(max(0, pairs - size), pairs)]


def _take_up(gram: Tensor, products: Tensor, slot: int) -> None:
    """Put the newest s and y in the place of the oldest, in the dot products."""
    size = len(gram) // 2
    for vector, index in enumerate((slot, size + slot)):
        products[:, index] = products[:, 2 * size + vector]
    for vector, index in enumerate((slot, size + slot)):
        gram[index] = gram[:, index] = products[vector, : 2 * size]


def _direction(gram: Tensor, with_gradient: Tensor, slots: list[int]) -> tuple[list[float], float]:
    """Work out the direction -H g, by the two-loop recursion."""
    size = len(gram) // 2
    to_gradient = torch.cat([with_gradient[: 2 * size], with_gradient[-1:]])
    dot = torch.cat([torch.cat([gram, to_gradient[None, :-1]]), to_gradient[:, None]], dim=1)
    direction = torch.zeros(2 * size + 1, dtype=torch.float64)
    direction[-1] = -1.0
    alpha: dict[int, Any] = {}
    for slot in reversed(slots):
        alpha[slot] = dot[slot] @ direction / dot[slot, size + slot]
        direction[size + slot] -= alpha[slot]
    if slots:
        newest = slots[-1]
        direction *= dot[newest, size + newest] / dot[size + newest, size + newest]
    for slot in slots:
        beta = dot[size + slot] @ direction / dot[slot, size + slot]
        direction[slot] += alpha[slot] - beta
    return direction.tolist(), float(to_gradient @ direction)
