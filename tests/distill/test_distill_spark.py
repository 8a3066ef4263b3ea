"""Distillation of DataFrames, in a real session."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from sparkdl.distill import KD, Distiller, SoftLabels, Teacher
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml import TorchClassifier, TorchEstimator
from sparkdl.train import MaxEpoch

pytestmark = pytest.mark.jvm
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 6)).astype(np.float32)
Y = RANDOM.integers(0, 3, 60)


def net(width: int, inputs: int = 6, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 3))


def test_dataframes_of_spark_and_pandas(spark: Any) -> None:
    """Columns, other inputs, unlabelled rows, and a share for validation."""
    frame = pd.DataFrame({"x": list(X), "y": np.where(np.arange(60) < 20, Y, -1), "wide": list(X[:, :4])})
    with torch.no_grad():
        frame["odds"] = list(torch.softmax(net(9, seed=3)(torch.from_numpy(X)), 1).numpy())
    df = spark.createDataFrame(frame).repartition(2).sortWithinPartitions("y")
    teachers = [
        net(16, seed=1),
        Teacher(net(12, 4, seed=2), inputs=["wide"], weight=2.0),
        SoftLabels("odds", outputs="probabilities"),
    ]
    options: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=0.1), "progress": False}
    options |= {"batch_size": 20, "end_when": MaxEpoch(2)}
    found = []
    for keep in ("all", None):
        distill = Distiller(net(4), teachers, keep=keep, **options)
        found.append(distill.fit(df, 0.2, features="x", label="y"))
        assert "val/loss" in found[-1].scores
    for one, live in zip(*(result.module.state_dict().values() for result in found), strict=True):
        torch.testing.assert_close(one, live, atol=2e-3, rtol=0)
    distill = Distiller(net(4), teachers, keep=2, **options)
    assert distill.fit(frame, df, features="x", label="y").history[-1]["extras"]["answered"] == 1
    assert distill.cost is not None
    assert distill.cost.rows == 60
    with pytest.raises(DataError, match="nowhere"):
        Distiller(net(4), SoftLabels("nowhere"), **options).fit(df, features="x", label="y")
    with pytest.raises(ConfigError, match="expected one column"):
        Distiller(net(4), teachers, **options).fit(df, features="x", label=["y", "wide"])  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_estimator_learns_a_column_of_a_fitted_model(spark: Any, tmp_path: Any) -> None:
    frame = pd.DataFrame({"features": list(X.astype(float)), "label": Y.astype(float)})
    df = spark.createDataFrame(frame)
    options: dict[str, Any] = {"maxEpochs": 2, "batchSize": 20}
    teacher = TorchClassifier(module=net(16, seed=1), **options).fit(df)
    soft = teacher.setRawPredictionCol("soft").setPredictionCol("").setProbabilityCol("").transform(df)
    student = TorchEstimator(
        module=net(4),
        labelCols=["soft", "label"],
        loss=KD(2.0, 0.7, label_loss=nn.CrossEntropyLoss(reduction="none")),
        **options,
    )
    student.save(str(tmp_path / "student"))
    model = TorchEstimator.load(str(tmp_path / "student")).fit(soft)
    assert model.transform(df).select("prediction").count() == 60
