"""Embedding variables in Spark ML: fitted, applied, saved and loaded without a pickle."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl import TorchRegressor
from sparkdl.ml import TorchRegressionModel
from sparkdl.nn import EmbeddingBagVariable


@pytest.mark.jvm
def test_a_model_with_a_table_is_applied_saved_and_loaded(spark: Any, tmp_path: Path) -> None:
    rows = [([2**60 + i % 7, i % 5], float(i % 7)) for i in range(80)]
    df = spark.createDataFrame(rows, "ids array<long>, label double").coalesce(1)
    module = nn.Sequential(EmbeddingBagVariable(4, "sum", seed=1), nn.Linear(4, 1))
    lazy = partial(torch.optim.Adagrad, lr=0.5)
    model = TorchRegressor(
        module=module, featuresCol="ids", labelCol="label", optimizer={"0.*": lazy, "*": lazy}, maxIter=5
    ).fit(df)
    found = [row.prediction for row in model.transform(df).collect()]
    model.save(str(tmp_path / "model"))
    again = TorchRegressionModel.load(str(tmp_path / "model"))
    assert [row.prediction for row in again.transform(df).collect()] == found
    assert len({round(value, 4) for value in found}) > 7  # rows are there
