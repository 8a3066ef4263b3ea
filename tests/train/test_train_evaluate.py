"""Evaluation as a Spark job against a single pass on the driver."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from support.shipping import Classifier, fit_spec, ship
from torch import nn
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import (
    BinaryAccuracy,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
)
from torchmetrics.regression import MeanSquaredError

from sparkdl import Dataset
from sparkdl.data.columns import ColumnPlan, make_plan, structure_of
from sparkdl.exceptions import ConfigError, DataError, ModelError, SerializationError, SparkdlWarning
from sparkdl.metrics import Loss, MetricSpec
from sparkdl.nn import serialize
from sparkdl.train.passes.evaluate import Evaluator, check_metrics
from sparkdl.train.passes.sweep import rows_per_batch

pytestmark = pytest.mark.jvm  # DataFrames

ROWS = 90


def rows_of(df: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    collected = df.collect()
    x = torch.tensor([row.x for row in collected], dtype=torch.float32)
    return x, torch.tensor([row.y for row in collected]), torch.tensor([row.w for row in collected])


def frame_of(spark: Any) -> Any:
    """Rows in partitions of which two are empty and one is short."""
    df = spark.range(0, ROWS, numPartitions=6).filter("id < 15 or (id >= 45 and id < 62) or id > 85")
    x = F.array(*[F.sin(F.col("id") * (i + 1)).cast("float") for i in range(4)])
    return df.select(
        x.alias("x"), (F.col("id") % 3).alias("y"), (1 + F.col("id") % 4).cast("float").alias("w")
    )


def metrics() -> dict[str, Any]:
    return {
        "accuracy": MulticlassAccuracy(3, average="micro"),
        "both": MetricCollection([MulticlassAccuracy(3), MulticlassAUROC(3, thresholds=None)]),
        "confusion": MulticlassConfusionMatrix(3),
        "top": (
            MulticlassAccuracy(3, average="micro"),
            lambda output, label, inputs: (output.argmax(1), label),
        ),
        "cross_entropy": Loss(),
    }


def test_scores_are_those_of_a_single_pass(spark: Any) -> None:
    df = frame_of(spark)
    x, y, w = rows_of(df)
    module, loss = Classifier(), nn.CrossEntropyLoss(reduction="none")
    with (
        Dataset.from_dataframe(df, features="x", label="y", weight="w", num_partitions="input") as data,
        ship(spark, fit_spec(module, data, loss)) as to,
    ):
        assert data.store().rows == (15, 0, 0, 15, 2, 4)
        evaluator = Evaluator(to.access, to.fit, to.sent, metrics(), batch_size=7)
        first = evaluator.run(data, to.weights, "a test")
        second = evaluator.run(data, to.weights, "a test")
        evaluator.release()
    module.eval()
    with torch.no_grad():
        output = module(x)
        expected = {"loss": ((loss(output, y) * w).sum() / w.sum()).item()}
    expected["cross_entropy"] = expected["loss"]
    for name, found in metrics().items():
        if name in ("top", "cross_entropy"):
            continue
        found.update(output, y)
        value = found.compute()
        expected |= (
            {f"{name}/{key}": v.item() for key, v in value.items()}
            if isinstance(value, dict)
            else {f"{name}/{i}/{j}": value[i, j].item() for i in range(3) for j in range(3)}
            if value.ndim
            else {name: value.item()}
        )
    expected["top"] = expected["accuracy"]
    assert first == second
    assert first.keys() == expected.keys()
    for name, value in expected.items():
        exact = name.startswith(("accuracy", "confusion", "top"))
        assert first[name] == (value if exact else pytest.approx(value, rel=1e-5)), name


def test_logits_of_small_batches_are_logits(spark: Any) -> None:
    """Torchmetrics takes those of a batch from 0 to 1 for probabilities."""
    scores = np.linspace(-1, 2, 30).astype(np.float32)
    labels = (np.arange(30) * 7 % 30 > 14).astype(np.float32)
    module, loss = nn.Sequential(nn.Linear(1, 1), nn.Flatten(0)), nn.MSELoss()
    nn.init.ones_(module[0].weight)
    nn.init.zeros_(module[0].bias)
    with (
        Dataset.from_numpy(scores[:, None], labels, spark=spark, num_partitions=2) as data,
        ship(spark, fit_spec(module, data, loss)) as to,
    ):
        evaluator = Evaluator(to.access, to.fit, to.sent, {"right": BinaryAccuracy()}, batch_size=1)
        for _ in range(2):
            found = evaluator.run(data, to.weights, "a test")
            assert found["right"] == pytest.approx(((scores > 0) == labels).mean())
        evaluator.release()


def test_a_missing_partition_is_rebuilt_and_bad_rows_are_named(spark: Any) -> None:
    df = frame_of(spark)
    bad = df.withColumn("y", F.when(F.col("w") == 4, 7).otherwise(F.col("y")).cast("long"))
    with (
        Dataset.from_dataframe(df, features="x", label="y", num_partitions=2) as data,
        Dataset.from_dataframe(bad, features="x", label="y", num_partitions=1) as other,
        Dataset.from_dataframe(df, features="x", num_partitions=1) as unlabelled,
        ship(spark, fit_spec(Classifier(), data, nn.CrossEntropyLoss(ignore_index=7))) as to,
    ):
        evaluator = Evaluator(to.access, to.fit, to.sent, MulticlassAccuracy(3))
        before = evaluator.run(data, to.weights, "a test")
        shutil.rmtree(data.store().partitions[1].folder)
        assert evaluator.run(data, to.weights, "a test") == before
        with pytest.raises(ModelError, match=r"partition 0, rows 0 to \d+: metric 'multiclass_accuracy'"):
            evaluator.run(other, to.weights, "a test")
        evaluator.release()
        confidence = MetricSpec(
            MeanSquaredError(), lambda output, label, inputs: (output, torch.ones_like(output))
        )
        evaluator = Evaluator(to.access, to.fit, to.sent, {"distance": confidence})
        assert list(evaluator.run(unlabelled, to.weights, "a test")) == ["distance"]
        evaluator.release()


# -- the dry run --------------------------------------------------------------------------------


def peekable(x: Any, label: Any = None, weight: Any = None, transform: Any = None) -> Any:
    """Looks like a Dataset that was only peeked at."""
    groups = {"features": x, "label": label}
    features, labels = (structure_of(value, role) for role, value in groups.items())
    columns = features.disassemble(x) | labels.disassemble(label)
    columns |= {} if weight is None else {"weight": weight}
    plan = make_plan(features, labels, {key: ColumnPlan(key, key) for key in columns}, weight is not None)
    return SimpleNamespace(plan=plan, transform=transform, collate=None, peek=lambda: columns)


X = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
Y = np.array([0, 2])


def check(data: Any, metrics: Any, trained: Any = None, **objective: Any) -> list[str]:
    objective = objective or {"loss": nn.CrossEntropyLoss()}
    spec = fit_spec(Classifier(), data if trained is None else trained, **objective)
    return check_metrics(serialize.dumps(spec, "spec"), data, metrics).measured


def test_names_of_the_scores() -> None:
    assert check(peekable(X, Y), None) == ["loss"]
    names = check(peekable(X, Y), [MulticlassAccuracy(3), MulticlassAUROC(3)])
    assert names == ["loss", "multiclass_accuracy", "multiclass_auroc"]
    names = check(peekable(X, Y), {"per_class": MulticlassAccuracy(3, average=None)})
    assert names == ["loss", *(f"per_class/{i}" for i in range(3))]


def test_a_run_without_label_may_be_measured_with_one() -> None:
    def small(output: Any, inputs: Any) -> Any:
        assert inputs.shape[1] == 4
        return output.square().mean()

    found = check(peekable(X, Y), MulticlassAccuracy(3), trained=peekable(X), loss=small)
    assert found == ["loss", "multiclass_accuracy"]


def test_rows_without_the_label_that_the_loss_needs() -> None:
    entropy = MetricSpec(MeanSquaredError(), lambda output, label, inputs: (output, output))
    assert check(peekable(X), {"none": entropy}, trained=peekable(X, Y)) == ["none"]
    with pytest.raises(
        ConfigError, match="metric 'other' is the loss, which needs a label that the rows have not"
    ):
        check(peekable(X), {"other": Loss()}, trained=peekable(X, Y))


def test_first_rows_whose_label_does_not_count() -> None:
    """They are half labelled, as for semi-supervised training: the loss is a score like any other."""
    assert check(peekable(X, np.array([-100, -100])), None, trained=peekable(X, Y)) == ["loss"]


class Leaky(Metric):
    def __init__(self) -> None:
        super().__init__()
        self.add_state("seen", torch.zeros(()))  # no reduction: a common mistake

    def update(self, output: Any, label: Any) -> None:
        self.seen = self.seen + len(label)

    def compute(self) -> Any:
        return self.seen


class CannotCopy(MeanMetric):
    def __init__(self) -> None:
        super().__init__()
        self.handle = (i for i in range(3))


def step(module: Any, batch: Any) -> Any:
    return {"loss": module(batch.inputs).mean()}


@pytest.mark.parametrize(
    ("metrics", "objective", "error", "message"),
    [
        (
            {"mse": MeanSquaredError()},
            {},
            ModelError,
            r"metric 'mse' \(MeanSquaredError\) failed on output float32\[2, 3\] and label int64\[2\]: ",
        ),
        ({"a": MulticlassAccuracy(5)}, {}, ModelError, "metric 'a' .*MulticlassAccuracy.* failed on output"),
        ({"a": (MulticlassAccuracy(3), lambda *_: 1 / 0)}, {}, ModelError, "metric 'a' .*ZeroDivisionError"),
        ({"leaky": Leaky()}, {}, ConfigError, "metric 'leaky' .Leaky. cannot be computed in parts"),
        ({"locked": CannotCopy()}, {}, SerializationError, "metric 'locked' cannot be copied .*generator"),
        (MulticlassAccuracy(3), {"step": step}, ModelError, "nothing to measure: the step must return"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    metrics: Any, objective: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        check(peekable(X, Y), metrics, **objective)


def test_a_metric_that_depends_on_batches_is_told() -> None:
    """A mean of batches' means: a batch of one row counts as much as one of many."""

    def largest(output: Any, label: Any, inputs: Any) -> Any:
        return output.max(1).values

    assert check(peekable(X, Y), {"rows": (MeanMetric(), largest)}) == ["loss", "rows"]
    with pytest.warns(SparkdlWarning, match=r"metric 'means' \(MeanMetric\) depends on how rows are cut"):
        check(peekable(X, Y), {"means": (MeanMetric(), lambda *given: largest(*given).mean())})


def test_transform_and_weights_are_checked_as_well() -> None:
    with pytest.raises(DataError, match="the transform failed: KeyError"):
        check(peekable(X, Y, transform=lambda x: {}["x"]), None)
    with pytest.raises(ModelError, match="reduction='none'"):
        check(peekable(X, Y, weight=np.ones(2, np.float32)), None)


def test_batches_hold_about_a_mebibyte() -> None:
    def default(row_bytes: int) -> int:
        return rows_per_batch(SimpleNamespace(plan=SimpleNamespace(row_bytes=row_bytes)), None)

    assert [default(n) for n in (0, 24, 785, 4096, 150_528)] == [4096, 4096, 1335, 256, 32]
    assert rows_per_batch(None, 5) == 5
