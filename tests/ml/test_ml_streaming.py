"""Transforms of streams: readStream, transform, writeStream."""

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.ml import TorchClassificationModel, TorchModel

ROWS = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)


@pytest.fixture
def model():
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    params = {"featuresCol": "x", "handleInvalid": "skip", "inferenceBatchSize": 4}
    return TorchClassificationModel.from_module(module, example=torch.zeros(2, 3), **params)


def write(spark, folder, start, stop):
    rows = [(n, ROWS[n].tolist() if n % 5 else None) for n in range(start, stop)]
    df = spark.createDataFrame(rows, "id long, x array<float>")
    df.coalesce(1).write.mode("append").parquet(folder)
    return df.schema


def test_a_stream_is_transformed_as_it_comes(spark, model, tmp_path):
    source, target, state = (str(tmp_path / name) for name in ("in", "out", "state"))
    schema = write(spark, source, 0, 8)
    stream = spark.readStream.schema(schema).parquet(source)
    found = model.transform(stream).where("id < 18").select("id", "prediction", "probability")
    assert found.isStreaming
    for start, stop in ((8, 15), (15, 20)):
        write(spark, source, start, stop)
        query = found.writeStream.format("parquet").option("checkpointLocation", state)
        query.trigger(availableNow=True).start(target).awaitTermination()
    rows = {row.id: row for row in spark.read.parquet(target).collect()}
    assert sorted(rows) == [n for n in range(18) if n % 5]
    expected = torch.softmax(model.module(torch.from_numpy(ROWS)), 1).detach().numpy()
    for n, row in rows.items():
        assert np.abs(row.probability.toArray() - expected[n]).max() <= 1e-6
        assert row.prediction == expected[n].argmax()


@pytest.mark.whole
def test_aggregates_over_a_stream(spark, model, tmp_path):
    source = str(tmp_path / "in")
    schema = write(spark, source, 0, 20)
    counts = model.transform(spark.readStream.schema(schema).parquet(source)).groupBy("prediction").count()
    query = counts.writeStream.format("memory").queryName("sparkdl_counts").outputMode("complete")
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    found = {row.prediction: row["count"] for row in spark.table("sparkdl_counts").collect()}
    seen = torch.from_numpy(ROWS[[n for n in range(20) if n % 5]])
    classes, expected = np.unique(model.module(seen).detach().numpy().argmax(1), return_counts=True)
    assert found == dict(zip(classes.tolist(), expected.tolist(), strict=True))
    spark.sql("drop view sparkdl_counts")


def test_what_a_stream_cannot_tell_must_be_given(spark, tmp_path):
    schema = write(spark, str(tmp_path / "in"), 0, 2)
    stream = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
    model = TorchModel.from_module(nn.Linear(3, 2), featuresCol="x")
    with pytest.raises(ConfigError, match=r"rows of a stream cannot be looked at.*example=rows"):
        model.transform(stream.withColumn("more", F.lit(1)))
