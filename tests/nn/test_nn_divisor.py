"""Losses that are divided by something else than the number of rows, against torch over the whole batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparkdl.exceptions import ModelError
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import Batch, evaluate, forward_backward
from sparkdl.nn.objective import LossObjective, Objective, StepObjective

ROWS, CLASSES = 12, 3
WEIGHT = torch.tensor([1.0, 10.0, 50.0], dtype=torch.float64)
LABEL = torch.tensor(
    [0, 2, 1, 0, -100, 1, 0, -100, -100, -100, 2, 0]
)  # micro-batches of 2 and 4 without labels
IMAGES = torch.stack([LABEL, LABEL.flip(0), torch.full((ROWS,), -100)], 1)


def log_nll(output: Tensor, label: Tensor) -> Tensor:
    return functional.nll_loss(functional.log_softmax(output, 1), label, WEIGHT)


def two_heads(output: Tensor, label: Tensor) -> Tensor:
    """The loss of models that look for the start and the end of an answer."""
    start = functional.cross_entropy(output, label)
    return (start + functional.cross_entropy(output.flip(1), label)) / 2


LOSSES: dict[str, Any] = {
    "weight": nn.CrossEntropyLoss(weight=WEIGHT),
    "smoothing": nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1),
    "smoothing, no weight": nn.CrossEntropyLoss(label_smoothing=0.1),
    "ignored class": nn.CrossEntropyLoss(ignore_index=-100),
    "functional": functional.cross_entropy,
    "partial": partial(functional.cross_entropy, weight=WEIGHT),
    "lambda": lambda output, label: 0.5 * functional.cross_entropy(output, label, WEIGHT) + 1,
    "nll": log_nll,
    "nll module": lambda output, label: nn.NLLLoss(WEIGHT)(output.log_softmax(1), label),
    "two heads": two_heads,
}


def linear(outputs: int = CLASSES) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, outputs).double()


def inputs() -> Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def torchs(loss: Any, module: nn.Module, x: Tensor, label: Tensor) -> tuple[float, Tensor]:
    found = loss(module(x), label)
    found.backward()
    return found.item(), torch.cat([p.grad.flatten() for p in module.parameters()])


def shares(objective: Objective, module: nn.Module, batch: Batch, cuts: list[int], micro: int | None) -> Any:
    """Return loss and gradient of shares, put together as the driver does."""
    found = []
    for start, stop in zip([0, *cuts], [*cuts, batch.rows], strict=True):
        replica = FlatModule(module)
        result = forward_backward(replica, batch.narrow(start, stop - start), objective, micro)
        found.append((result.loss, replica.grad.clone(), result.divisor))
    whole = sum(divisor for *_, divisor in found)
    return tuple(sum(part[i] * part[2] for part in found) / whole for i in (0, 1))


@pytest.mark.parametrize("micro", [None, 1, 2, 5])
@pytest.mark.parametrize("cuts", [[], [4, 9], [2, 6, 10]], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_shares_and_micro_batches_are_the_whole_batch(name: str, cuts: list[int], micro: int | None) -> None:
    loss = LOSSES[name]
    expected, gradient = torchs(loss, linear(), inputs(), LABEL)
    batch = Batch(inputs(), LABEL, None, ROWS)
    found, own = shares(LossObjective(loss), linear(), batch, cuts, micro)
    assert found == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(own, gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("micro", [None, 3])
def test_terms_whose_numbers_of_labels_agree_in_some_shares_count_by_labels_in_all(micro: int | None) -> None:
    """A share counted by its 24 labels, and one in which a label of one term does not count by its 6 rows."""

    def loss(output: Tensor, label: Tensor) -> Tensor:
        output = output.reshape(-1, CLASSES, 4)
        other = label.clone()
        other[-1, -1] = -100 if other[-1, -1] == 1 else other[-1, -1]
        return functional.cross_entropy(output, label) + functional.cross_entropy(output.flip(1), other)

    label = torch.zeros(ROWS, 4, dtype=torch.int64)
    label[:6], label[-1, -1] = 2, 1
    expected, gradient = torchs(loss, linear(12), inputs(), label)
    found, own = shares(LossObjective(loss), linear(12), Batch(inputs(), label, None, ROWS), [6], micro)
    assert found == pytest.approx(expected, rel=5e-3)  # no one divisor is that of both terms
    assert (own - gradient).norm() < 0.02 * gradient.norm()


def test_labels_of_several_positions() -> None:
    def loss(output: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(output.reshape(-1, CLASSES, 3), label)

    expected, gradient = torchs(loss, linear(9), inputs(), IMAGES)
    batch = Batch(inputs(), IMAGES, None, ROWS)
    found, own = shares(LossObjective(loss), linear(9), batch, [4, 9], 2)
    assert found == pytest.approx(expected)
    torch.testing.assert_close(own, gradient)


@pytest.mark.parametrize("name", ["weight", "smoothing", "two heads"])
def test_validation_by_batches(name: str) -> None:
    loss, module = LOSSES[name], linear()
    with torch.no_grad():
        expected = loss(module(inputs()), LABEL).item()
    replica, whole = FlatModule(module), [0.0, 0.0]
    with replica.evaluating():
        for start in range(0, ROWS, 5):
            batch = Batch(inputs(), LABEL, None, ROWS).narrow(start, min(5, ROWS - start))
            found = evaluate(replica, batch, LossObjective(loss))
            assert found.divisor is not None
            if found.divisor:
                whole[0] += found.divisor * found.loss.item()
                whole[1] += found.divisor
    assert whole[0] / whole[1] == pytest.approx(expected, rel=1e-6)


def test_a_step_says_its_divisor() -> None:
    """A masked mean of the user's own, which no function of torch's divides."""

    def step(module: nn.Module, batch: Any) -> Any:
        x, label = batch
        mask = label != -100
        losses = functional.cross_entropy(module(x), label, reduction="none")
        return {"loss": (losses * mask).sum() / mask.sum(), "divisor": mask.sum(), "rows": len(label)}

    expected, gradient = torchs(nn.CrossEntropyLoss(), linear(), inputs(), LABEL)
    batch = Batch(inputs(), LABEL, None, ROWS)
    found, own = shares(StepObjective(step), linear(), batch, [4, 9], 2)
    assert found == pytest.approx(expected)
    torch.testing.assert_close(own, gradient)


def test_a_share_without_labels_contributes_nothing() -> None:
    replica = FlatModule(linear())
    batch = Batch(inputs(), torch.full((ROWS,), -100), None, ROWS)
    result = forward_backward(replica, batch, LossObjective(nn.CrossEntropyLoss()), 5)
    assert (result.loss, result.divisor, result.weight) == (0.0, 0.0, ROWS)
    assert not replica.grad.any()


@pytest.mark.parametrize("micro", [None, 2])
def test_smoothing_of_labels_without_weight_is_torchs_or_refused(micro: int | None) -> None:
    """What it counts for them is divided by the weights of others, which a share without others lacks."""
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0, 2.0]).double(), label_smoothing=0.1)
    batch = Batch(inputs(), torch.tensor([0, 2, 1, 0, -100, 1, 0, 2, -100, -100, 2, 0]), None, ROWS)
    expected, gradient = torchs(loss, linear(), batch.inputs, batch.label)
    found, own = shares(LossObjective(loss), linear(), batch, [6], micro)
    assert found == pytest.approx(expected)
    torch.testing.assert_close(own, gradient)
    for cuts in ([3, 4], [11]):
        with pytest.raises(
            ModelError, match="1 labels, all of classes with weight 0, and label_smoothing=0.1"
        ):
            shares(LossObjective(loss), linear(), batch, cuts, micro)


@pytest.mark.parametrize("micro", [None, 2])
def test_weights_that_add_up_to_0_are_torchs_or_refused(micro: int | None) -> None:
    """Torch divides by their sum: a share whose labels' weights add up to 0 has a gradient, and no mean."""
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, -1.0, 3.0]).double())
    batch = Batch(inputs(), torch.tensor([0, 2, 2, 1, 0, -100, 0, 2, 1, 0, 2, 0]), None, ROWS)
    if micro is None:
        expected, gradient = torchs(loss, linear(), batch.inputs, batch.label)
        found, own = shares(LossObjective(loss), linear(), batch, [6], micro)
        assert found == pytest.approx(expected)
        torch.testing.assert_close(own, gradient)
    with pytest.raises(ModelError, match="class weights of 2 labels add up to 0.*above 0"):
        shares(LossObjective(loss), linear(), batch, [3, 5], micro)


