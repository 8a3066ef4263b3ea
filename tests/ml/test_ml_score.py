"""score(): rows in committed pieces, whatever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T
from torch import Tensor, nn

from sparkdl.access import models_in
from sparkdl.data.columns import quoted
from sparkdl.exceptions import ConfigError, DataError, SparkdlWarning
from sparkdl.ml import TorchClassificationModel, TorchClassifier, TorchModel
from sparkdl.ml.stages import scoring
from sparkdl.ml.stages.pieces import Pieces, StoredPiece
from sparkdl.train.checkpoint.store import CheckpointStore, join

pytestmark = pytest.mark.jvm

ROWS = 1000


def executor() -> int:
    """Return the executor's process; between it and this worker is PySpark's daemon."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return int(status.split("PPid:")[1].split()[0])


class Slow(nn.Module):
    """Doubles ids; slowly, and dies where files of a folder say so."""

    def __init__(self, folder: str = "") -> None:
        super().__init__()
        self.folder = folder
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, ids: Tensor) -> Tensor:
        for told in Path(self.folder).iterdir() if self.folder else ():
            if told.name == "pause":
                time.sleep(float(told.read_text()))
                continue
            try:
                told.unlink()
            except FileNotFoundError:
                continue  # another task has taken it
            os.kill(executor() if "executor" in told.name else os.getpid(), signal.SIGKILL)
        found: Tensor = ids * self.factor
        return found


def model(folder: Path | str = "", **params: Any) -> TorchModel:
    """Return a model of one column of ids."""
    chosen = {"featuresCol": "id", "inferenceBatchSize": 50, **params}
    made = TorchModel.from_module(Slow(), example=np.zeros(2, np.int64), **chosen)
    module: Any = made.module
    module.folder = str(folder)
    return made


def check(found: Any, rows: int = ROWS) -> None:
    """Check that each row is there once, with its output."""
    frame = found.select("id", "prediction").toPandas().sort_values("id")
    assert frame["id"].tolist() == list(range(rows))
    assert frame["prediction"].tolist() == [2.0 * n for n in range(rows)]


