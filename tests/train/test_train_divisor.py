"""Losses with a divisor of their own over partitions, against torch over the whole batch."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import pytest
import torch
from support.data import as_dataset, partitioned
from support.reference import Partition
from torch import nn
from torch.nn import functional

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import NonFiniteError, SparkdlWarning
from sparkdl.train import MaxIteration

SIZES = [20, 31, 9]
WEIGHT = torch.linspace(1, 50, 10)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 10)


def trainer(loss: Any, **options: Any) -> Trainer:
    settings = {"batch_size": sum(SIZES), "end_when": MaxIteration(3), "progress": False}
    return Trainer(module(), loss=loss, optimizer=partial(torch.optim.SGD, lr=0.1), **settings | options)


def labelled() -> list[Partition]:
    """Rows of which one partition has no label that counts."""
    first, second, third = partitioned(SIZES)
    return [first, Partition(second.x, np.full_like(second.y, -100)), third]


@pytest.mark.parametrize("weight", [WEIGHT, -WEIGHT, WEIGHT - 20], ids=["above 0", "below 0", "both"])
@pytest.mark.parametrize("exchange", ["replicated", "driver"])
def test_weights_and_labels_that_do_not_count(spark: Any, exchange: str, weight: torch.Tensor) -> None:
    loss = nn.CrossEntropyLoss(weight=weight)
    with as_dataset(spark, labelled()) as data:
        options = {"exchange": exchange, "micro_batch_size": 7, "validation_batch_size": 8}
        result = trainer(loss, **options).fit(data, validation=data)
    x = torch.tensor(np.concatenate([part.x for part in labelled()]))
    y = torch.tensor(np.concatenate([part.y for part in labelled()]))
    plain, losses = module(), []
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        found = loss(plain(x), y)
        losses.append(found.item())
        found.backward()
        optimizer.step()
    assert [row["loss"] for row in result.history] == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(result.module.weight, plain.weight, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert result.history.validations[-1]["loss"] == pytest.approx(loss(plain(x), y).item(), rel=1e-5)


def test_first_rows_without_weight_do_not_refuse_a_fit(spark: Any) -> None:
    """With label smoothing they have no loss of their own; the batch has other labels."""
    arrays = partitioned([30])[0]
    y = np.sort(arrays.y)
    assert (y[:2] == 0).all()
    loss = nn.CrossEntropyLoss(weight=torch.arange(10.0), label_smoothing=0.1)
    with Dataset.from_numpy(arrays.x, y, spark=spark, num_partitions=1) as data:
        result = trainer(loss, batch_size=30).fit(data)
    plain, x = module(), torch.from_numpy(arrays.x)
    own = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        own.zero_grad()
        loss(plain(x), torch.from_numpy(y)).backward()
        own.step()
    torch.testing.assert_close(result.module.weight, plain.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exchange", ["replicated", "sharded", "driver"])
def test_weights_of_partitions_that_add_up_to_0_are_infinite_as_in_torch(spark: Any, exchange: str) -> None:
    arrays = partitioned([16])[0]
    y = np.tile([0, 1], 8)
    parts = [Partition(arrays.x[y == n], y[y == n]) for n in (0, 1)]
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, -1.0, *[0.0] * 8]))
    assert not loss(module()(torch.from_numpy(arrays.x)), torch.from_numpy(y)).isfinite()
    told = pytest.raises(NonFiniteError, match="mean over partitions.*class weights below 0 add up to 0")
    with as_dataset(spark, parts) as data, told:
        trainer(loss, batch_size=16, exchange=exchange).fit(data)


def with_scalars(module: nn.Module, batch: Any) -> dict[str, Any]:
    found = functional.cross_entropy(module(batch.inputs), batch.label, weight=WEIGHT)
    return {"loss": found, "twice": 2 * found.detach(), "rows": float(batch.rows)}


@pytest.mark.parametrize("options", [{}, {"exchange": "driver", "micro_batch_size": 7}, {"local_steps": 2}])
def test_scalars_that_come_of_such_a_loss_have_its_divisor(spark: Any, options: dict[str, Any]) -> None:
    with as_dataset(spark, labelled()) as data:
        result = trainer(None, step=with_scalars, **options).fit(data)
    for row in result.history:
        assert row["extras"]["twice"] == pytest.approx(2 * row["loss"], rel=1e-6)


class Logs(lightning.LightningModule):
    """Logs its validation loss, as Lightning's users do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = module()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, label = batch
        return functional.cross_entropy(self(x), label, weight=WEIGHT)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, label = batch
        self.log("val_loss", functional.cross_entropy(self(x), label, weight=WEIGHT))
        self.log("mean", x.mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.parametrize("validation_batch_size", [None, 4])
def test_a_logged_loss_is_that_of_all_rows(spark: Any, validation_batch_size: int | None) -> None:
    """Batches without a label that counts, whose loss is NaN, are among them."""
    options = {"batch_size": sum(SIZES), "end_when": MaxIteration(1), "progress": False}
    with as_dataset(spark, labelled()) as data:
        run = Trainer(Logs(), validation_batch_size=validation_batch_size, **options)
        scores = run.fit(data, validation=data).scores
    x = torch.tensor(np.concatenate([part.x for part in labelled()]))
    y = torch.tensor(np.concatenate([part.y for part in labelled()]))
    with torch.no_grad():
        expected = functional.cross_entropy(module()(x), y, weight=WEIGHT).item()
    assert scores["val/val_loss"] == pytest.approx(expected, rel=1e-5)
    assert scores["val/mean"] == pytest.approx(x.mean().item(), rel=1e-5)


def total(output: Any, label: Any) -> Any:
    return functional.cross_entropy(output, label, reduction="sum")


def test_a_sum_is_told_once(spark: Any) -> None:
    told = pytest.warns(SparkdlWarning, match="no mean over rows.*num_partitions=1.*divisor")
    with as_dataset(spark, partitioned(SIZES)) as data, told as found:
        trainer(total).fit(data)
    assert len(found) == 1


class Counted(nn.Module):
    """An embedding whose gradient is divided by how often an id is in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(5, 3, scale_grad_by_freq=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.rows(ids)


@pytest.mark.parametrize("partitions", [1, 2])
def test_gradients_divided_by_counts_are_those_of_torch_or_told(spark: Any, partitions: int) -> None:
    ids, y = np.array([0, 0, 0, 1, 1, 2, 3, 3]), np.array([0, 1, 2, 0, 1, 2, 0, 1])
    torch.manual_seed(0)
    start = Counted()
    run = Trainer(
        start,
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.5),
        batch_size=8,
        end_when=MaxIteration(2),
        progress=False,
    )
    told = pytest.warns(SparkdlWarning, match="scale_grad_by_freq of rows.*num_partitions=1")
    with Dataset.from_numpy(ids, y, spark=spark, num_partitions=partitions) as data:
        if partitions > 1:
            with told:
                run.fit(data)
            return
        result = run.fit(data)
    plain = copy.deepcopy(start)
    own = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(2):
        own.zero_grad()
        functional.cross_entropy(plain(torch.from_numpy(ids)), torch.from_numpy(y)).backward()
        own.step()
    torch.testing.assert_close(result.module.rows.weight, plain.rows.weight)


def test_a_batchnorm_that_is_to_see_the_whole_batch_is_told(spark: Any) -> None:
    arrays = partitioned([30])[0]
    module = nn.Sequential(nn.Linear(arrays.x.shape[1], 10), nn.SyncBatchNorm(10))
    options = {"optimizer": partial(torch.optim.SGD, lr=0.1), "end_when": MaxIteration(1), "progress": False}
    run = Trainer(module, loss=nn.CrossEntropyLoss(), **options)
    told = pytest.warns(SparkdlWarning, match="1 is a SyncBatchNorm, which here is a BatchNorm")
    with Dataset.from_numpy(arrays.x, arrays.y, spark=spark, num_partitions=2) as data, told:
        run.fit(data)


def test_one_partition_is_torch_whatever_the_loss_is(spark: Any) -> None:
    arrays = partitioned([30])[0]
    with warnings.catch_warnings(), Dataset.from_numpy(arrays.x, arrays.y, num_partitions=1) as data:
        warnings.simplefilter("error")
        trainer(total, batch_size=30).fit(data)


@pytest.mark.parametrize("exchange", ["replicated", "driver"])
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_batch_without_a_label_that_counts_takes_no_step(
    spark: Any, partitions: int, exchange: str
) -> None:
    """Plain torch would take one with a gradient of zero: weights decay, and momentum moves them."""
    arrays = partitioned([30])[0]
    y = arrays.y.copy()
    y[10:20] = -100
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.5)
    options = {"batch_size": 10, "shuffle": False, "exchange": exchange, "end_when": MaxIteration(3)}
    run = Trainer(module(), loss=nn.CrossEntropyLoss(), optimizer=optimizer, progress=False, **options)
    with Dataset.from_numpy(arrays.x, y, spark=spark, num_partitions=partitions) as data:
        result = run.fit(data)
    plain, x = module(), torch.from_numpy(arrays.x)
    own = optimizer(plain.parameters())
    for rows in (slice(0, 10), slice(20, 30)):
        own.zero_grad()
        functional.cross_entropy(plain(x[rows]), torch.from_numpy(y[rows])).backward()
        own.step()
    torch.testing.assert_close(result.module.weight, plain.weight, rtol=1e-5, atol=1e-6)
    losses = [row["loss"] for row in result.history]
    assert losses[1] == losses[0] != losses[2]  # nothing is known of a loss of its own
