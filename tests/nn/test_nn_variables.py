"""Embedding variables put together: look-ups by hand, and training."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn import AdaptiveVariable, DynamicDimensionVariable, EmbeddingVariable, MultiHashVariable
from sparkdl.saved.source import ModuleSource
from sparkdl.train import MaxIteration

FAR = 2**60
SEED = {"seed": 3}


def trained(table: EmbeddingVariable, *ids: int) -> None:
    table.store.count(np.array(sorted(ids)), np.ones(len(ids), np.int64), 0, lambda rows: {})


@pytest.mark.parametrize("operation", ["multiply", "add", "concatenate"])
def test_an_id_is_a_quotient_and_a_remainder(operation: Any) -> None:
    module = MultiHashVariable(4, 10, operation, SEED)
    trained(module.quotients, *range(10))
    trained(module.remainders, *range(10))
    ids = torch.tensor([[37, 137], [99, -1]])
    found = module(ids)
    first, second = module.quotients(torch.tensor(3)), module.remainders(torch.tensor(7))
    together = {"multiply": first * second, "add": first + second, "concatenate": torch.cat([first, second])}
    assert torch.equal(found[0, 0], together[operation])
    assert torch.equal(found[0, 0], found[0, 1])  # equal modulo 100
    assert torch.equal(found[1, 0], found[1, 1])
    every = module(torch.arange(100)).detach()
    assert len(torch.unique(every, dim=0)) == 100
    assert ModuleSource.infer(module).build().operation == operation


def test_frequent_ids_have_more_blocks() -> None:
    module = DynamicDimensionVariable(2, 3, SEED)
    for table in module.tables:
        trained(table, 5, FAR)
    ids = torch.tensor([[5, FAR], [5, 7]])
    found = module(ids, torch.tensor([[1, 3], [0, 2]]))
    assert found.shape == (2, 2, 6)
    assert torch.equal((found != 0).sum(-1), torch.tensor([[2, 6], [0, 0]]))  # 7 has no row: zeros, too
    with pytest.raises(ModelError, match="expected one shape"):
        module(ids, torch.tensor([1]))


def test_rare_ids_share_rows_of_buckets() -> None:
    module = AdaptiveVariable(4, 10, {**SEED, "min_count": 2})
    module.own.store.count(np.array([5, 25]), np.array([2, 1]), 0, lambda rows: {})
    trained(module.shared, *range(10))
    found = module(torch.tensor([5, 25, 35, 36]))
    assert torch.equal(found[0], module.own(torch.tensor(5)))
    assert torch.equal(found[1], found[2])
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[2], found[3])
    assert module.shared.store.rule.min_count == 1


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(ConfigError, match="operation='divide'"):
        MultiHashVariable(4, 10, "divide")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="embedding_dim=3: expected an even number"):
        MultiHashVariable(3, 10, "concatenate")
    with pytest.raises(ConfigError, match="buckets=4000000000"):
        MultiHashVariable(4, 4_000_000_000)


class Sums(nn.Module):
    """Every kind of table, and one that two columns share."""

    def __init__(self) -> None:
        super().__init__()
        self.hashed = MultiHashVariable(4, 10, "add", SEED)
        self.dynamic = DynamicDimensionVariable(2, 2, SEED)
        self.adaptive = AdaptiveVariable(4, 5, {**SEED, "min_count": 4})
        self.common = EmbeddingVariable(4, seed=9, min_count=2)
        self.head = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        one, two = ids[:, 0], ids[:, 1]
        rows = self.hashed(one) + self.dynamic(one, 1 + two % 2) + self.adaptive(one)
        return self.head(rows + self.common(one) * self.common(two)).squeeze(1)


def test_all_of_them_train(in_process: Any) -> None:
    random = np.random.default_rng(0)
    ids = random.integers(0, 12, (80, 2))
    label = random.normal(size=12).astype(np.float32)[ids[:, 0]]
    torch.manual_seed(0)
    with Dataset.from_numpy(ids, label, spark=in_process, num_partitions=2) as data:
        trainer = Trainer(
            Sums(),
            loss=nn.MSELoss(),
            optimizer=partial(torch.optim.Adagrad, lr=0.3),
            batch_size=20,
            end_when=MaxIteration(40),
            progress=False,
        )
        result = trainer.fit(data)
        scores = [trainer.evaluate(data)["loss"] for _ in range(2)]
    history = result.history
    assert history.column("loss")[-1] < 0.3 * history.column("loss")[0]
    assert scores[0] == scores[1] < 0.2
    module = result.module
    # An id of either column is counted once: a table that two columns share has the ids of both.
    kept = module.common.store.entries().sorted()
    assert kept.ids.tolist() == sorted({*ids.ravel().tolist()})
    assert kept.counts.sum() == 2 * 20 * 40
    assert history.column("extras.common/rows")[-1] == len(kept.ids)
    shared = module.adaptive.shared.store.entries()
    assert sorted(shared.ids.tolist()) == list(range(5))
    assert (module.adaptive.shared.store.entries().columns["row"] != 0).any()


def test_an_evaluation_changes_no_table(in_process: Any) -> None:
    table = EmbeddingVariable(4, seed=1)
    trained(table, 3, 5)
    module = nn.Sequential(table, nn.Flatten(), nn.Linear(4, 1)).eval()
    before = table.store.entries()
    ids = np.array([[3], [4], [4]])
    with Dataset.from_numpy(ids, spark=in_process, num_partitions=1) as data:
        trainer = Trainer(
            module, loss=nn.MSELoss(), optimizer=partial(torch.optim.SGD, lr=0.1), progress=False
        )
        found = trainer.predict(data)
    assert found[1] == found[2]  # both have the row of unknown ids
    assert found[0] != found[1]
    after = table.store.entries()
    assert (after.ids.tolist(), after.counts.tolist()) == (before.ids.tolist(), before.counts.tolist())
