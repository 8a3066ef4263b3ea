"""Python workers that Spark uses again have the code that the driver has loaded."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark import SparkFiles
from pyspark.sql import SparkSession
from torch import nn

from sparkdl import Trainer
from sparkdl.data import Dataset
from sparkdl.exceptions import SerializationError
from sparkdl.ml import TorchRegressor
from sparkdl.train import MaxIteration

X = np.ones((8, 2), np.float32)
Y = np.zeros((8, 1), np.float32)
TEXT = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        nn.init.ones_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        return self.layer(x) * SCALE

def loss(output, target):
    return ((output - target) ** 2).mean() * SCALE

def twice(x):
    return x * SCALE
"""


@pytest.fixture
def write(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Write a module that the driver loads, and workers find."""
    folder = Path(SparkFiles.getRootDirectory())  # on the path of workers
    name, stamp = f"edited_{tmp_path.name.replace('-', '_')}", 1_000_000_000
    sys.path.insert(0, str(folder))

    def put(scale: int, *, load: bool = True) -> Any:
        nonlocal stamp
        stamp += 10
        file = folder / f"{name}.py"
        file.write_text(f"SCALE = {scale}\n{TEXT}")
        os.utime(file, (stamp, stamp))
        importlib.invalidate_caches()
        if not load:
            return sys.modules[name]
        return importlib.reload(sys.modules[name]) if name in sys.modules else importlib.import_module(name)

    yield put
    sys.path.remove(str(folder))
    sys.modules.pop(name, None)
    (folder / f"{name}.py").unlink()


def fit(spark: SparkSession, module: Any) -> Any:
    data = Dataset.from_numpy(X, Y, spark=spark, num_partitions=2, transform=module.twice)
    trainer = Trainer(
        module.Net(),
        loss=module.loss,
        optimizer=partial(torch.optim.SGD, lr=0.0),
        batch_size=8,
        end_when=MaxIteration(2),
        progress=False,
    )
    result = trainer.fit(data)
    found = result.history, trainer.predict(data), trainer.evaluate(data)
    data.release()
    return found


@pytest.mark.jvm
def test_a_module_that_is_edited_and_loaded_again(spark: SparkSession, write: Callable[..., Any]) -> None:
    df = spark.createDataFrame([([1.0, 1.0], 0.0)] * 4, "x array<float>, label float")
    for scale in (1, 3):
        module = write(scale)
        history, predicted, scores = fit(spark, module)
        output = 2.0 * scale * scale
        assert [row["loss"] for row in history] == [output**2 * scale] * 2
        np.testing.assert_allclose(predicted, np.full((8, 1), output))
        assert scores["loss"] == output**2 * scale
        estimator = TorchRegressor(
            module=module.Net(),
            loss=module.loss,
            optimizer=partial(torch.optim.SGD, lr=0.0),
            featuresCols=["x"],
            batchSize=4,
            maxEpochs=1,
        )
        model = estimator.fit(df)
        assert [row.prediction for row in model.transform(df).collect()] == [2.0 * scale] * 4


@pytest.mark.jvm
def test_a_module_that_is_edited_and_not_loaded(spark: SparkSession, write: Callable[..., Any]) -> None:
    module = write(1)
    history, _, _ = fit(spark, module)
    assert [row["loss"] for row in history] == [4.0] * 2
    write(3, load=False)
    try:
        history, _, _ = fit(spark, module)
    except SerializationError as error:
        assert "importlib.reload" in str(error)  # noqa: PT017
    else:
        assert [row["loss"] for row in history] == [4.0] * 2
    assert isinstance(module.Net(), nn.Module)