def test_micro_batches_whose_divisors_add_up_to_0_are_refused() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, -1.0, 3.0]).double())
    batch = Batch(inputs(), torch.tensor([0, 1]).repeat_interleave(ROWS // 2), None, ROWS)
    with pytest.raises(ModelError, match=f"loss of {ROWS} rows is divided by 0"):
        shares(LossObjective(loss), linear(), batch, [], ROWS // 2)


@pytest.mark.parametrize(
    ("loss", "label"),
    [
        (nn.MSELoss(), torch.zeros(ROWS, CLASSES)),
        (nn.CrossEntropyLoss(), torch.eye(CLASSES).repeat(4, 1)),  # probabilities: a mean over rows
        (nn.CrossEntropyLoss(reduction="none"), LABEL.abs() % CLASSES),
        (lambda o, y: functional.cross_entropy(o, y, reduction="sum") / len(y), LABEL.abs() % CLASSES),
    ],
    ids=["mse", "probabilities", "none", "sum"],
)
def test_means_over_rows_have_no_divisor_of_their_own(loss: Any, label: Tensor) -> None:
    label = label.double() if label.is_floating_point() else label
    found = LossObjective(loss)(linear(), Batch(inputs(), label, None, ROWS))
    assert found.divisor is None


def test_a_plain_mean_keeps_its_bits() -> None:
    """Where all labels count, micro-batches are weighted by their rows."""
    label = LABEL.abs() % CLASSES
    found = []
    for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none")):
        replica = FlatModule(linear().float())
        batch = Batch(inputs().float(), label, None, ROWS)
        result = forward_backward(replica, batch, LossObjective(loss), 5)
        found.append((result.weight, result.divisor, replica.grad.numpy()))
    assert found[0][:2] == found[1][:2] == (ROWS, ROWS)
    np.testing.assert_array_equal(found[0][2], found[1][2])


@pytest.mark.parametrize("divisor", [-1, float("nan"), float("inf")])
def test_a_divisor_that_cannot_be(divisor: float) -> None:
    objective = StepObjective(lambda m, b: {"loss": m(b.inputs).mean(), "divisor": divisor})
    with pytest.raises(ModelError, match="'divisor' (-1|nan|inf).*; expected"):
        objective(linear(), Batch(inputs(), None, None, ROWS))


def test_a_divisor_of_a_loss_per_row() -> None:
    objective = StepObjective(lambda m, b: {"loss": m(b.inputs), "divisor": 2})
    with pytest.raises(ModelError, match="one loss per row"):
        objective(linear(), Batch(inputs(), None, None, ROWS))
