"""A model of ratings with embedding variables, and batches of ratings whose ids become more and more."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl import Trainer
from sparkdl.nn import EmbeddingVariable


class Scores(nn.Module):
    """Products of rows of users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.users = EmbeddingVariable(4, seed=1)
        self.items = EmbeddingVariable(4, seed=2)

    def forward(self, pair: torch.Tensor) -> torch.Tensor:
        return (self.users(pair[:, 0]) * self.items(pair[:, 1])).sum(1)


def keyed(**options: Any) -> Trainer:
    """Return a trainer of the model."""
    lazy = partial(torch.optim.Adagrad, lr=0.1)
    given = {"batch_size": 40, "progress": False} | options
    return Trainer(Scores(), loss=nn.MSELoss(), optimizer=lazy, **given)


def pairs(part: int) -> tuple[Any, Any]:
    """Return ratings of users of whom later parts have more."""
    random = np.random.default_rng(part)
    users, items = random.integers(0, 20 * (part + 1), 90) << 40, random.integers(0, 30, 90)
    return np.stack([users, items], 1), random.normal(size=90).astype(np.float32)
