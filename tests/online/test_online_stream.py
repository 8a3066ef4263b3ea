"""A real stream: files in a folder, one a batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.data import digits
from support.reference import assert_bit_equal
from torch import nn

from sparkdl import Trainer
from sparkdl.exceptions import DataError
from sparkdl.online import OnlineTrainer, Publisher
from sparkdl.serve import Predictor
from sparkdl.train import Hook

X, Y = digits(150)
SCHEMA = "x array<float>, y long"


class Dies(Hook):
    """Raises once, after an iteration."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_iteration_end(self, run: Any) -> None:
        if run.state.iteration == self.iteration:
            self.iteration = -1
            raise RuntimeError("died")


def trainer(*hooks: Hook) -> Trainer:
    torch.manual_seed(0)
    adam = partial(torch.optim.Adam, lr=1e-2)
    return Trainer(
        nn.Linear(64, 10),
        loss=nn.CrossEntropyLoss(),
        optimizer=adam,
        batch_size=25,
        hooks=hooks,
        progress=False,
    )


def write(folder: Path, number: int, rows: slice, seconds: int = 0) -> None:
    """Put a file into a folder, complete at once, of a time of its own."""
    folder.mkdir(exist_ok=True)
    table = pd.DataFrame({"x": list(X[rows]), "y": Y[rows], "t": pd.Timestamp(seconds, unit="s", tz="UTC")})
    table.to_parquet(folder / f".{number}")
    os.utime(folder / f".{number}", (number, number))
    (folder / f".{number}").rename(folder / f"{number}.parquet")


def learn(spark: Any, online: OnlineTrainer, folder: Path) -> Any:
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))
    trigger = {"availableNow": True}
    return online.start(rows, features="x", label="y", num_partitions=2, trigger=trigger)


@pytest.mark.whole
@pytest.mark.jvm
def test_a_stream_that_dies_goes_on(spark: Any, tmp_path: Path) -> None:
    """It raises in the middle of a batch; an empty file and one of a single row are batches as well."""
    for number, rows in enumerate((slice(0, 60), slice(0, 0), slice(60, 61), slice(61, 150)), 1):
        write(tmp_path / "rows", number, rows)
    publisher = Publisher(tmp_path / "models", seconds=None)
    straight = OnlineTrainer(trainer(), tmp_path / "a", publisher=publisher)
    query = learn(spark, straight, tmp_path / "rows")
    assert query.await_termination(300)
    assert query.exception() is None
    assert not query.is_active
    assert query.progress["learned"]["rows"] == 89
    assert [row["batch"] for row in straight.history] == [0, 2, 3]

    first = learn(spark, OnlineTrainer(trainer(Dies(5)), tmp_path / "b"), tmp_path / "rows")
    with pytest.raises(Exception, match="died"):
        first.await_termination()
    again = OnlineTrainer(trainer(), tmp_path / "b")
    assert [row["batch"] for row in again.history] == [0, 2]
    learn(spark, again, tmp_path / "rows").await_termination()
    assert again.history == straight.history
    assert_bit_equal(again.module, straight.module)
    found = Predictor.load(publisher.path).predict(X[:3])
    assert (found == straight.module(torch.from_numpy(X[:3])).detach().numpy()).all()

    with pytest.raises(DataError, match="'z' is not in the DataFrame"):
        again.start(spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "rows")), features="z")
    with pytest.raises(TypeError, match="num_partition'"):
        again.start(
            spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "rows")), features="x", num_partition=2
        )
    with pytest.raises(DataError, match="has an end"):
        again.start(spark.read.parquet(str(tmp_path / "rows" / "1.parquet")), features="x")


