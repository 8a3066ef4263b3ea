"""Classifiers whose module gives probabilities: refused or told, and right in no case by chance."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparkdl.exceptions import ConfigError, SparkdlWarning
from sparkdl.ml.stages.probabilities import check_logits
from sparkdl.nn.losses import binary_cross_entropy

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sigmoid().squeeze(1).clamp(1e-6, 1 - 1e-6)


def log_loss(output: Tensor, label: Tensor) -> Tensor:
    return functional.nll_loss(output.log(), label)


SOFTMAX = nn.Sequential(nn.Linear(3, 2), nn.Softmax(1))
LOGITS = nn.Linear(3, 2)
REFUSED: list[tuple[nn.Module, Any, str]] = [
    (Squeezed(), nn.BCELoss(), "BCELoss takes probabilities.*BCEWithLogitsLoss"),
    (Squeezed(), partial(functional.binary_cross_entropy, reduction="none"), "binary_cross_entropy takes"),
    (Squeezed(), lambda o, y: ((o - y) ** 2).mean(), "Squeezed ends in a sigmoid.*<lambda>.*TorchEstimator"),
    (SOFTMAX, log_loss, "Sequential ends in a softmax.*log_loss"),
]
TOLD: list[tuple[nn.Module, Any]] = [
    (SOFTMAX, nn.CrossEntropyLoss()),
    (Squeezed(), binary_cross_entropy),
    (SOFTMAX, None),
]
RIGHT: list[tuple[nn.Module, Any]] = [
    (LOGITS, nn.CrossEntropyLoss()),
    (LOGITS, log_loss),
    (nn.Sequential(nn.Linear(3, 2), nn.LogSoftmax(1)), nn.NLLLoss()),  # the softmax of which is the softmax
    (nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)), nn.CrossEntropyLoss()),
    (nn.Linear(9, 2), None),  # fails: whoever trains it says why
]


@pytest.mark.parametrize(("module", "loss", "message"), REFUSED)
def test_losses_of_probabilities_are_refused(module: nn.Module, loss: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_logits(module, X, loss)


@pytest.mark.parametrize(("module", "loss"), TOLD)
def test_probabilities_for_a_loss_of_logits_are_told(module: nn.Module, loss: Any) -> None:
    with pytest.warns(SparkdlWarning, match="ends in a (softmax|sigmoid).*applied twice"):
        check_logits(module, X, loss)
    assert module.training


@pytest.mark.parametrize(("module", "loss"), RIGHT)
def test_logits_pass(module: nn.Module, loss: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_logits(module, X, loss)
