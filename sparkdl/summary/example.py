"""A module together with its inputs, for tools that trace a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from sparkdl.allreduce.kept import Snapshot
from sparkdl.train.passes.sweep import BatchReader
from sparkdl.train.run import Run


def example(run: Run, snapshot: Snapshot | None = None) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a copy of the module and the inputs of its first rows, by position."""
    with torch.random.fork_rng(devices=[]):
        rows = {key: np.array(values) for key, values in run.data.peek().items()}
        inputs: Any = BatchReader.of_features(run.data).batch(rows).inputs
    module = run.trained_module(snapshot).eval()
    if isinstance(inputs, Mapping):
        return _ByPosition(module, tuple(inputs)), tuple(inputs.values())
    return module, (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)


class _ByPosition(nn.Module):
    """Gives keyword inputs a position: that is how a module is traced."""

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module = module
        self.names = names

    def forward(self, *inputs: Any) -> Any:
        """Call the module with the inputs by name."""
        return self.module(**dict(zip(self.names, inputs, strict=True)))
