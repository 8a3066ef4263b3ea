"""Estimators whose rows stay in Parquet files, beside plain torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from torch import nn

from sparkdl import TorchClassifier, TorchRegressor, tune
from sparkdl.exceptions import ConfigError, DataError

ROWS = 400


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("rows") / "table")
    n = np.arange(ROWS)
    rows = {
        "features": pa.array(list(np.stack([n % 7, n % 5], 1).astype(np.float32))),
        "label": (n % 3).astype(float),
        "importance": 1 + n % 2,
        "held": n % 4 == 0,
        "side": [None if each % 11 == 0 else each % 4 == 0 for each in n.tolist()],
        "word": [f"v{each % 2}" for each in n],
        "day": n % 2,
    }
    parquet.write_to_dataset(pa.table(rows), path, partition_cols=["day"], row_group_size=50)
    return path


def estimator(path: str, **params: Any) -> TorchRegressor:
    linear = nn.Linear(2, 1)
    nn.init.zeros_(linear.weight), nn.init.zeros_(linear.bias)
    options = {"maxEpochs": 3, "batchSize": ROWS, "parquetPath": path, **params}
    return TorchRegressor(module=linear, optimizer=partial(torch.optim.SGD, lr=0.02), **options)


def by_torch(rows: pd.DataFrame, weighted: bool = False) -> list[torch.Tensor]:
    """Train on all rows in each step."""
    linear = nn.Linear(2, 1)
    nn.init.zeros_(linear.weight), nn.init.zeros_(linear.bias)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.02)
    x = torch.tensor(np.stack(rows["features"].to_numpy()))
    y = torch.tensor(rows["label"].to_numpy(), dtype=torch.float32)
    w = torch.tensor(rows["importance"].to_numpy() if weighted else np.ones(len(rows)), dtype=torch.float32)
    for _ in range(3):
        optimizer.zero_grad()
        (((linear(x)[:, 0] - y) ** 2 * w).sum() / w.sum()).backward()
        optimizer.step()
    return list(linear.parameters())


def close(model: Any, expected: list[torch.Tensor]) -> bool:
    return all(
        torch.allclose(a, b, atol=1e-5) for a, b in zip(model.module.parameters(), expected, strict=True)
    )


def test_rows_stay_in_their_files(spark: Any, table: str) -> None:
    df = spark.read.parquet(table)
    rows = df.toPandas()
    model = estimator(table).fit(df)
    assert close(model, by_torch(rows))
    assert sum(each["bytes"]["files"] for each in model.summary.history if "bytes" in each) > 0
    scored = model.transform(df).agg(F.avg("prediction")).head()[0]
    x = torch.tensor(np.stack(rows["features"].to_numpy()))
    assert scored == pytest.approx(model.module(x).mean().item(), abs=1e-5)
    weighted = estimator(table, weightCol="importance").fit(df.select("features", "label", "importance"))
    assert close(weighted, by_torch(rows, weighted=True))


def test_rows_are_held_out(spark: Any, table: str) -> None:
    df = spark.read.parquet(table)
    rows = df.toPandas()
    held = rows["held"]
    model = estimator(table, validationIndicatorCol="held").fit(df)
    assert close(model, by_torch(rows[~held]))
    x, y = np.stack(rows[held]["features"].to_numpy()), rows[held]["label"].to_numpy()
    with torch.no_grad():
        error = (model.module(torch.tensor(x))[:, 0].double().numpy() - y) ** 2
    assert model.summary.scores["val/loss"] == pytest.approx(error.mean(), rel=1e-5)
    with pytest.raises(DataError, match=r"column 'side' is null in 37 of 400 rows"):
        estimator(table, validationIndicatorCol="side").fit(df)
    model = estimator(table, validationFraction=0.25, earlyStoppingPatience=2).fit(df)
    assert "val/loss" in model.summary.scores


def test_a_default_module(spark: Any, table: str) -> None:
    model = TorchClassifier(maxEpochs=2, batchSize=100, parquetPath=table).fit(spark.read.parquet(table))
    assert model.numClasses == 3


@pytest.mark.parametrize(
    "held",
    [{"validationIndicatorCol": "held"}, pytest.param({}, marks=pytest.mark.whole)],
    ids=["column", "folds"],
)
def test_a_search(spark: Any, table: str, held: dict[str, str]) -> None:
    df = spark.read.parquet(table)
    space = {"learningRate": [1e-6, 2e-2]}
    tuner = tune.TorchTuner(
        estimator=estimator(table, **held), space=space, search="grid", max_epochs=3, numFolds=2
    )
    found = tuner.fit(df)
    assert found.result.get_best().params == {"learningRate": 2e-2}
    assert close(found.bestModel, by_torch(df.toPandas()))


def filtered(df: DataFrame) -> DataFrame:
    return df.filter("label > 0")


def changed(df: DataFrame) -> DataFrame:
    return df.withColumn("label", F.col("label") * 2)


@pytest.mark.parametrize(
    ("change", "params", "message"),
    [
        (
            filtered,
            {},
            "columns features, label of this DataFrame are not, or need not be, those of the files",
        ),
        (changed, {}, "with select at most"),
        (lambda df: df.limit(10), {}, "with select at most"),
        (lambda df: df.select(F.col("features"), F.col("importance").alias("label")), {}, "select at most"),
        (lambda df: df, {"handleInvalid": "skip"}, "handleInvalid='skip' leaves rows out, which files have"),
        (lambda df: df, {"featuresCols": ["word", "importance"], "encode": "on"}, "encoded, which copies"),
    ],
    ids=["filter", "column", "limit", "name", "nulls", "table"],
)
def test_other_rows_than_those_of_the_files_are_refused(
    spark: Any, table: str, change: Any, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"parquetPath.*{message}"):
        estimator(table, **params).fit(change(spark.read.parquet(table)))


def test_labels_that_are_strings_are_refused(spark: Any, table: str) -> None:
    classifier = TorchClassifier(labelCol="word", parquetPath=table)
    with pytest.raises(ConfigError, match="parquetPath: label column 'word' holds strings"):
        classifier.fit(spark.read.parquet(table))


@pytest.mark.whole
def test_files_that_spark_passes_over_are_named(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(20).selectExpr("array(1.0f, 2.0f) as features", "1.0 as label").coalesce(1)
    rows.write.parquet(str(tmp_path / "table"))
    rows.write.parquet(str(tmp_path / "table" / "more"))
    df = spark.read.parquet(str(tmp_path / "table"))
    assert df.count() == 20
    with pytest.raises(DataError, match="its files have 40 rows, and the DataFrame has 20"):
        estimator(str(tmp_path / "table")).fit(df)
