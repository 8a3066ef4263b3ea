"""The ways in which a model answers beside transform: asUdf, Predictor, the server's model, MLflow's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F
from torch import nn

from sparkdl import Dataset
from sparkdl.exceptions import DataError
from sparkdl.ml import TorchModel, TorchRegressionModel
from sparkdl.ml.stages.tabular_fit import fit_encoding
from sparkdl.mlflow.pyfunc import PyFunc
from sparkdl.nn import Tabular
from sparkdl.nn.signature import Signature
from sparkdl.serve import Predictor
from sparkdl.serve.served import ServedModel
from sparkdl.table.encoding import TableEncoding

pytestmark = pytest.mark.jvm
ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def berlin(spark: Any) -> Iterator[Any]:
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, "Europe/Berlin")
    yield spark
    spark.conf.set(ZONE, before)


def model_of(encoding: Any) -> TorchRegressionModel:
    """Return a model of a table that tells all of its inputs apart."""
    torch.manual_seed(0)
    module: nn.Module = Tabular(encoding.cardinalities, encoding.width, outputs=1)
    rows = torch.zeros(2, len(encoding.categories), dtype=torch.int32), torch.zeros(2, encoding.width)
    model = TorchRegressionModel(module, signature=Signature.of_rows(module, rows), encoding=encoding)
    return model._set(featuresCols=list(encoding.columns))


def test_times_mean_the_same_in_a_zone_of_the_session(berlin: Any) -> None:
    start = datetime(2024, 3, 28, 22, 30, tzinfo=UTC)
    rows = [(start + timedelta(hours=7 * n, seconds=n / 4), n % 5) for n in range(60)]
    df = berlin.createDataFrame(rows, "t timestamp, n int")
    df = df.withColumn("ntz", F.col("t").cast("timestamp_ntz")).withColumn("d", F.col("t").cast("date"))
    encoding = fit_encoding(df, ["t", "ntz", "d"], max_categories=10, min_frequency=1)
    assert (encoding.zone, encoding.clocks) == ("Europe/Berlin", ("ntz",))
    model = model_of(encoding)
    expected = [row[0] for row in model.transform(df).select("prediction").collect()]
    assert np.std(expected) > 1e-3
    udf = model.asUdf()
    frame = df.select("t", "ntz", "d").toPandas()
    assert str(frame["t"].dtype).startswith("datetime64[")  # what Berlin's clock shows, without a zone
    served = ServedModel(model)
    # The same instants and days, as columns of another type.
    other = df.select(F.col("t").cast("timestamp_ntz").alias("t"), "ntz", F.col("t").alias("d"))
    ways = {
        "asUdf": [row[0] for row in df.select(udf("t", "ntz", "d")).collect()],
        "asUdf of other types": [row[0] for row in other.select(udf("t", "ntz", "d")).collect()],
        "transform of other types": [r[0] for r in model.transform(other).select("prediction").collect()],
        "Predictor": Predictor.of(model).predict(frame).reshape(-1),
        "server": served(df.select("t", "ntz", "d").toArrow()).column(0).to_pylist(),
        "MLflow": PyFunc(served).predict(frame.assign(d=pd.to_datetime(frame["d"])))["prediction"],
    }
    for way, found in ways.items():
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=way)


def test_times_without_a_zone_of_a_fit_in_utc_are_what_they_are_in_another_session(berlin: Any) -> None:
    """Functions in SQL follow their session's clock, which times have that never had a zone are not of."""
    rows = [(datetime(2024, 7, 1) + timedelta(hours=n),) for n in range(48)]
    df = berlin.createDataFrame(rows, "t timestamp_ntz")
    berlin.conf.set(ZONE, "UTC")
    encoding = fit_encoding(df, ["t"], max_categories=10, min_frequency=1)
    assert (encoding.zone, encoding.clocks) == ("UTC", ("t",))
    assert TableEncoding.from_json(encoding.to_json()) == encoding
    assert encoding.to_json()["format"] == 1, "earlier releases read it"
    berlin.conf.set(ZONE, "Europe/Berlin")
    model = model_of(encoding)
    expected = [row[0] for row in model.transform(df).select("prediction").collect()]
    assert np.std(expected) > 1e-3
    served = ServedModel(model)
    served.encoding = replace(encoding, zone="Europe/Berlin")  # as in a task of MLflow's spark_udf
    frame = df.toPandas()
    assert frame["t"][0] == pd.Timestamp("2024-07-01"), "pandas has the same times, without a zone"
    for found in (
        [row[0] for row in df.select(model.asUdf()("t")).collect()],
        PyFunc(served).predict(frame)["prediction"],
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_example_may_be_a_dataframe_and_a_structs_field_is_no_column(spark: Any) -> None:
    df = spark.createDataFrame(
        [((1.0, 2), 0.5, [1, 2])], "s struct<x: double, y: int>, v double, ids array<int>"
    )
    for example in (df, df.toPandas(), df.drop("s").toPandas()):
        model = TorchModel.from_module(nn.Linear(1, 2), example=example, featuresCol="v", inputShapes=[[1]])
        assert model.signature.inputs[0].dtype == "float32"
        assert model.signature.outputs[0].shape == (2,)
    looked = TorchModel.from_module(nn.Embedding(9, 3), example=df.toPandas(), featuresCol="ids")
    assert (
        looked.signature
        == TorchModel.from_module(nn.Embedding(9, 3), example=df, featuresCol="ids").signature
    )
    model = TorchModel.from_module(nn.Identity(), featuresCols=["s.x", "v"])
    with pytest.raises(
        DataError, match=r"'s\.x' is not in .* it has ids, s, v\. .*withColumn\('s_x', F.col\('s\.x'\)\)"
    ):
        model.transform(df)
    with pytest.raises(DataError, match=r"withColumn\('s_x', F.col\('s\.x'\)\)"):
        fit_encoding(df, ["s.x"], max_categories=2, min_frequency=1)
    with pytest.raises(DataError, match="features column 'w' is not in the DataFrame"):
        TorchModel.from_module(nn.Identity(), example=df.toPandas(), featuresCol="w")


@pytest.mark.parametrize("column", ["array", "vector"])
def test_a_number_beyond_float32_is_refused_by_all_ways(spark: Any, column: str) -> None:
    """It would be infinite; infinity itself is a value."""
    rows = [([1.0, 2.0], 1.0), ([float("inf"), 1.0], 1.0), ([1e39, 2.0], 1.0)]
    df = spark.createDataFrame(rows, "array array<double>, y float").coalesce(1)
    df = df.withColumn("vector", array_to_vector("array"))
    module = nn.Sequential(nn.Linear(2, 1), nn.Tanh())
    model = TorchModel.from_module(module, example=np.zeros((2, 2), np.float32), featuresCol=column)
    served = ServedModel(model)
    values = np.array([row[0] for row in rows])
    with pytest.raises(DataError, match=rf"column '{column}', row 2 .*: 1e\+39 does not fit float32"):
        Dataset.from_dataframe(df, features=column, label="y").store()
    for way in (
        lambda: Predictor.of(model).predict(values),
        lambda: served(df.select(column).toArrow()),
        lambda: df.select(model.asUdf()(column)).collect(),
    ):
        with pytest.raises(Exception, match=r"row 2.*: 1e\+39 does not fit float32"):
            way()
    found = model.setOnError("column").transform(df).select("prediction", "error").collect()
    with torch.no_grad():
        expected = module(torch.from_numpy(values[:2]).float()).reshape(-1).tolist()
    assert [row.prediction for row in found[:2]] == pytest.approx(expected)
    assert "1e+39 does not fit float32" in found[2].error
