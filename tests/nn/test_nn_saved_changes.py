"""What has changed in a module since a version: written, applied, refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.keyed.entries import ROW
from sparkdl.nn import EmbeddingVariable
from sparkdl.saved.change_file import read_about
from sparkdl.saved.changes import apply_changes, apply_known, write_changes
from sparkdl.saved.identity import mark, marked

GENERATOR = np.random.default_rng(0)
IDS = np.unique(GENERATOR.integers(-(2**62), 2**62, 300))


class Module(nn.Module):
    def __init__(self, width: int = 4, **options: Any) -> None:
        super().__init__()
        self.table = EmbeddingVariable(width, seed=1, **options)
        self.head = nn.Linear(width, 1)


def train(module: Module, iteration: int) -> None:
    """Change some entries and the weights as a training does."""
    store = module.table.store
    store.evict(iteration)
    ids = np.unique(GENERATOR.choice(IDS, 20))
    store.count(ids, np.ones(len(ids), np.int64), iteration, lambda rows: {})
    ids = ids[store.look_up(ids)[0]]
    rows = GENERATOR.normal(size=(len(ids), store.rule.width)).astype(np.float32)
    store.update(ids, {ROW: rows}, lambda rows: {}, iteration + 1)
    with torch.no_grad():
        module.head.weight += 1


def state(module: nn.Module) -> dict[str, list[Any]]:
    return {name: value.tolist() for name, value in module.state_dict().items()}


def test_a_chain_of_changes_leads_to_the_module() -> None:
    module = Module(min_count=2, max_age=5, min_norm=1.0, evict_every=3)
    for iteration in range(10):
        train(module, iteration)
    served = Module()
    served.load_state_dict(module.state_dict())
    mark(served, marked(module).at(10))
    version, before = 10, len(served.table.store)
    for until in (13, 14, 26):
        for iteration in range(version, until):
            train(module, iteration)
        data = write_changes(module, version, until)
        assert data is not None
        version = apply_changes(served, data, version)
        assert version == until
        assert state(served) == state(module)
    assert before
    late = write_changes(module, 14, 26)
    assert late is not None
    assert apply_changes(served, late, 26) == 26  # once more changes nothing
    assert state(served) == state(module)


def test_changes_that_cannot_be_told_are_not_written() -> None:
    module = Module()
    train(module, 0)
    assert write_changes(module, 0, 1) is None
    copy = Module()
    copy.load_state_dict(module.state_dict())
    assert write_changes(copy, 1, 2) is None


@pytest.mark.parametrize(
    ("at", "width", "data", "error", "message"),
    [
        (1, 4, None, ConfigError, "from iteration 2 to 3 cannot be applied to a module of iteration 1"),
        (2, 6, None, ModelError, r"head.weight has shape \(1, 4\) there and \(1, 6\)"),
        (2, 4, b"nothing", ConfigError, "not a file of write_changes"),
    ],
)
def test_changes_of_something_else_are_refused(
    at: int, width: int, data: bytes | None, error: Any, message: str
) -> None:
    module = Module()
    for iteration in range(3):
        train(module, iteration)
    other = Module(width)
    mark(other, marked(module).at(at))
    before = state(other)
    with pytest.raises(error, match=message):
        apply_changes(other, data or write_changes(module, 2, 3) or b"", at)
    assert state(other) == before


@pytest.mark.parametrize(
    ("dtype", "until", "error", "message"),
    [
        (torch.bfloat16, 3, ModelError, r"table.rows has shape \(\d+, 4\) of torch.bfloat16"),
        (torch.int32, 3, ModelError, "of torch.int32"),
        (torch.float32, 10**30, ConfigError, "is no count"),
    ],
)
def test_changes_that_nobody_writes_are_refused(
    dtype: torch.dtype, until: int, error: Any, message: str
) -> None:
    """With an error of ours, before anything has changed."""
    module = Module()
    for iteration in range(3):
        train(module, iteration)
    data = write_changes(module, 2, 3)
    assert data is not None
    tensors = load(data)
    tensors["table.rows"] = tensors["table.rows"].to(dtype)
    about = json.dumps({"since": 2, "until": until, "aliases": {}})
    other = Module()
    before = state(other)
    whole = save(tensors, {"sparkdl": about})
    with pytest.raises(error, match=message):
        apply_known(other, whole, read_about(whole))
    assert state(other) == before