def files(folder: Path) -> dict[str, int]:
    """Return the pieces of a folder, with the time at which they appeared."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("part-*")}


def test_rows_are_those_of_transform(spark: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    made = TorchClassificationModel.from_module(module, example=np.zeros((2, 3), np.float32))
    rows = [
        (n, Vectors.dense(n, n % 7, 1.0), f"text {n}", datetime(2024, 1, 1 + n % 28), {"a": n}, None)
        for n in range(250)
    ]
    schema = (
        T.StructType()
        .add("id", "long")
        .add("features", VectorUDT())
        .add("text", "string")
        .add("time", "timestamp")
        .add("map", T.MapType(T.StringType(), T.IntegerType()))
        .add("nothing", "date")
    )
    df = spark.createDataFrame(rows, schema).repartition(3, "id").sortWithinPartitions("id")
    found = made.score(df, str(tmp_path / "out"), progress=False)
    expected = made.transform(df)
    assert found.schema["rawPrediction"].dataType == expected.schema["rawPrediction"].dataType
    assert found.schema["probability"].metadata == expected.schema["probability"].metadata
    assert found.columns == expected.columns
    assert found.orderBy("id").drop("rawPrediction", "probability").collect() == (
        expected.orderBy("id").drop("rawPrediction", "probability").collect()
    )
    for name in ("rawPrediction", "probability"):
        got, want = (
            np.array([row[0].toArray() for row in frame.orderBy("id").select(name).collect()])
            for frame in (found, expected)
        )
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_a_table_with_an_encoding(spark: Any, tmp_path: Path) -> None:
    rows = [(n, "abc"[n % 3], float(n % 5), None if n % 7 else "x", float(n % 3 == 0)) for n in range(120)]
    df = spark.createDataFrame(rows, "id int, kind string, size double, maybe string, label double").coalesce(
        2
    )
    fitted = TorchClassifier(featuresCols=["kind", "size", "maybe"], labelCol="label", maxEpochs=1).fit(df)
    given = df.drop("label")
    found = fitted.score(given, str(tmp_path / "out"), progress=False)
    expected = fitted.transform(given)
    assert found.columns == expected.columns
    got, want = (frame.orderBy("id").toPandas() for frame in (found, expected))
    assert got.drop(columns=["rawPrediction", "probability"]).equals(
        want.drop(columns=["rawPrediction", "probability"])
    )
    for name in ("rawPrediction", "probability"):
        np.testing.assert_allclose(np.stack(got[name]), np.stack(want[name]), rtol=1e-5, atol=1e-6)
    with pytest.raises(DataError, match="'kind'"):
        fitted.score(given.drop("kind"), str(tmp_path / "other"), progress=False)
    assert not (tmp_path / "other").exists()


def test_bad_rows(spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, out = model(onError="column"), tmp_path / "out"
    df = spark.range(ROWS).select(F.when(F.col("id") != 7, F.col("id")).alias("id"))
    made.score(df.coalesce(2), str(out), progress=False)
    (out / sorted(files(out))[-1]).unlink()  # the row is in the first piece, which stays
    caplog.clear()
    found = made.score(df.coalesce(2), str(out), progress=False)
    assert "1 of 1000 rows could not be scored" in caplog.text
    wrong = found.where("error is not null").collect()
    assert len(wrong) == 1
    assert wrong[0].id is None
    assert wrong[0].prediction is None
    assert "'id', row 7 of partition 0: null" in wrong[0].error
    assert found.count() == ROWS


def test_a_second_call_writes_nothing(spark: Any, tmp_path: Path) -> None:
    df = spark.range(0, ROWS, 1, 3)
    out = tmp_path / "out"
    check(model().score(df, str(out), progress=False))
    before = files(out)
    check(model().score(df, str(out), progress=False))
    assert files(out) == before
    lost = sorted(before)[1]
    (out / lost).unlink()
    (out / "_SUCCESS").unlink()
    check(model().score(df, str(out), progress=False))
    assert sorted(files(out)) == sorted(before)
    assert {n for n, time in files(out).items() if time != before[n]} == {lost}
    with pytest.raises(ConfigError, match="resume=True goes on"):
        model().score(df, str(out), resume=False, progress=False)


def test_another_job_is_refused_by_name(spark: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    spark.range(0, ROWS, 1, 2).write.parquet(str(tmp_path / "a"))
    spark.range(0, ROWS, 1, 2).write.parquet(str(tmp_path / "b"))
    df = spark.read.parquet(str(tmp_path / "a"))
    model().score(df, out, progress=False)
    before = files(tmp_path / "out")
    other = model()
    with torch.no_grad():
        other.module.factor.fill_(3.0)
    cases: list[tuple[TorchModel, Any, str]] = [
        (other, df, "another value of module"),
        (model(predictionCol="other"), df, "another value of outputs"),
        (model(onError="column"), df, "another value of errorCol"),
        (model(), spark.read.parquet(str(tmp_path / "b")), "other files"),
        (model(), df.withColumn("more", F.lit(1)), "more is int, was missing"),
        (model(), df.limit(10), "has 1000 rows, this one 10"),
        (model(), df.where("id >= 0").select((F.lit(ROWS - 1) - F.col("id")).alias("id")), "other"),
    ]
    for made, rows, message in cases:
        with pytest.raises((ConfigError, DataError), match=message):
            made.score(rows, out, progress=False)
        assert files(tmp_path / "out") == before, message
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="holds 'letter.txt'"):
        model().score(df, str(tmp_path / "taken"), progress=False)


def test_a_module_that_no_other_process_knows_does_not_go_on(spark: Any, tmp_path: Path) -> None:
    made, df, out = model(), spark.range(20), str(tmp_path / "out")
    slow: Any = made.module
    slow.more = lambda x: x
    with pytest.warns(SparkdlWarning, match="holds a lambda"):
        made.score(df, out, progress=False)
    with pytest.raises(ConfigError, match="holds a lambda .* in another folder"):
        made.score(df, out, progress=False)


def test_what_cannot_be_written_is_refused_first(spark: Any, tmp_path: Path) -> None:
    df = spark.range(5)
    with pytest.raises(DataError, match="column 'long' has type interval day"):
        model().score(df.selectExpr("id", "interval '1' day as long"), str(tmp_path / "out"))
    with pytest.raises(DataError, match="column 'ID' is in the DataFrame twice"):
        model(featuresCol="x").score(df.selectExpr("id", "id as ID", "id as x"), str(tmp_path / "out"))
    twice = df.selectExpr("id", "array(named_struct('a', id, 'A', -id)) as s")  # Spark says: ambiguous
    with pytest.raises(DataError, match=r"column 's' has a struct with two fields of one name \(a, A; spark"):
        model().score(twice, str(tmp_path / "out"), progress=False)
    with pytest.raises(ConfigError, match="nothing to write"):
        model(predictionCol="").score(df, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_fields_that_differ_in_case_alone_are_compared_where_spark_tells_them_apart(
    spark: Any, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        first, other = (
            spark.range(5).selectExpr("id", f"named_struct('a', {a}, 'A', {b}) as s")
            for a, b in (("id", "-id"), ("-id", "id"))
        )
        found = model().score(first, out, progress=False).orderBy("id").collect()
        assert [tuple(row.s) for row in found] == [(n, -n) for n in range(5)]
        with pytest.raises(DataError, match="other"):
            model().score(other, out, progress=False)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_no_rows_are_a_folder_with_columns(spark: Any, tmp_path: Path) -> None:
    found = model().score(spark.range(0), str(tmp_path / "out"), progress=False)
    assert found.columns == ["id", "prediction"]
    assert found.count() == 0


def test_rows_in_another_order_are_refused(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = model()
    df, other = (spark.range(0, ROWS, 1, 2).sortWithinPartitions(F.rand(seed)) for seed in range(2))
    made.score(df, str(out), progress=False)
    with pytest.raises(DataError, match="sortWithinPartitions"):
        made.score(other, str(out), progress=False)


def test_a_changed_row_in_the_same_file_is_refused(spark: Any, tmp_path: Path) -> None:
    rows = [(n, n, None) for n in range(9)]
    table, out = tmp_path / "in.parquet", str(tmp_path / "out")

    def write(rows: list[Any]) -> Any:
        pd.DataFrame(rows, columns=["id", "a", "b"]).astype({"a": "Int64", "b": "Int64"}).to_parquet(table)
        return spark.read.parquet(str(table))

    model().score(write(rows), out, progress=False)
    model().score(write(rows), out, progress=False)
    with pytest.raises(DataError, match="the DataFrame gives other rows"):
        model().score(write([*rows[:5], (5, None, 5), *rows[6:]]), out, progress=False)


def test_hashes_of_rows_differ_where_rows_do(spark: Any) -> None:
    nothing = (None,) * 7
    rows = [
        nothing,
        *((*numbers, *nothing[2:]) for numbers in ((5, None), (None, 5))),
        *(
            (None, None, *arrays, *nothing[4:])
            for arrays in (
                ([1, 2], [3]),
                ([1], [2, 3]),
                ([1, None], [3]),
                ([None, 1], [3]),
                ([], [3]),
                (None, [3]),
            )
        ),
        *((*nothing[:4], pair, *nothing[5:]) for pair in ((1, None), (None, 1), (None, None))),
        *((*nothing[:5], names, None) for names in ({}, {"a": None}, {"a": 1, "b": 2}, {"a": 2, "b": 1})),
        *(
            (*nothing[:6], lists)
            for lists in ([["a"], ["b"]], [["a", "b"]], [[], ["a", "b"]], [None, ["a", "b"]])
        ),
    ]
    kinds = "a int, `b.c` int, x array<int>, y array<int>, s struct<`p.q`:int,r:int>, m map<string,int>"
    df = spark.createDataFrame(rows, f"{kinds}, n array<array<string>>")
    hashes = [scoring._hash(quoted(field.name), field.dataType) for field in df.schema.fields]
    assert df.select(F.xxhash64(*hashes).alias("hash")).distinct().count() == len(rows)


def test_cuts_of_files_do_not_follow_cores(spark: Any, tmp_path: Path) -> None:
    spark.range(0, ROWS, 1, 1).write.parquet(str(tmp_path / "in"))
    name = "spark.sql.files.minPartitionNum"
    before = spark.conf.get(name, None)
    with scoring._same_splits(spark, None) as confs:
        assert int(confs[name]) >= 1
    assert spark.conf.get(name, None) == before
    with scoring._same_splits(spark, {name: "7"}):
        assert spark.conf.get(name) == "7"
    assert spark.conf.get(name, None) == before


def test_jobs_of_a_call_that_fails_are_cancelled(spark: Any) -> None:
    context, found = spark.sparkContext, []

    def fail() -> None:
        found.extend(context.getJobTags())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), models_in(spark).cancelled():
        fail()
    assert [tag[:8] for tag in found] == ["sparkdl-"]
    assert not context.getJobTags()


def test_the_bar_shows_rows_and_their_rate(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(model().score(spark.range(0, ROWS, 1, 2), str(tmp_path / "out")))
    shown = capsys.readouterr().err
    assert "score: 100%" in shown
    assert "1.00k/1.00k" in shown
    assert "rows/s" in shown


# -- drivers that die ------------------------------------------------------------------------------

SCRIPT = """
import sys
from sparkdl import session
sys.path[:0] = {paths!r}
from ml.test_ml_score import model

