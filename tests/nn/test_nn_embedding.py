"""Embedding variables by themselves: look-ups, state_dict, saving without a pickle."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn import CountingBloom, EmbeddingBagVariable, EmbeddingVariable
from sparkdl.nn.embedding import Noted, embedding_variables
from sparkdl.saved import content, weights
from sparkdl.saved.content import Content
from sparkdl.serve.served import copy_sharing

FAR = 2**60


def trained(module: Any) -> Any:
    """Give ids 3, 5 and FAR a row."""
    table = module if isinstance(module, EmbeddingVariable) else module.table
    table.store.count(np.array([3, 5, FAR]), np.ones(3, np.int64), 0, lambda rows: {})
    return module


def test_ids_are_looked_up_in_tensors_of_any_shape() -> None:
    table = trained(EmbeddingVariable(4, seed=1))
    ids = torch.tensor([[5, FAR], [7, 5]])
    found = table(ids)
    assert found.shape == (2, 2, 4)
    assert torch.equal(found[0, 0], found[1, 1])
    assert torch.equal(found[1, 0], table.weight[0])  # 7 has no row
    assert found[0].abs().min() > 0
    assert table(torch.empty(0, dtype=torch.int64)).shape == (0, 4)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_those_of_torch(mode: Any) -> None:
    bag = trained(EmbeddingBagVariable(4, mode, seed=1))
    ids = torch.tensor([[5, FAR, 5], [3, 3, 5]])
    rows = bag.table(ids).detach()
    expected = nn.functional.embedding_bag(torch.arange(6).view(2, 3), rows.view(6, 4), mode=mode)
    assert torch.allclose(bag(ids), expected)
    assert torch.allclose(bag(ids.view(-1), torch.tensor([0, 3])), expected)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_padding_takes_no_part_in_a_bag(mode: Any) -> None:
    bag = trained(EmbeddingBagVariable(4, mode, seed=1, padding_idx=5))
    torch.nn.init.ones_(bag.table.weight)  # what ids without a row would add
    ids = torch.tensor([[5, FAR, 5], [3, 3, FAR], [5, 5, 5]])
    rows = bag.table(ids).detach().view(9, 4)
    own = torch.where(ids == 5, 0, torch.arange(9).view(3, 3))  # row 0 is one of the padding
    expected = nn.functional.embedding_bag(own, rows, mode=mode, padding_idx=0)
    assert torch.allclose(bag(ids), expected)
    assert torch.allclose(bag(ids.view(-1), torch.tensor([0, 3, 6])), expected)
    asked: list[Any] = []
    with bag.table.reading(Noted(asked)):
        bag(ids)
    assert 5 not in asked[0], "padding gets no row"
    with pytest.raises(ConfigError, match="padding_idx=0.5: expected an id"):
        EmbeddingBagVariable(4, padding_idx=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("padding", [None, 5])
def test_weights_of_ids_in_a_bag_are_those_of_torch(padding: int | None) -> None:
    bag = trained(EmbeddingBagVariable(4, "sum", seed=1, padding_idx=padding))
    ids = torch.tensor([[5, FAR, 5], [3, 3, FAR]])
    weights = torch.rand(2, 3, requires_grad=True)
    rows = bag.table(ids).detach().view(6, 4)
    own = torch.arange(6).view(2, 3) if padding is None else torch.tensor([[0, 1, 0], [3, 4, 5]])
    pad = None if padding is None else 0
    expected = nn.functional.embedding_bag(own, rows, mode="sum", per_sample_weights=weights, padding_idx=pad)
    found = bag(ids, per_sample_weights=weights)
    assert torch.allclose(found, expected)
    assert torch.allclose(bag(ids.view(-1), torch.tensor([0, 3]), weights.view(-1)), expected)
    (wanted,) = torch.autograd.grad(expected.square().sum(), weights)
    (got,) = torch.autograd.grad(found.square().sum(), weights)
    assert torch.allclose(got, wanted)
    with pytest.raises(ModelError, match=r"ids of shape \(2, 3\) in mode 'mean': expected the same shape"):
        EmbeddingBagVariable(4, seed=1)(ids, per_sample_weights=weights)


def test_rows_are_in_the_state_dict() -> None:
    table = trained(EmbeddingVariable(4, seed=1))
    state = table.state_dict()
    assert state["ids"].tolist() == [3, 5, FAR]
    other = EmbeddingVariable(4, seed=2)
    other.load_state_dict(state)
    assert torch.equal(other(torch.tensor([3, FAR])), table(torch.tensor([3, FAR])))
    assert other.store.rule.seed == 1
    for same in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        assert torch.equal(same.state_dict()["rows"], state["rows"])


def test_copies_for_serving_share_the_rows() -> None:
    table = trained(EmbeddingVariable(4, seed=1))
    assert copy_sharing(nn.Sequential(table))[0].store is table.store
    rows, there = table.known(torch.tensor([5, 7]))
    assert there.tolist() == [True, False]
    assert torch.equal(rows[0], table(torch.tensor(5)))
    assert not rows[1].any()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ids", torch.tensor([3, 3, 5])),
        ("ids", torch.zeros(3)),
        ("rows", torch.zeros(3, 5)),
        ("rows", torch.zeros(3, 4, dtype=torch.int64)),
        ("seed", torch.zeros(2, dtype=torch.int64)),
    ],
)
def test_rows_that_cannot_be_are_an_error(name: str, value: Any) -> None:
    table = trained(EmbeddingVariable(4, seed=1))
    state = table.state_dict() | {name: value}
    with pytest.raises(RuntimeError, match=name):
        EmbeddingVariable(4, seed=1).load_state_dict(state)


def test_a_module_is_saved_by_import_path_and_arguments() -> None:
    bag = EmbeddingBagVariable(4, "sum", seed=1, min_count=2, counters=CountingBloom(100, 0.1))
    module = nn.Sequential(trained(trained(bag)), nn.Linear(4, 1))  # two look-ups
    info, code = content.describe(Content(module), allow_pickle=False)
    assert code is None
    found = content.build({**info, "pickled": []}, "path", weights.write(module, 1 << 20)).module
    assert found is not None
    ids = torch.tensor([[3, 5], [FAR, 8]])
    assert torch.equal(found(ids), module(ids))
    assert embedding_variables(found)["0.table"].counters == CountingBloom(100, 0.1)
    broken = [*weights.write(nn.Sequential(EmbeddingBagVariable(5, "sum", seed=1), nn.Linear(4, 1)), 1 << 20)]
    with pytest.raises(ModelError):
        content.build({**info, "pickled": []}, "path", broken)


@pytest.mark.parametrize(
    "options",
    [
        {"embedding_dim": 0},
        {"std": -1.0},
        {"min_count": 0},
        {"counters": 1000, "min_count": 2},
        {"counters": CountingBloom(1000)},
        {"max_age": 0},
        {"seed": -1},
        {"dtype": torch.int8},
    ],
)
def test_an_argument_that_cannot_work_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        EmbeddingVariable(**{"embedding_dim": 4} | options)


def test_ids_must_be_integers() -> None:
    with pytest.raises(ModelError, match="xxhash64"):
        EmbeddingVariable(4)(torch.zeros(3))
