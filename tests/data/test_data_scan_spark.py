"""Files that Spark has written, read by its tasks where they lie."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from pyarrow import parquet
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import functions as F

from sparkdl import Column, Dataset
from sparkdl.data.columns import tensor_metadata
from sparkdl.data.scan.folders import folder_columns
from sparkdl.data.scan.order import order_of
from sparkdl.data.streams import FROM_THE_BEGINNING
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.train import MaxIteration, Trainer

ROWS, BATCH = 400, 50
NUMBERS = np.arange(ROWS)


def write(spark: Any, path: Path) -> str:
    """Write rows of three numbers, which metadata call a matrix, in four files."""
    x = F.array(F.col("id") % 7, F.col("id") % 5, F.col("id") % 3).cast("array<double>")
    rows = spark.range(0, ROWS, 1, 4).select(
        x.alias("x", metadata=tensor_metadata((3, 1), "float64")), (F.col("id") % 11).alias("y")
    )
    rows.write.parquet(str(path))
    return str(path)


class Dies:
    """A transform in which the process is killed once."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.marker.touch()
        if len(list(self.marker.parent.glob("call-*"))) == 5:
            try:
                (self.marker.parent / "killed").touch(exist_ok=False)
            except FileExistsError:
                return x
            os.kill(os.getpid(), signal.SIGKILL)
        (self.marker.parent / f"call-{len(list(self.marker.parent.glob('call-*')))}").touch()
        return x


def fit(spark: Any, path: str, transform: Any = None, filter: Any = None) -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 1)).double()
    with Dataset.from_parquet(
        path,
        features="x",
        label=Column("y", shape=(1,), dtype="float64"),
        num_partitions=2,
        streams=2,
        window=2000,
        transform=transform,
        filter=filter,
        spark=spark,
    ) as data:
        assert data.peek()["features"].shape == (2, 3, 1)  # as the metadata say
        manifest = data.source.manifest(data.plan)  # type: ignore[attr-defined]
        trainer = Trainer(
            module,
            loss=torch.nn.MSELoss(),
            optimizer=partial(torch.optim.SGD, lr=0.01),
            batch_size=BATCH,
            seed=2,
            end_when=MaxIteration(20),
            iterations_per_job=4,
            progress=False,
        )
        return trainer.fit(data).module, manifest


def plain(manifest: Any, number: Any = NUMBERS) -> Any:
    """Train on some of the rows: Spark's files come by name, and these are its partitions."""
    x = torch.from_numpy(np.stack([number % 7, number % 5, number % 3], axis=1).astype("float64"))
    y = torch.from_numpy((number % 11).astype("float64"))[:, None]
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 1)).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    steps = -(-len(number) // BATCH)
    for iteration in range(20):
        epoch, step = divmod(iteration, steps)
        order = order_of(manifest.layout, 2, epoch)
        slots = FROM_THE_BEGINNING.slots(len(number), steps, step)
        rows = order.numbers(order.parts(slots, 0, 1))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(module(x[rows]), y[rows]).backward()
        optimizer.step()
    return module


def test_a_process_that_is_killed_changes_no_bit(cluster: Any, tmp_path: Path) -> None:
    path = write(cluster, tmp_path / "table")
    calm, manifest = fit(cluster, path)
    (tmp_path / "calls").mkdir()
    killed, _ = fit(cluster, path, Dies(tmp_path / "calls" / "marker"))
    assert (tmp_path / "calls" / "killed").exists()
    expected = plain(manifest)
    for a, b, c in zip(calm.parameters(), killed.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=0, atol=1e-12)


def test_files_train_in_a_session_of_any_kind(spark: Any, tmp_path: Path) -> None:
    path, number = write(spark, tmp_path / "table"), NUMBERS
    for chosen, rows in ((None, number), (pc.field("y") > 2, number[number % 11 > 2])):
        found, manifest = fit(spark, path, filter=chosen)
        for a, b in zip(found.parameters(), plain(manifest, rows).parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_ml_vectors_are_refused_by_name(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(10).withColumn("y", F.col("id") * 2)
    made = VectorAssembler(inputCols=["id", "y"], outputCol="v").transform(rows)
    made.write.parquet(str(tmp_path / "vectors"))
    with pytest.raises(DataError, match="features column 'v' has type struct.*: write ML vectors as arrays"):
        Dataset.from_parquet(str(tmp_path / "vectors"), features="v", spark=spark)


@pytest.mark.jvm
@pytest.mark.whole
def test_folders_give_the_columns_that_spark_reads(spark: Any, tmp_path: Path) -> None:
    cases = [
        ["1", "-20", "007", "+5"],
        ["1", "3000000000"],
        ["1", "12345678901234567890"],
        ["1.5", "2", "-1.5e-3"],
        ["1", "-1e3", "2."],
        ["1.5", "-1e3"],
        [".5", "1d", "NaN"],
        [" 1", "1.5f "],
        ["1 ", "a"],
        ["1.5", "3000000000"],
        ["1.5", "12345678901234567890"],
        ["1", "a%20b", "%31"],
        ["%31"],
        ["2024-02-29", "2023-1-2"],
        ["2024-02-29", "2024-02-30"],
        ["2024-02-29", "1"],
        ["1", "__HIVE_DEFAULT_PARTITION__"],
    ]
    names = {"int32": "int", "int64": "bigint", "date32[day]": "date", "decimal128": "decimal"}
    types = []
    for number, values in enumerate(cases):
        folder = tmp_path / str(number)
        for row, value in enumerate(values):
            (folder / f"x={value}").mkdir(parents=True)
            parquet.write_table(pa.table({"row": [row]}), folder / f"x={value}" / "a.parquet")
        read = spark.read.parquet(str(folder)).orderBy("row")
        found = folder_columns([f"x={value}/a.parquet" for value in values])
        expected = [row["x"] for row in read.collect()]
        type_of_spark = read.schema["x"].dataType.simpleString().partition("(")[0]
        kind = str(found.schema.field("x").type).partition("(")[0]
        types.append((values, names.get(kind, kind), type_of_spark))
        np.testing.assert_array_equal(found["x"].to_pylist(), expected)
    assert [case for case in types if case[1] != case[2]] == []


def test_files_that_a_stream_has_left_are_refused(spark: Any, tmp_path: Path) -> None:
    """Spark reads those that the stream's own list has, and no others."""
    path, given = str(tmp_path / "out"), write(spark, tmp_path / "in")
    stream = spark.readStream.schema("x array<double>, y long").parquet(given)
    rows = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "state"))
    rows.trigger(availableNow=True).start(path).awaitTermination()
    parquet.write_table(
        pa.table({"x": [[1.0, 2.0, 3.0]], "y": [1]}), f"{path}/part-of-a-batch-that-failed.parquet"
    )
    read = spark.read.parquet(path)
    assert read.count() == ROWS
    with pytest.raises(ConfigError, match="out was written by a stream: .*inputFiles"):
        Dataset.from_parquet(path, features="x", label="y", spark=spark)
    with Dataset.from_parquet(read.inputFiles(), features="x", label="y", spark=spark) as data:
        assert len(data) == ROWS
