"""What is wrong is said before long work starts, by name, and nothing is left behind."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import mlp
from torch import nn
from torchmetrics import Metric

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import (
    ConfigError,
    DataError,
    ModelError,
    NonFiniteError,
    OptimizerError,
    SerializationError,
    TaskError,
)
from sparkdl.nn.meeting import ROWS
from sparkdl.train import MaxEpoch, MaxIteration

SGD = partial(torch.optim.SGD, lr=0.1)
X = np.ones((40, 64), np.float32)
Y = np.zeros(40, np.int64)


def fit(spark: Any, module: nn.Module, loss: Any = None, x: Any = X, y: Any = Y, **options: Any) -> Any:
    transform = options.pop("transform", None)
    weight = options.pop("weight", None)
    options = {"optimizer": SGD, "batch_size": 20, "progress": False, "end_when": MaxEpoch(1)} | options
    loss = loss or nn.CrossEntropyLoss()
    with Dataset.from_numpy(x, y, weight, spark=spark, num_partitions=2, transform=transform) as data:
        return Trainer(module, loss=loss, **options).fit(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0: expected an integer of at least 1"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"seed": -1}, "seed=-1"),
        ({"micro_batch_size": 0}, "micro_batch_size=0"),
        ({"end_when": 5}, r"end_when=5: expected a trigger such as MaxEpoch\(5\)"),
        ({"batchsize": 5}, r"unknown option batchsize \(did you mean batch_size\?\); expected one of loss"),
        ({"optimizer": 0.1}, "optimizer=0.1: expected a factory"),
    ],
)
def test_options(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(mlp(), loss=nn.CrossEntropyLoss(), **({"optimizer": SGD} | options))


def test_optimizers_that_need_a_closure() -> None:
    with pytest.raises(
        OptimizerError, match=r"LBFGS cannot be trained with.*needs a closure.*sparkdl\.optim\.LBFGS"
    ):
        Trainer(mlp(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.LBFGS)


def test_optimizer_of_another_module() -> None:
    other = torch.optim.SGD(mlp().parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="does not hold parameter '0.weight'"):
        Trainer(mlp(), loss=nn.CrossEntropyLoss(), optimizer=other)


def test_nothing_to_train(spark: Any) -> None:
    with pytest.raises(ModelError, match="ReLU has no parameter with requires_grad=True: there is nothing"):
        fit(spark, nn.ReLU())


def test_wrong_feature_size_names_the_layer(spark: Any) -> None:
    with pytest.raises(
        ModelError,
        match=r"row 0 of the Dataset .*layer '0', Linear\(in_features=64.*got input float32\[2, 63\], "
        r"expected float\[\.\.\., 64\]",
    ):
        fit(spark, mlp(), x=X[:, :63])


def test_wrong_input_dtype_names_the_layer(spark: Any) -> None:
    with pytest.raises(ModelError, match=r"layer '0', Linear.*got input int64\[2, 64\]"):
        fit(spark, mlp(), x=X.astype(np.int64))


def test_label_that_would_broadcast(spark: Any) -> None:
    with pytest.raises(ModelError, match="target size"):
        fit(spark, mlp(64, 1), nn.MSELoss(), y=Y.astype(np.float32))


@pytest.mark.parametrize("loss", [lambda o, y: (o - y).square().mean(), lambda o, y: (o - y).abs()])
def test_label_that_would_broadcast_in_a_loss_of_ones_own(spark: Any, loss: Any) -> None:
    with pytest.raises(
        ModelError, match=r"the loss compares rows with each other: sub of an output of shape"
    ) as c:
        fit(spark, mlp(64, 1), loss, y=Y.astype(np.float32))
    assert "(rows, 1) and a label of shape (rows,) broadcast to (rows, rows)" in str(c.value)


def test_validation_labels_and_metrics_that_would_broadcast(spark: Any) -> None:
    class Error(Metric):
        full_state_update = False

        def __init__(self) -> None:
            super().__init__()
            self.add_state("sum", torch.tensor(0.0), "sum")

        def update(self, output: Any, label: Any) -> None:
            self.sum += (output - label).abs().sum()

        def compute(self) -> Any:
            return self.sum

    y = Y.astype(np.float32)
    kwargs: Any = {"spark": spark, "num_partitions": 1}
    options: Any = {"optimizer": SGD, "progress": False, "batch_size": 40, "end_when": MaxEpoch(1)}
    loss = lambda output, label: (output - label).square().mean()  # noqa: E731
    with Dataset.from_numpy(X, y[:, None], **kwargs) as data, Dataset.from_numpy(X, y, **kwargs) as other:
        trainer = Trainer(mlp(64, 1), loss=loss, **options)
        with pytest.raises(ModelError, match="the loss compares rows with each other"):
            trainer.fit(data, other)
        with pytest.raises(ModelError, match="target size"):
            Trainer(mlp(64, 1), loss=nn.MSELoss(), **options).evaluate(other)
        squeezing = lambda output, label: (output[:, 0] - label.reshape(-1)).square().mean()  # noqa: E731
        trainer = Trainer(mlp(64, 1), loss=squeezing, metrics=Error(), **options)
        assert trainer.evaluate(data)["error"] > 0
        with pytest.raises(ModelError, match="metric 'error' compares rows with each other"):
            trainer.evaluate(other)


def test_weights_of_one_element_arrays(spark: Any) -> None:
    with pytest.raises(DataError, match=r"weight has shape \(40, 1\); expected one number per row"):
        fit(spark, mlp(), nn.CrossEntropyLoss(reduction="none"), weight=np.ones((40, 1)))
    rows = spark.sparkContext.parallelize([(X[0], 0, np.ones(1))] * 4, 2)
    with pytest.raises(DataError, match=r"column 'weight', row 0 .*shape \(1,\) where a number is expected"):
        Dataset.from_rdd(rows, has_weight=True).peek()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda output, label: 1.0, "the loss returned a float; expected a torch.Tensor"),
        (lambda output, label: output.mean(dim=0), r"returned shape \(10,\) for 2 rows"),
        (lambda output, label: torch.tensor(1.0), "does not depend on any trainable parameter"),
        (lambda output, label: output[99], "the loss failed: IndexError"),
    ],
)
def test_losses_that_are_none(spark: Any, loss: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        fit(spark, mlp(), loss)


def test_scalar_loss_with_weights(spark: Any) -> None:
    with pytest.raises(ModelError, match="reduction='none'"):
        fit(spark, mlp(), weight=np.ones(40))


def test_all_weights_zero(spark: Any) -> None:
    loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(DataError, match="weight column 'weight': all 40 weights are zero") as caught:
        fit(spark, mlp(), loss, weight=np.zeros(40))
    assert caught.value.code == "data-value"


def test_all_weights_of_the_validation_zero(spark: Any) -> None:
    """Its loss would never have a value, and what monitors it would never fire."""
    loss = nn.CrossEntropyLoss(reduction="none")
    with (
        Dataset.from_numpy(X, Y, np.ones(40), spark=spark, num_partitions=2) as data,
        Dataset.from_numpy(X, Y, np.zeros(40), spark=spark, num_partitions=2) as empty,
    ):
        options: dict[str, Any] = {"optimizer": SGD, "progress": False, "loss": loss}
        with pytest.raises(
            DataError, match="all 40 weights are zero, so the monitored score, the loss on 'b'"
        ):
            Trainer(mlp(), monitor="b/loss", **options).fit(data, {"a": data, "b": empty})
        result = Trainer(mlp(), monitor="a/loss", **options).fit(data, {"a": data, "b": empty})
    assert list(result.scores) == ["a/loss", "b/loss"]
    assert np.isnan(result.scores["b/loss"])


def test_a_module_without_values() -> None:
    with torch.device("meta"):
        module = mlp()
    with pytest.raises(ModelError, match="parameter '0.weight' of Sequential is on the meta device"):
        Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=SGD)


def test_a_timeline_that_cannot_be_written(spark: Any, tmp_path: Path) -> None:
    with Dataset.from_numpy(X, Y, spark=spark) as data:
        with pytest.raises(ConfigError, match="timeline='.*' cannot be written: .* is a folder"):
            Trainer(mlp(), loss=nn.CrossEntropyLoss(), optimizer=SGD, timeline=str(tmp_path)).fit(data)
        assert data._store is None  # nothing has been done yet


def test_transform_that_drops_rows(spark: Any) -> None:
    with pytest.raises(DataError, match="transform must return tensors with the batch's 2 rows"):
        fit(spark, mlp(), transform=lambda x: x[:1])


@pytest.mark.jvm
def test_transform_that_fails(spark: Any) -> None:
    with pytest.raises(DataError, match="transform failed on row 0.*ZeroDivisionError"):
        fit(spark, mlp(), transform=lambda x: x * (1 / 0))


def test_module_that_cannot_be_pickled(spark: Any) -> None:
    module = mlp()
    module[1].lock = threading.Lock()
    with pytest.raises(SerializationError, match=r"module\.1\.lock is a lock, which cannot be pickled"):
        fit(spark, module)


def test_loss_becomes_nan_and_the_last_good_state_is_kept(spark: Any) -> None:
    x = X.copy()
    x[33] = np.nan  # in the second partition, visited once per epoch
    with pytest.raises(
        NonFiniteError,
        match=r"loss became nan in partition 1 \(iteration \d, epoch 1\). "
        "It comes from column 'features', row 33: nan. Filter",
    ) as caught:
        fit(spark, mlp(), x=x, end_when=MaxIteration(9), batch_size=5, seed=1)
    result = caught.value.result
    assert result.stopped_by == "error"
    assert result.state.iteration == len(result.history)
    assert all(torch.isfinite(p).all() for p in result.module.parameters())


def test_gradient_becomes_infinite(spark: Any) -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x: Any) -> Any:
            return ((x * self.weight).sum(dim=1) - 64 + (x[:, 0] - 1)).abs().sqrt()

    x = X.copy()
    x[:2] = 1.5  # the dry run sees a finite gradient, the other rows divide by zero
    with pytest.raises(NonFiniteError, match="gradient of parameter 'weight' became NaN or infinite"):
        fit(spark, Root(), lambda output, _: output.mean(), x=x)


@pytest.mark.jvm
def test_module_that_fails_in_a_task(spark: Any) -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Any) -> Any:
            if bool((x > 1).any()):
                raise RuntimeError("this row is poison")
            return self.inner(x)

    x = X.copy()
    x[30] = 2.0
    with pytest.raises(ModelError, match=r"module Picky: .*RuntimeError: this row is poison") as caught:
        fit(spark, Picky(), x=x, batch_size=40)
    assert "iteration 1, partition 0, rows" in str(caught.value)
    assert "py4j" not in str(caught.value)


def test_embedding_index_out_of_range_in_a_task(spark: Any) -> None:
    ids = np.zeros(40, np.int64)
    ids[30] = 99
    with pytest.raises(ModelError, match=r"Embedding\(10, 4\): .*expected integers from 0 to 9"):
        fit(spark, nn.Embedding(10, 4), lambda output, _: output.mean(), x=ids, batch_size=40)


@pytest.mark.jvm
def test_worker_that_dies(spark: Any) -> None:
    class Deadly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Any) -> Any:
            if len(x) > ROWS:  # the driver tries so many itself
                import os

                os._exit(1)
            return self.inner(x)

    with pytest.raises(TaskError, match="training iteration 1") as caught:
        fit(spark, Deadly(), batch_size=40)
    assert caught.value.result.state.iteration == 0


@pytest.mark.slow
def test_a_poison_row_costs_one_retry_budget_and_leaves_nothing_running(cluster: Any, tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"

    class Poisoned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Any) -> Any:
            if (x > 50).any():
                with attempts.open("a") as file:
                    file.write("x")
                raise RuntimeError("this row is poison")
            return self.inner(x)

    x = np.zeros((80, 64), np.float32)
    x[77] = 99
    begin = time.monotonic()
    with pytest.raises(ModelError, match="this row is poison") as caught:
        fit(cluster, Poisoned(), x=x, y=np.zeros(80, np.int64), batch_size=80)
    print(f"failed after {time.monotonic() - begin:.1f} s")
    assert 'raise RuntimeError("this row is poison")' in str(caught.value)  # the user's own traceback
    # At most once directly; then four attempts (spark.task.maxFailures); each twice, to name the layer.
    assert attempts.stat().st_size in (8, 10)
    assert cluster.sparkContext.statusTracker().getActiveJobsIds() == []
    assert cluster.sparkContext.statusTracker().getActiveStageIds() == []
