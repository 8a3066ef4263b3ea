"""FTRL-Proximal: sparse weights from online learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.optimizer import ParamsT

from sparkdl.optim.reducing import evaluate


class Ftrl(torch.optim.Optimizer):
    r"""Follow the regularized leader, proximal (McMahan et al., KDD 2013).

    For linear and wide models with many rare features: with ``l1`` most weights become exactly zero. With
    gradient g, per element::

        n' = n + g²
        r' = n'^(-lr_power) / lr
        z' = z + g + 2 l2_shrinkage w - (r' - r) w
        w' = -(z' - sign(z') l1) / (r' + 2 l2)   where |z'| > l1, else 0

    r is that of the step before, with its learning rate: it may follow a schedule. Without regularization
    this is Adagrad for ``lr_power=-0.5``, SGD for ``lr_power=0``.

    It starts from the given weights: z = -r w, as if all that r stands for had been learned at w. For weights
    that start at zero, and a constant learning rate, all is as in TensorFlow, which starts with z = 0 and so
    forgets part of other weights in the first step.

    Args:
        params: parameters or groups of parameters.
        lr: learning rate. A step with learning rate 0 changes nothing.
        lr_power: how the learning rate falls with the sum of squared gradients; at most 0.
        initial_accumulator_value: n at the start, above 0.
        l1: strength of the penalty on \|w\|.
        l2: strength of the penalty on w², as part of the proximal step.
        l2_shrinkage: strength of a penalty on w² that is added to the loss.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        lr_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        l2_shrinkage: float = 0.0,
    ) -> None:
        for name, value in {"lr": lr, "l1": l1, "l2": l2, "l2_shrinkage": l2_shrinkage}.items():
            if not value >= 0:
                raise ValueError(f"{name}={value}: expected at least 0")
        if not lr_power <= 0:
            raise ValueError(f"lr_power={lr_power}: expected at most 0")
        if not initial_accumulator_value > 0:
            raise ValueError(f"initial_accumulator_value={initial_accumulator_value}: expected more than 0")
        defaults = {
            "lr": lr,
            "lr_power": lr_power,
            "initial_accumulator_value": initial_accumulator_value,
            "l1": l1,
            "l2": l2,
            "l2_shrinkage": l2_shrinkage,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make one step; return the loss of ``closure``, which evaluates the model again."""
        loss = evaluate(closure)
        for group in self.param_groups:
            if group["lr"] == 0:
                continue
            for weight in group["params"]:
                if weight.grad is not None:
                    _update(weight, weight.grad, self.state[weight], group)
        return loss


def _update(weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """Make a step of a parameter.

    Its state has ``rest = z + r w``, which follows from no learning rate: a row of an embedding variable that
    has no gradient while that changes needs no update.
    """
    if not state:
        state["accumulator"] = torch.full_like(weight, group["initial_accumulator_value"])
        state["rest"] = torch.zeros_like(weight)
    accumulator, rest = state["accumulator"], state["rest"]
    accumulator.addcmul_(gradient, gradient)
    rate = accumulator.pow(-group["lr_power"]).div_(float(group["lr"]))
    linear = (
        rest.add_(gradient).add_(weight, alpha=2 * group["l2_shrinkage"]).addcmul_(rate, weight, value=-1)
    )
    weight.copy_(functional.softshrink(linear.neg(), group["l1"]).div_(rate + 2 * group["l2"]))
    rest.addcmul_(rate, weight)
