"""Outputs and labels that meet across rows are found; everything that is meant is let through."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from sparkdl.nn.batch import Batch
from sparkdl.nn.meeting import ROWS, MeetingWatch, find_broadcast, watch
from sparkdl.nn.objective import LossObjective, StepObjective

X = torch.arange(ROWS * 3.0).reshape(ROWS, 3)
Y = torch.arange(float(ROWS))


def find(loss: Any, outputs: int = 1, label: Any = Y, module: Any = None) -> str:
    return find_broadcast(LossObjective(loss), module or nn.Linear(3, outputs), Batch(X, label, None, ROWS))


def own_log_loss(output: Any, label: Any) -> Any:
    p = torch.sigmoid(output)
    return -(label * torch.log(p) + (1 - label) * torch.log(1 - p))


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, label: ((output - label) ** 2).mean(),
        lambda output, label: (output - label).abs(),
        lambda output, label: (output - label.double().add(1).reshape(label.shape)).square(),
        own_log_loss,
        nn.PoissonNLLLoss(),
        nn.HingeEmbeddingLoss(),
        nn.KLDivLoss(),
        lambda output, label: torch.where(output > label, output, 0 * output).sum(),
    ],
)
@pytest.mark.filterwarnings("ignore:reduction:UserWarning")
def test_losses_that_broadcast_over_rows_are_found(loss: Any) -> None:
    found = find(loss)
    assert found.endswith("of an output of shape (rows, 1) and a label of shape (rows,)"), found
    assert not find(loss, label=Y[:, None])
    squeezed = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    assert not find(loss, module=squeezed)
    found = find(loss, label=Y[:, None], module=squeezed)
    assert found.endswith("of an output of shape (rows,) and a label of shape (rows, 1)"), found


def test_images_of_one_channel_and_masks_without_it() -> None:
    masks = torch.rand(ROWS, 4, 4)
    loss = lambda output, label: (output.reshape(ROWS, 1, 4, 4) - label).square()  # noqa: E731
    # (rows, 1, 4, 4) and (rows, 4, 4): rows lie along the channel
    found = find(loss, 16, masks)
    assert found.endswith("of an output of shape (rows, 1, 4, 4) and a label of shape (rows, 4, 4)")


@pytest.mark.parametrize(
    ("loss", "outputs", "label"),
    [
        (nn.CrossEntropyLoss(), 4, Y.long() % 4),
        (nn.CrossEntropyLoss(reduction="none"), 4, Y.long() % 4),
        (nn.NLLLoss(weight=torch.ones(4)), 4, Y.long() % 4),
        (nn.MultiMarginLoss(), 4, Y.long() % 4),
        (nn.MSELoss(), 1, Y[:, None]),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(2)), 2, torch.rand(ROWS, 2).round()),
        (nn.GaussianNLLLoss(), 1, Y[:, None]),
        (lambda output, label: (output.squeeze(1) - label).square(), 1, Y),
        (lambda output, label: (output - label.unsqueeze(1)).square(), 1, Y),
        (lambda output, label: (output - label[:, None]).square().mean(), 3, Y),
        # all pairs, as they are meant
        (lambda output, label: (output - label[None, :]).abs().mean(), 1, Y),
        (lambda output, label: nnf.cross_entropy(output @ output.T, torch.arange(len(output))), 3, Y),
        (lambda output, label: ((label[:, None] == label) * (output @ output.T)).mean(), 3, Y),
        (lambda output, label: ((output - output.T) * (label[:, None] - label)).mean(), 1, Y),
        # less the mean of the label; weights by class
        (lambda output, label: (output - label.mean(0)).square(), 2, torch.rand(ROWS, 2)),
        (lambda output, label: (output - torch.bincount(label, minlength=4)).square(), 4, Y.long() % 4),
        (lambda output, label: (output["a"] - label[0]).square() + label[1][:, None], 0, (Y[:, None], Y)),
    ],
)
def test_what_is_meant_is_let_through(loss: Any, outputs: int, label: Any) -> None:
    class Named(nn.Linear):
        def forward(self, x: Any) -> Any:
            return {"a": super().forward(x)}

    assert find(loss, outputs, label, None if outputs else Named(3, 1)) == ""


def test_steps_are_looked_at_from_the_parameters_on() -> None:
    batch = Batch(X, Y, None, ROWS)
    module = nn.Linear(3, 1)
    wrong = StepObjective(lambda module, batch: (module(batch.inputs) - batch.label).square().mean())
    right = StepObjective(lambda module, batch: (module(batch.inputs)[:, 0] - batch.label).square().mean())
    assert "label of shape (rows,)" in find_broadcast(wrong, module, batch)
    assert "label of shape (rows,)" in find_broadcast(wrong, module.eval(), batch)
    assert find_broadcast(right, module, batch) == ""


def test_a_label_that_is_an_input_meets_parameters() -> None:
    class Conditional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(ROWS, 1))

        def forward(self, x: Any, label: Any) -> Any:
            return (self.scale * label).sum(0) + x[:, 0]

    step = StepObjective(lambda module, batch: module(batch.inputs, batch.label).mean())
    assert find_broadcast(step, Conditional(), Batch(X, Y, None, ROWS)) == ""


def test_autoencoders_compare_with_their_input() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x: Any) -> Any:
            return self.layer(x[:, None])

    batch = Batch(Y, None, None, ROWS)
    wrong, right = (lambda out, x: (out - x).square()), (lambda out, x: (out[:, 0] - x).square())
    assert "label of shape (rows,)" in find_broadcast(LossObjective(wrong), Encoder(), batch)
    assert find_broadcast(LossObjective(right), Encoder(), batch) == ""
    assert find_broadcast(LossObjective(wrong), nn.Identity(), batch) == ""


def test_what_fails_is_left_to_the_dry_run() -> None:
    assert find(lambda output, label: output[99]) == ""
    assert find(lambda output, label: label, module=nn.Linear(7, 1)) == ""


def test_sparse_tensors_pass() -> None:
    table = nn.Embedding(9, 1, sparse=True)
    batch = Batch(Y.long(), Y, None, ROWS)
    assert find_broadcast(LossObjective(lambda o, y: (o[:, 0] - y).square()), table, batch) == ""
    sparse = torch.eye(ROWS).to_sparse()
    mode = MeetingWatch(ROWS, Y, nn.Linear(3, 1)(X))
    assert watch(mode, lambda: torch.sparse.mm(sparse, sparse)) == ""
