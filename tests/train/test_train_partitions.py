"""What the number of partitions changes: rounding, unless a source keeps its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.data import as_dataset, partitioned
from support.models import mlp
from support.reference import Partition, iteration_rows, relative_error
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.train import MaxIteration

ROWS = 120
WHOLE = partitioned([ROWS])[0]
SGD = partial(torch.optim.SGD, lr=0.1)


def in_shares(count: int) -> list[Partition]:
    """Return the same rows, in the same order, in as many partitions."""
    x, y = np.array_split(WHOLE.x, count), np.array_split(WHOLE.y, count)
    return [Partition(*share) for share in zip(x, y, strict=True)]


def trained(spark: Any, count: int, batch_size: int, **options: Any) -> nn.Module:
    ends = {"end_when": MaxIteration(12), "seed": 3, "progress": False}
    trainer = Trainer(
        mlp(), loss=nn.CrossEntropyLoss(), optimizer=SGD, batch_size=batch_size, **ends, **options
    )
    with as_dataset(spark, in_shares(count)) as data:
        return trainer.fit(data).module


def test_a_batch_of_all_rows_differs_by_rounding(spark: Any) -> None:
    module, loss = mlp(), nn.CrossEntropyLoss()
    optimizer = SGD(module.parameters())
    for _ in range(12):
        optimizer.zero_grad()
        loss(module(torch.from_numpy(WHOLE.x)), torch.from_numpy(WHOLE.y)).backward()
        optimizer.step()
    for count in (1, 3, 4):
        assert relative_error(trained(spark, count, ROWS), module) < 1e-6


def test_iterations_without_rows_change_nothing(spark: Any) -> None:
    """Three partitions of one row each give theirs to the last of three iterations."""
    rows, module, loss = partitioned([1, 1, 1]), mlp(), nn.CrossEntropyLoss()
    x, y = (torch.from_numpy(np.concatenate(part)) for part in zip(*((p.x, p.y) for p in rows), strict=True))
    optimizer = SGD(module.parameters())
    expected = loss(module(x), y)
    expected.backward()
    optimizer.step()
    trainer = Trainer(mlp(), loss=loss, optimizer=SGD, batch_size=1, progress=False)
    with as_dataset(spark, rows) as data:
        result = trainer.fit(data)
    assert relative_error(result.module, module) < 1e-6
    assert result.history.column("samples") == [0, 0, 3]
    assert result.history[-1]["loss"] == pytest.approx(expected.item())
    for row in result.history[:2]:
        assert (row["dropped"], row["lost"], row["direct"], row["extras"]) == (0, 0, 0, {})
        assert row["phases"]["other"] == row["seconds"]
        assert not any(row["bytes"].values())


def double(spark: Any, rows: int, count: int, shuffle: bool, source: str) -> nn.Module:
    """Train in double precision, in which rounding is far from anything else."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(rows, 64)), generator.integers(0, 10, rows)
    ends = {"end_when": MaxIteration(6), "seed": 3, "progress": False, "shuffle": shuffle}
    trainer = Trainer(mlp().double(), loss=nn.CrossEntropyLoss(), optimizer=SGD, batch_size=31, **ends)
    if source == "torch":
        items = [(torch.from_numpy(row), int(label)) for row, label in zip(x, y, strict=True)]
        made = Dataset.from_torch(items, spark=spark, num_partitions=count)
    else:
        made = Dataset.from_numpy(x, y, spark=spark, num_partitions=count, transform=torch.Tensor.double)
    with made as data:
        return trainer.fit(data).module


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    ("rows", "source"), [(5, "numpy"), (121, "numpy"), (121, "torch"), (1000, "numpy"), (1680, "numpy")]
)
def test_the_number_of_partitions_changes_rounding_only(
    spark: Any, rows: int, source: str, shuffle: bool
) -> None:
    one, *others = (double(spark, rows, count, shuffle, source) for count in (1, 2, 3, 7))
    for other in others:
        assert relative_error(other, one) < 1e-12


def test_a_batch_without_shuffle_is_the_next_rows(spark: Any) -> None:
    module, loss = mlp().double(), nn.CrossEntropyLoss()
    optimizer = SGD(module.parameters())
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(124, 64)).astype(np.float32), generator.integers(0, 10, 124)
    for step in range(6):
        batch = slice(step % 4 * 31, (step % 4 + 1) * 31)
        optimizer.zero_grad()
        loss(module(torch.from_numpy(x[batch]).double()), torch.from_numpy(y[batch])).backward()
        optimizer.step()
    assert relative_error(double(spark, 124, 3, False, "numpy"), module) < 1e-12


@pytest.mark.parametrize("shuffle", [True, False])
def test_partitions_that_are_kept_decide_which_rows_share_a_batch(spark: Any, shuffle: bool) -> None:
    one, three = (trained(spark, count, 30, shuffle=shuffle) for count in (1, 3))
    assert relative_error(one, three) > 1e-4


def test_a_batch_has_a_share_of_each_partition() -> None:
    _, rows = iteration_rows(in_shares(3), 30, 0, seed=3)
    assert [len(share) for share in rows] == [10, 10, 10]
    _, whole = iteration_rows(in_shares(1), 30, 0, seed=3)
    assert set(whole[0]) != {n + 40 * p for p, share in enumerate(rows) for n in share}
