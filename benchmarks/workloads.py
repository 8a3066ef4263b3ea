"""What the benchmark trains: modules, optimizers and synthetic rows. No Spark in here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl.nn import LeNet5, NeuralCF, ResNet20

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-3),
}
_USERS, _ITEMS = 6040, 3706  # MovieLens 1M


@dataclass(frozen=True, slots=True)
class Workload:
    """A module, its loss and optimizer, and rows to train it on.

    Attributes:
        module: with initial weights from a fixed seed.
        loss: ``loss(output, label)``.
        optimizer: name in :data:`OPTIMIZERS`.
        features: one array per positional input.
        label: array of labels.
    """

    module: nn.Module
    loss: nn.Module
    optimizer: str
    features: list[Any]
    label: Any


def make(model: str, batch: int, optimizer: str | None) -> Workload:
    """Build a workload with rows for tens of iterations per epoch."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    rows = max(64 * batch, 1024)
    if model == "tiny":
        x = random.standard_normal((rows, 10), dtype=np.float32)
        label = x.sum(1, keepdims=True)
        return Workload(nn.Linear(10, 1), nn.MSELoss(), optimizer or "sgd", [x], label)
    if model == "ncf":
        pairs = [random.integers(0, count, rows) for count in (_USERS, _ITEMS)]
        label = random.integers(0, 2, rows).astype(np.float32)
        module = NeuralCF(_USERS, _ITEMS, embedding=64, mf_embedding=64, hidden=(128, 64, 32))
        return Workload(module, nn.BCEWithLogitsLoss(), optimizer or "adam", pairs, label)
    label = random.integers(0, 10, rows)
    if model == "resnet20":
        x = random.standard_normal((rows, 3, 32, 32), dtype=np.float32)
        return Workload(ResNet20(), nn.CrossEntropyLoss(), optimizer or "momentum", [x], label)
    x = random.standard_normal((rows, 784), dtype=np.float32)
    if model == "lenet":
        return Workload(LeNet5(), nn.CrossEntropyLoss(), optimizer or "sgd", [x], label)
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return Workload(nn.Sequential(*layers), nn.CrossEntropyLoss(), optimizer or "sgd", [x], label)