spark = session.builder("local[2]", "score", {{"spark.ui.enabled": "false"}}).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
df = spark.range(0, {rows}, 1, 4)
model({told!r}).score(df, {out!r}, progress=False)
print("done", flush=True)
"""


def driver(tmp_path: Path, rows: int, pause: float) -> subprocess.Popen[str]:
    """Start a driver in a process group of its own, whose forward passes take so many seconds."""
    told = tmp_path / "told"
    told.mkdir(exist_ok=True)
    (told / "pause").write_text(str(pause))
    paths = [str(Path(__file__).parents[1])]
    text = SCRIPT.format(paths=paths, rows=rows, out=str(tmp_path / "out"), told=str(told))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(Path(__file__).parents[2])])}
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a driver, its JVM and their tasks."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def killed(tmp_path: Path, kills: int, rows: int, pause: float) -> Iterator[dict[str, int]]:
    """Kill drivers, each after some more pieces and a moment; yield the pieces that are there then."""
    out = tmp_path / "out"
    random = np.random.default_rng(0)
    for _ in range(kills):
        process = driver(tmp_path, rows, pause)
        try:
            before, end = len(files(out)), time.monotonic() + 300
            while len(files(out)) == before:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.01)
            time.sleep(float(random.uniform(0, 4 * pause)))
        finally:
            kill(process)
        yield files(out)


def survive(tmp_path: Path, kills: int, rows: int) -> None:
    """Check that pieces outlive drivers, and that the last one ends the job."""
    before: dict[str, int] = {}
    for found in killed(tmp_path, kills, rows, 0.15):
        assert before.items() <= found.items()
        assert len(found) > len(before)
        before = found
    assert len(before) < rows // 100
    process = driver(tmp_path, rows, 0.0)
    output, _ = process.communicate(timeout=300)
    assert output == "done\n"
    found = files(tmp_path / "out")
    assert before.items() <= found.items()
    assert len(found) == rows // 100
    frame = pd.read_parquet(tmp_path / "out").sort_values("id")
    assert frame["id"].tolist() == list(range(rows))
    assert frame["prediction"].tolist() == [2.0 * n for n in range(rows)]


@pytest.mark.slow
def test_a_driver_dies(spark: Any, tmp_path: Path) -> None:
    for found in killed(tmp_path, 1, 1200, 0.15):
        assert 0 < len(found) < 12
    made = import_module("ml.test_ml_score").model(tmp_path / "told")  # of the class of the driver's
    (tmp_path / "told" / "pause").unlink()
    check(made.score(spark.range(0, 1200, 1, 4), str(tmp_path / "out"), progress=False), 1200)
    assert found.items() <= files(tmp_path / "out").items()
    assert len(files(tmp_path / "out")) == 12


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_ten_drivers_die(tmp_path: Path) -> None:
    survive(tmp_path, 10, 12_000)


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(["task", "executor"], marks=pytest.mark.whole),
        pytest.param(["task", "executor"] * 5, marks=pytest.mark.slow),
    ],
    ids=len,
)
def test_tasks_and_executors_die(cluster: Any, tmp_path: Path, kinds: list[str]) -> None:
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    out = tmp_path / "out"
    for number, kind in enumerate(kinds):
        (deaths / f"die-{kind}-{number}").touch()
        for piece in sorted(files(out))[1::2]:
            (out / piece).unlink()
        kept = files(out)
        check(model(deaths).score(cluster.range(0, ROWS, 1, 2), str(out), progress=False))
        assert not list(deaths.iterdir())
        assert not list(out.glob(".part*"))
        assert kept.items() <= files(out).items()


@pytest.mark.parametrize("remote", [False, True], ids=["folder", "fsspec"])
def test_two_attempts_of_a_task_write_a_piece_once(tmp_path: Path, remote: bool) -> None:
    path = f"memory://{uuid.uuid4().hex}" if remote else str(tmp_path / "out")
    piece, schema = StoredPiece(0, 0, 2, "0" * 32), pa.schema([("a", pa.int64())])
    first, second = Pieces(path), Pieces(path)
    assert first.mark() is None
    first.begin(b"{}")
    assert second.mark() == b"{}"
    with first.writing(0, 0, schema) as (slow, keep), second.writing(0, 0, schema) as (fast, keep_too):
        for writer, kept in ((slow, keep), (fast, keep_too)):
            writer.write_table(pa.table({"a": [1, 2]}))
            kept(piece)
        assert first.present() == []
    assert first.present() == [piece]
    first.finish()
    store = CheckpointStore(path)
    assert sorted(store.entries(store.root)) == ["_SUCCESS", "_sparkdl_score.json", piece.name]
    read = parquet.read_table(pa.BufferReader(store.read(join(store.root, piece.name))))
    assert read.to_pydict() == {"a": [1, 2]}


def test_names_of_pieces(tmp_path: Path) -> None:
    folder = Pieces(str(tmp_path / "out"))
    folder.begin(b"{}")
    piece = StoredPiece(3, 7, 100, "0" * 32)
    for digest in ("0" * 32, "1" * 32):
        with folder.writing(3, 7, pa.schema([("a", pa.int64())])) as (writer, keep):
            writer.write_table(pa.table({"a": [1]}))
            keep(StoredPiece(3, 7, 100, digest))
        if digest == piece.digest:
            assert folder.present() == [piece]
    with pytest.raises(DataError, match="partition 3, piece 7"):
        folder.by_partition()
    with pytest.raises(RuntimeError), folder.writing(0, 0, pa.schema([("a", pa.int64())])):
        raise RuntimeError
    assert not list((tmp_path / "out").glob(".part*"))
