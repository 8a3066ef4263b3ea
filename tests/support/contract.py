"""What every model of ``sparkdl.nn`` has to do, and a short training without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from sparkdl.nn.batch import Batch
from sparkdl.nn.flat import FlatModule
from sparkdl.saved.source import ModuleSource


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def check_model(make: Callable[[], nn.Module], *inputs: Tensor) -> None:
    """Check gradients, flat weights, pickles, the description by arguments, and that rows are independent."""
    torch.manual_seed(0)
    model = make()
    expected = model.eval()(*inputs).detach()
    assert torch.allclose(model(*(tensor[:1] for tensor in inputs)), expected[:1], atol=1e-6)

    model(*inputs).square().sum().backward()
    unused = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not unused, f"no gradient for {unused}"

    for copy in (pickle.loads(pickle.dumps(model)), pickle.loads(cloudpickle.dumps(model))):
        assert torch.equal(copy.eval()(*inputs), expected)

    twin = ModuleSource.infer(model).build()
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin.eval()(*inputs), expected)

    weights = FlatModule(model).params.clone()
    torch.manual_seed(1)
    other = FlatModule(make().eval())
    other.params.copy_(weights)
    assert torch.allclose(other.module(*inputs), expected, atol=1e-6)


def train(
    model: nn.Module,
    loss: Callable[[nn.Module, Batch], Any],
    batch: Callable[[], Batch],
    steps: int,
    lr: float = 1e-2,
) -> None:
    """Train with Adam, a fresh batch in each step."""
    optimizer = torch.optim.Adam(model.parameters(), lr)
    model.train()
    for _ in range(steps):
        found = loss(model, batch())
        found = found["loss"] if isinstance(found, dict) else found
        optimizer.zero_grad()
        found.mean().backward()
        optimizer.step()
    model.eval()


def auc(score: Tensor, label: Tensor) -> float:
    """Return the share of pairs of a positive and a negative row that are in the right order."""
    return float((score[label == 1, None] > score[label == 0]).float().mean())
