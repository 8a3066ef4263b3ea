"""Losses that are no mean over rows are found; means are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparkdl.nn.batch import Batch
from sparkdl.nn.objective import LossObjective, StepObjective
from sparkdl.nn.row_mean import differs

ROWS = 6
INPUTS = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
LABEL = torch.tensor([0, 1, 2, 0, 0, 1])


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def contrastive(output: Tensor, label: Tensor) -> Tensor:
    """NT-Xent: each row is told from all others."""
    return functional.cross_entropy(output @ output.T, torch.arange(len(output)))


def barlow_twins(output: Tensor, label: Tensor) -> Tensor:
    standard = (output - output.mean(0)) / output.std(0)
    return ((standard.T @ standard / len(output) - torch.eye(3)) ** 2).sum()


def own_weights(output: Tensor, label: Tensor) -> Tensor:
    weight = torch.tensor([1.0, 10.0, 50.0])[label]
    return (functional.cross_entropy(output, label, reduction="none") * weight).sum() / weight.sum()


WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 10.0, 50.0]))
COUPLED: dict[str, Any] = {
    "contrastive": contrastive,
    "Barlow Twins": barlow_twins,
    "own weights": own_weights,
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "root": lambda o, y: functional.mse_loss(o[:, 0], y.float()).sqrt(),
    "a small part": lambda o, y: functional.cross_entropy(o, y) + 0.01 * o.mean(0).square().sum(),
}
MEANS: dict[str, Any] = {
    "mse": lambda o, y: ((o[:, 0] - y) ** 2).mean(),
    "rows": lambda o, y: functional.cross_entropy(o, y, reduction="none"),
    "weight": WEIGHTED,
    "weight in a lambda": lambda o, y: WEIGHTED(o, y),
    "random": lambda o, y: (o * torch.rand(())).mean(),
    "fails": lambda o, y: o @ y,
}


@pytest.mark.parametrize("name", [*COUPLED, *MEANS])
@pytest.mark.parametrize("as_step", [False, True], ids=["loss", "step"])
def test_what_is_no_mean_over_rows_is_found(name: str, as_step: bool) -> None:
    loss = (COUPLED | MEANS)[name]

    def step(module: nn.Module, batch: Any) -> Any:
        return loss(module(batch.inputs), batch.label)

    objective = StepObjective(step) if as_step else LossObjective(loss)
    tried = module().train()
    found = differs(objective, tried, Batch(INPUTS, LABEL, None, ROWS))
    assert (found is not None) == (name in COUPLED), found
    assert all(layer.training for layer in tried.modules())


def test_a_step_says_the_divisor() -> None:
    def step(module: nn.Module, batch: Any) -> Any:
        weight = torch.tensor([1.0, 10.0, 50.0])[batch.label]
        return {"loss": own_weights(module(batch.inputs), batch.label), "divisor": weight.sum()}

    assert differs(StepObjective(step), module(), Batch(INPUTS, LABEL, None, ROWS)) is None


@pytest.mark.parametrize("as_step", [False, True], ids=["loss", "step"])
def test_sample_weights_weigh_the_parts(as_step: bool) -> None:
    loss = MEANS["rows"]
    step = StepObjective(lambda module, batch: loss(module(batch.inputs), batch.label))
    batch = Batch(INPUTS, LABEL, torch.tensor([0.0, 0.0, 0.0, 1.0, 9.0, 2.0]), ROWS)
    assert differs(step if as_step else LossObjective(loss), module(), batch) is None
    batch = Batch(INPUTS, LABEL, torch.tensor([3.0, 0.5, 0.0, 1.0, 9.0, 2.0]), ROWS)
    assert differs(step if as_step else LossObjective(loss), module(), batch) is None
