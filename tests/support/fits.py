"""Short fits of the tests of exchange."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from sparkdl import Trainer
from sparkdl.train import MaxIteration


def fit(data: Any, module: nn.Module, iterations: int = 12, **options: Any) -> Any:
    """Train with Adam, by shuffles unless told otherwise."""
    settings: dict[str, Any] = {
        "loss": nn.CrossEntropyLoss(),
        "optimizer": partial(torch.optim.Adam, lr=1e-3),
        "batch_size": 60,
        "seed": 3,
        "end_when": MaxIteration(iterations),
        "progress": False,
        "exchange": "replicated",
        "transport": "shuffle",
    }
    validation = options.pop("validation", None)
    return Trainer(module, **settings | options).fit(data, validation)