@pytest.mark.slow
@pytest.mark.jvm
def test_what_spark_keeps_of_a_batch_that_is_passed_over(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program dies between the two commits: the watermark goes on, by which the last row is too late."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    for number, (first, seconds) in enumerate(((0, 10_000), (30, 11_000), (60, 11_001), (90, 10_500)), 1):
        write(tmp_path / "rows", number, slice(first, first + 30), seconds)

    def start(online: OnlineTrainer) -> Any:
        rows = spark.readStream.schema(f"{SCHEMA}, t timestamp").option("maxFilesPerTrigger", 1)
        kept = (
            rows.parquet(str(tmp_path / "rows")).withWatermark("t", "10 seconds").dropDuplicates(["x", "t"])
        )
        return online.start(kept, features="x", label="y", trigger={"availableNow": True})

    spark.conf.set("spark.sql.shuffle.partitions", "2")
    try:
        straight = OnlineTrainer(trainer(), tmp_path / "a")
        assert start(straight).await_termination(300)
        dies = OnlineTrainer(trainer(), tmp_path / "b")
        monkeypatch.setattr(dies, "_publish_if_due", lambda ledger: 1 / 0 if ledger.batch == 1 else None)
        with pytest.raises(Exception, match="division by zero"):
            start(dies).await_termination()
        again = OnlineTrainer(trainer(), tmp_path / "b")
        assert [row["batch"] for row in again.history] == [0, 1]
        assert start(again).await_termination(300)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert (
        sum(row["rows"] for row in straight.history) == 90
    )  # a watermark counts from the batch after the next
    assert again.history == straight.history


@pytest.mark.jvm
def test_a_stream_that_is_stopped_warns_of_nothing(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "rows", 1, slice(0, 50))
    online = OnlineTrainer(trainer(), tmp_path / "a", publisher=Publisher(tmp_path / "models", seconds=None))
    rows = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "rows"))
    query = online.start(rows, features="x", label="y", trigger={"processingTime": "100 milliseconds"})
    end = time.monotonic() + 120
    while not online.history:
        assert time.monotonic() < end
        time.sleep(0.05)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        query.stop()
    assert not query.is_active
    assert query.exception() is None
    assert [str(warning.message) for warning in told if "unclosed" not in str(warning.message)] == []
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == []


@pytest.mark.jvm
def test_a_file_without_the_label_is_named(spark: Any, tmp_path: Path) -> None:
    """Spark reads the column as nulls; of two files in a batch one has it."""
    write(tmp_path / "rows", 1, slice(0, 30))
    table = pd.DataFrame({"x": list(X[:20])})
    table.to_parquet(tmp_path / "rows" / "2.parquet")
    rows = spark.read.schema(SCHEMA).parquet(str(tmp_path / "rows"))
    online = OnlineTrainer(trainer(), tmp_path / "a")
    with pytest.raises(
        DataError, match=r"column 'y' has no value in any row of file:\S*/2.parquet\. A"
    ) as caught:
        online.learn(rows, 0, features="x", label="y", num_partitions=2)
    assert caught.value.code == "data-null"
    some = rows.selectExpr("x", "if(y = 1, null, y) y").filter("input_file_name() like '%1.parquet'")
    with pytest.raises(DataError, match=r"^column 'y', row \d+ of input partition \d: null; drop"):
        online.learn(some, 0, features="x", label="y", num_partitions=2)
    assert online.history == []


PROGRAM = """
import sys
sys.path[:0] = {paths!r}
from test_online_stream import *
from sparkdl import session
if __name__ == "__main__":
    spark = session.builder("local[2]", "killed", {{"spark.ui.enabled": "false"}}).getOrCreate()
    folder = Path({folder!r})
    if sys.argv[1] == "stream":
        online = OnlineTrainer(trainer(), folder / "killed", publisher=Publisher(folder / "models"))
        learn(spark, online, folder / "rows").await_termination()
    else:  # the same batches, one after the other
        online, numbers = OnlineTrainer(trainer(), folder / "straight"), iter(range(1, 7))
        for batch, files in enumerate(map(int, sys.argv[2:])):
            paths = [str(folder / "rows" / f"{{next(numbers)}}.parquet") for _ in range(files)]
            rows = spark.read.schema(SCHEMA).parquet(*paths)
            online.learn(rows, batch, features="x", label="y", num_partitions=2)
    spark.stop()
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_a_driver_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL at moments of any kind; the last run ends by itself, with the bits of one nobody killed.

    Spark lists files before it says which of them are a batch: who dies in between finds two in the next one.
    """
    for number in range(6):
        write(tmp_path / "rows", number + 1, slice(25 * number, 25 * number + 25))
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(paths=paths, folder=str(tmp_path)))
    command = [sys.executable, str(program)]
    commits = tmp_path / "killed" / "commits"
    for kill in range(3):  # as soon as a commit is there, or a little later
        newest = max((p.name for p in commits.glob("iteration-*")), default="")
        process = subprocess.Popen([*command, "stream"], start_new_session=True)
        try:
            end = time.monotonic() + 240
            while process.poll() is None and time.monotonic() < end:
                if max((p.name for p in commits.glob("iteration-*")), default="") > newest:
                    break
                time.sleep(0.01)
            time.sleep(0.3 * kill)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    subprocess.run([*command, "stream"], check=True, timeout=500)
    killed = OnlineTrainer(trainer(), tmp_path / "killed")
    sizes = [row["rows"] for row in killed.history]
    assert sum(sizes) == 150
    subprocess.run([*command, "straight", *(str(rows // 25) for rows in sizes)], check=True, timeout=500)
    straight = OnlineTrainer(trainer(), tmp_path / "straight")
    assert killed.history == straight.history
    assert_bit_equal(killed.module, straight.module)
