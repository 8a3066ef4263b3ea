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
from sparkdl.nn.models.resnet import ResNet

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-3),
}
_USERS, _ITEMS = 6040, 3706  # MovieLens 1M
_WORDS, _LENGTH = 16_000, 256


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


class Images(nn.Module):
    """ResNet-50 for images of bytes, which a batch's copy to the device is a quarter of."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ResNet(50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.net(x.float() / 255 - 0.5)  # type: ignore[no-any-return]


class Words(nn.Module):
    """A transformer of 12 layers of 768 and 16,000 words: 97.9 million parameters; predicts the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, 768)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.places = nn.Parameter(torch.zeros(_LENGTH, 768))
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(_LENGTH), persistent=False
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits of the next word, by class first."""
        found = self.layers(self.embedding(words) + self.places, mask=self.mask, is_causal=True)
        return (found @ self.embedding.weight.T).transpose(1, 2)  # type: ignore[no-any-return]


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
    if model == "resnet50":
        x = random.integers(0, 256, (8 * batch, 3, 224, 224), np.uint8)
        label = random.integers(0, 1000, len(x))
        return Workload(Images(), nn.CrossEntropyLoss(), optimizer or "momentum", [x], label)
    if model == "transformer":
        x = random.integers(0, _WORDS, (rows, _LENGTH))
        return Workload(Words(), nn.CrossEntropyLoss(), optimizer or "adam", [x], np.roll(x, -1, 1))
    label = random.integers(0, 10, rows)
    if model == "resnet20":
        x = random.standard_normal((rows, 3, 32, 32), dtype=np.float32)
        return Workload(ResNet20(), nn.CrossEntropyLoss(), optimizer or "momentum", [x], label)
    x = random.standard_normal((rows, 784), dtype=np.float32)
    if model == "lenet":
        return Workload(LeNet5(), nn.CrossEntropyLoss(), optimizer or "sgd", [x], label)
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return Workload(nn.Sequential(*layers), nn.CrossEntropyLoss(), optimizer or "sgd", [x], label)
