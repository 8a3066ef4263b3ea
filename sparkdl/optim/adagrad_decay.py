"""Adagrad that forgets: for training that goes on for weeks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sparkdl.optim.reducing import evaluate


class AdagradDecay(torch.optim.Optimizer):
    """Adagrad whose accumulator is cut down from time to time (AdagradDecay of DeepRec).

    Adagrad's accumulator only grows, and its steps fade. Here it is multiplied by ``decay_rate`` after every
    ``decay_step`` steps, before the next gradient is added, and never falls below its initial value. All
    samples of one period count the same. As in TensorFlow there is no epsilon: the accumulator is above zero.

    Args:
        params: parameters or groups of parameters.
        lr: learning rate.
        initial_accumulator_value: accumulator at the start, and its least value; above 0.
        decay_step: steps from one decay to the next. The steps of each parameter count, as torch counts them:
            those in which it has a gradient.
        decay_rate: factor of the decay, above 0 and at most 1.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        initial_accumulator_value: float = 0.1,
        decay_step: int = 100_000,
        decay_rate: float = 0.9,
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"lr={lr}: expected at least 0")
        if not initial_accumulator_value > 0:
            raise ValueError(f"initial_accumulator_value={initial_accumulator_value}: expected more than 0")
        if not decay_step >= 1:
            raise ValueError(f"decay_step={decay_step}: expected at least 1")
        if not 0 < decay_rate <= 1:
            raise ValueError(f"decay_rate={decay_rate}: expected more than 0 and at most 1")
        defaults = {
            "lr": lr,
            "initial_accumulator_value": initial_accumulator_value,
            "decay_step": decay_step,
            "decay_rate": decay_rate,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make one step; return the loss of ``closure``, which evaluates the model again."""
        loss = evaluate(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["step"] = 0
                    state["sum"] = torch.full_like(weight, group["initial_accumulator_value"])
                rate, least = group["decay_rate"], group["initial_accumulator_value"]
                if "decays" in state:
                    due = state["step"] // group["decay_step"]
                    _catch_up(state["sum"], state["decays"], due, rate, least)
                elif state["step"] and state["step"] % group["decay_step"] == 0:
                    state["sum"].mul_(rate).clamp_(min=least)
                state["step"] += 1
                state["sum"].addcmul_(weight.grad, weight.grad)
                weight.addcdiv_(weight.grad, state["sum"].sqrt(), value=-group["lr"])
        return loss


def _catch_up(total: Tensor, decays: Tensor, due: int, rate: float, least: float) -> None:
    """Cut accumulators of rows down as often as is due; ``decays`` says how often each was.

    An embedding variable has rows updated only in steps in which they have a gradient.
    """
    while bool((late := decays < due).any()):
        cut = (total[late] * rate).clamp_(min=least)
        if torch.equal(cut, total[late]):
            break
        total[late] = cut
        decays[late] += 1
    decays.fill_(due)
