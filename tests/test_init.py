"""The command that writes a starter: its files run, and mistakes in a table are named."""

from __future__ import annotations

import ast
import gzip
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl import session
from sparkdl.__main__ import main
from sparkdl.cli.catalog import CatalogTable
from sparkdl.cli.clusters import KINDS, kind_of
from sparkdl.cli.delimited import Csv
from sparkdl.cli.schema import read_table, table_of
from sparkdl.cli.submit import command as submit
from sparkdl.cli.submit.job import Job, read_job_file
from sparkdl.exceptions import ConfigError, DataError, SparkdlError
from sparkdl.serve import Predictor

COLUMNS = {
    "age": [20.0 + n for n in range(60)],
    "member": [n % 2 == 0 for n in range(60)],
    "income": [None, *range(59)],
    "city": ["x"] * 60,
    "kind": [["a", "b", "c"][n % 3] for n in range(60)],
    "grade": [n % 3 for n in range(60)],
    "spent": [0.5 * n for n in range(60)],
    "count": list(range(60)),
    "tags": [[1, 2]] * 60,
}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table(COLUMNS), "shop.parquet")
    return "shop.parquet"


@pytest.mark.parametrize("kind", KINDS)
def test_a_starter_is_complete(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "new", "--cluster", kind]) == 0
    compile(Path("new/train.py").read_text(), "train.py", "exec")
    assert "$" not in "".join(path.read_text() for path in Path("new").iterdir())
    found = read_job_file(Path("new/job.toml"))
    assert kind_of(found["master"]) == kind
    found.pop("pack_env", None)  # these tests run in an editable installation
    submit.plan(Job(**found), tmp_path)


@pytest.mark.parametrize(
    ("label", "task", "classes"),
    [
        ("kind", "classification", ("a", "b", "c")),
        ("grade", "classification", ("0", "1", "2")),
        ("member", "classification", ("false", "true")),
        ("spent", "regression", ()),
        ("count", "regression", ()),
    ],
)
def test_the_label_says_what_is_to_be_learned(table: str, label: str, task: str, classes: Any) -> None:
    found = read_table(table, label, nulls=True)
    assert (found.task, found.classes, found.rows) == (task, classes, 60)
    assert label not in found.features
    assert {"age", "income"} <= set(found.features)
    assert {name for name, _ in found.left_out} == {"tags"}


def test_what_was_understood_is_printed(table: str, capsys: Any) -> None:
    arguments = ["--data", table, "--label", "kind", "--drop-nulls"]
    assert main(["init", "shop", *arguments]) == 0
    out = capsys.readouterr().out
    assert "classification of kind (a, b, c) by age, member, income, city, grade, spent, count" in out
    assert "left out: tags, list<element: int64>: lists and structs" in out
    script = Path("shop/train.py").read_text()
    assert "TorchClassifier(" in script
    assert "na.drop" in script
    assert str(Path(table).resolve()) in script


@pytest.mark.parametrize("label", ["kind", "spent"])
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_the_script_is_in_good_style(table: str, label: str, kind: str) -> None:
    if kind == "csv":
        table = "shop.csv"
        csv.write_csv(pa.table(COLUMNS).drop_columns("tags"), table)
    assert main(["init", "shop", "--data", table, "--label", label, "--features", "age,member"]) == 0
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--line-length", "110"]
    subprocess.run([*ruff, "check", *options, "--select", "E,F,W,UP,B", "shop/train.py"], check=True)
    subprocess.run([*ruff, "format", *options, "--check", "shop/train.py"], check=True)


@pytest.mark.parametrize("label", ["grade", "member", "spent"])
@pytest.mark.parametrize("more", [[], ["--drop-nulls"]])
def test_the_script_for_files_where_they_lie_is_in_good_style(
    table: str, label: str, more: list[str], capsys: Any
) -> None:
    arguments = ["--label", label, "--features", "age,count", "--in-place", *more]
    assert main(["init", "shop", "--data", table, *arguments]) == 0
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--line-length", "110"]
    subprocess.run([*ruff, "check", *options, "--select", "E,F,W,UP,B", "shop/train.py"], check=True)
    subprocess.run([*ruff, "format", *options, "--check", "shop/train.py"], check=True)
    script = Path("shop/train.py").read_text()
    assert "Dataset.from_parquet(DATA" in script
    assert ("is_valid()" in script) == bool(more)
    assert ("CrossEntropyLoss" in script) == (label != "spent")


def test_numbers_alone_are_learned_from_where_they_lie(table: str, tmp_path: Path) -> None:
    found = read_table(table, "grade", nulls=True, in_place=True)
    assert set(found.features) == {"age", "member", "income", "spent", "count"}
    assert dict(found.left_out)["city"] == "string: --in-place learns from numbers alone"
    with pytest.raises(
        DataError, match="label 'kind': --in-place takes classes that are numbers from 0 on; found a, b"
    ):
        read_table(table, "kind", nulls=True, in_place=True)
    with pytest.raises(DataError, match="feature 'city' is string: --in-place"):
        read_table(table, "grade", ["city"], in_place=True)
    with pytest.raises(DataError, match=r"nulls in income \(1\)"):
        read_table(table, "grade", ["income"], in_place=True)
    csv.write_csv(pa.table(COLUMNS).drop_columns("tags"), "shop.csv")
    with pytest.raises(ConfigError, match="--in-place reads Parquet, and 'shop.csv' is CSV"):
        read_table("shop.csv", "grade", in_place=True)
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table(COLUMNS), tmp_path / "delta" / "old.parquet")
    for values in ([float("nan"), 1.0], [None, None]):
        pq.write_table(pa.table({"y": pa.array(values, pa.float64()), "x": [1.0, 2.0]}), "y.parquet")
        with pytest.raises(
            DataError, match=r"label 'y' of y.parquet has a mean of (nan|None): expected finite"
        ):
            read_table("y.parquet", "y", nulls=True, in_place=True)
    for in_place in (True, False):
        with pytest.raises(ConfigError, match="is a Delta table: its folder has files of several versions"):
            read_table(str(tmp_path / "delta"), "grade", in_place=in_place)


ODD = 'x"""\nopen("pwned", "w")\n"""'
NAMES = [
    ODD,
    "a\\Name",
    "a\\N{BULLET}",
    "cr\rx",
    'q"uote',
    "it's $title ${x}",
    "é\u2028",
    "tab\t`x`",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_becomes_code(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    label = name.encode("utf-8", "replace").decode()  # Parquet has UTF-8 alone
    file = f"{name.replace('/', '_')}.parquet"
    pq.write_table(
        pa.table({label: ["a", name.encode("utf-8", "replace").decode()] * 5, "n": range(10)}), file
    )
    assert main(["init", "new", "--cluster", "standalone", "--data", file, "--label", label]) == 0
    capsys.readouterr().out.encode()
    tree = ast.parse(Path("new/train.py").read_text("utf-8"))
    found = {
        node.targets[0].id: ast.literal_eval(node.value)  # type: ignore[attr-defined]
        for node in tree.body
        if isinstance(node, ast.Assign)
    }
    assert found == {
        "DATA": str(Path(file).resolve()),
        "LABEL": label,
        "FEATURES": ["n"],
    }
    assert (ast.get_docstring(tree) or "").startswith("Predict ")
    assert all(
        isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.FunctionDef | ast.If | ast.Expr)
        for node in tree.body
    )
    assert len([node for node in tree.body if isinstance(node, ast.Expr)]) == 1
    assert len(Path("new/README.md").read_text("utf-8").split("\n\n")[0].splitlines()) == 1
    assert not Path("pwned").exists()


def test_a_name_that_is_not_utf_8_is_an_error(table: str, capsys: Any) -> None:
    Path(table).rename("caf\udce9.parquet")
    assert main(["init", "new", "--data", "caf\udce9.parquet", "--label", "kind"]) == 1
    error = capsys.readouterr().err
    error.encode()
    assert "is not UTF-8" in error
    assert not Path("new").exists()


@pytest.mark.parametrize(
    "master", ['spark://h:1"\npack-env = false #', "spark://h:1'; touch pwned; '", "spark://\\u\x7f"]
)
def test_no_master_becomes_code(master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "new", "--cluster", "standalone", "--master", master]) == 0
    found = read_job_file(Path("new/job.toml"))
    assert (found["master"], found["pack_env"]) == (master, True)
    (line,) = [line for line in Path("new/README.md").read_text("utf-8").splitlines() if "doctor" in line]
    assert shlex.split(line, comments=True)[3] == "".join(c if c.isprintable() else "\ufffd" for c in master)


def test_nothing_is_overwritten(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "train.py").write_text("mine")
    assert main(["init", str(tmp_path)]) == 1
    assert "train.py is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("arguments", "problem", "code"),
    [
        (
            {"label": "kinds"},
            r"'kinds' is not in shop.parquet; did you mean 'kind'\? It has age,",
            "data-column",
        ),
        ({"label": "kind", "features": ["zzz"]}, r"'zzz' is not in shop.parquet. It has", "data-column"),
        ({"label": "kind", "features": ["age", "kind"]}, "label 'kind' is among the features", "data-column"),
        ({"label": "kind", "features": ["tags"]}, "'tags' is list<.*>: lists and structs", "data-type"),
        ({"label": "tags", "features": ["age"]}, "label 'tags' is list", "data-type"),
        ({"label": "income"}, r"nulls in income \(1\); .*--drop-nulls", "data-null"),
        ({"label": "city", "features": ["age"]}, "has 1 different values", "data-value"),
        ({"label": "kind", "features": ["age"], "task": "regression"}, "predicts a number", "data-type"),
    ],
)
def test_mistakes_in_a_table_are_named(table: str, arguments: Any, problem: str, code: str) -> None:
    with pytest.raises(DataError, match=problem) as raised:
        read_table(table, **arguments)
    assert raised.value.code == code


def test_nulls_are_counted_where_there_are_no_statistics(table: str) -> None:
    pq.write_table(pa.table(COLUMNS), table, write_statistics=False)
    with pytest.raises(DataError, match=r"nulls in income \(1\)"):
        read_table(table, "income")


def test_nulls_are_not_those_of_a_struct_of_the_same_path(table: str) -> None:
    struct = pa.array([{"b": None}, {"b": 1.0}], pa.struct({"b": pa.float64()}))
    pq.write_table(pa.table({"a.b": [1.0, 2.0], "a": struct, "y": [0.5, 1.5]}), table)
    assert read_table(table, "a.b").features == ("y",)
    full = pa.array([{"b": 1.0}, {"b": 1.0}])
    pq.write_table(pa.table({"a.b": pa.array([1.0, None]), "a": full, "y": [0.5, 1.5]}), table)
    with pytest.raises(DataError, match=r"nulls in a\.b \(1\)"):
        read_table(table, "a.b")


def test_tables_without_rows_or_features(table: str) -> None:
    pq.write_table(pa.table({"a": pa.array([], "float32"), "b": pa.array([], "float32")}), "empty.parquet")
    with pytest.raises(DataError, match="has no rows"):
        read_table("empty.parquet", "a")
    pq.write_table(pa.table({"a": [1.0], "b": [["x"]]}), "words.parquet")
    with pytest.raises(DataError, match=r"no column to learn from beside 'a': it has b \(list<"):
        read_table("words.parquet", "a")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--data", "nowhere.parquet", "--label", "x"], "'nowhere.parquet' is not there"),
        (["--data", "text.parquet", "--label", "x"], "is neither Parquet nor CSV"),
        (["--data", "text.parquet"], "--data needs --label"),
        (["--label", "x"], "--label needs --data"),
        (["--drop-nulls"], "--drop-nulls needs --data"),
        (["--table", "rides"], "--table needs --label"),
        (["--table", "rides", "--data", "a", "--label", "x"], "expected one of them"),
        (["--table", "rides", "--in-place", "--label", "x"], "--in-place reads Parquet files, and --table"),
    ],
)
def test_mistakes_in_arguments_are_named(table: str, arguments: list[str], problem: str, capsys: Any) -> None:
    Path("text.parquet").write_text("a,b\n1,2\n")
    assert main(["init", "new", *arguments]) == 1
    found = capsys.readouterr().err
    assert problem in found
    assert "troubleshooting.md#config-command" in found
    assert not Path("new").exists()


LINES = [
    'zip;n;x;ok;day;at;who "a";none;long zero',
    "01067;1;.5;true;2024-02-29;2024-02-29 10:00:00;b;;1",
    '99999; 2;-1e3;FALSE;2023-12-31;2024-02-29T23:59:59;"c;""d""";;',
    "00001;;7.;False;2023-12-31;;;;3",
]


def test_a_csv_file_is_typed_by_all_of_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("\ufeff" + "\r\n".join(LINES) + "\r\n", "utf-8")
    found = read_table("a.csv", "ok")
    assert found.csv is not None
    assert found.csv.separator == ";"
    assert found.csv.columns == {
        "zip": "string",
        "n": "long",
        "x": "double",
        "ok": "boolean",
        "day": "date",
        "at": "timestamp",
        'who "a"': "string",
        "none": "string",
        "long zero": "long",
    }
    assert (found.task, found.classes, found.rows) == ("classification", ("false", "true"), 3)
    folder = Path("parts")
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    for n in range(3):  # a value that does not fit is far behind the first block
        rows = [f"{k},{k % 2}" for k in range(200_000)] + (["1,x"] if n == 2 else [])
        (folder / f"part-{n}.csv").write_text("\n".join(["a,b", *rows]))
    found = read_table("parts", "b")
    assert found.csv is not None
    assert found.csv.columns == {"a": "long", "b": "string"}
    assert (found.classes, found.rows) == (("0", "1", "x"), 600_001)
    with gzip.open("z.csv.gz", "wt") as file:
        file.write("day,b\n2023-02-31,1\n2023-02-28,0\n")  # a day that does not exist
    assert read_table("z.csv.gz", "b").csv == Csv(",", {"day": "string", "b": "long"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1.5,a\n2,b\n", "the first line has '1.5', which is a value"),
        ("a,b,a\n1,2,3\n", "the first line has 'a' twice"),
        ("a,\n1,2\n", "the first line has an empty name"),
        ("a,b\n1\n2,3\n", "Expected 2 columns, got 1"),
        ("a,b\n", "has no rows"),
        ("a,b\n1,\n2,1\n3,0\n", r"nulls in b \(1\)"),
    ],
)
def test_mistakes_in_a_csv_file_are_named(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(text)
    with pytest.raises(SparkdlError, match=problem):
        read_table("a.csv", "b" if ",b" in text else "a")


def test_a_label_of_fractions_that_may_be_classes_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = {"x": range(8), "bad": [0.0, 1.0] * 4, "price": [0.5, 1.0] * 4, "one": [1.0] * 8}
    pq.write_table(pa.table(rows), "a.parquet")
    assert main(["init", "a", "--data", "a.parquet", "--label", "bad"]) == 0
    out = capsys.readouterr().out
    assert "regression of bad by x, price, one" in out
    assert "note: bad has the values 0.0, 1.0 alone; if they are classes, add --task classification" in out
    assert read_table("a.parquet", "bad", task="classification").classes == ("0.0", "1.0")
    for label, task in (("price", None), ("one", None), ("bad", "regression"), ("bad", "classification")):
        assert not read_table("a.parquet", label, task=task).note  # type: ignore[arg-type]


class Rows:
    """A table of Spark that nobody has to compute."""

    def __init__(self, **types: T.DataType) -> None:
        self.schema = T.StructType([T.StructField(name, kind) for name, kind in types.items()])

    count = staticmethod(lambda: 10)


class Session:
    """A Spark session that knows one table."""

    def __init__(self) -> None:
        self.began: list[Any] = []
        self.stopped = 0

    def getOrCreate(self) -> Session:  # noqa: N802 (PySpark's name)
        return self

    def table(self, name: str) -> Rows:
        if name == "lost":
            raise AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] no `lost`.\nSearch path: ...")
        return Rows(x=T.DoubleType(), **{name.strip("`"): T.DoubleType()})

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session without a JVM, which the command makes."""
    found = Session()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "builder", lambda *how: found.began.append(how) or found)
    monkeypatch.setattr(SparkSession, "getActiveSession", staticmethod(lambda: None))
    monkeypatch.setattr(CatalogTable, "nulls", lambda self, names: dict.fromkeys(names, 0))
    monkeypatch.setattr(CatalogTable, "distinct", lambda self, name, most: [0.5])
    return found


@pytest.mark.parametrize("name", [name for name in NAMES if "`" not in name])
def test_no_name_of_a_table_becomes_code(name: str, known: Session) -> None:
    assert main(["init", "new", "--cluster", "yarn", "--table", f"`{name}`", "--label", name]) == 0
    tree = ast.parse(Path("new/train.py").read_text("utf-8"))
    (value,) = [node.value for node in tree.body if "DATA" in ast.unparse(node).split(" = ")[0]]  # type: ignore[attr-defined]
    assert ast.literal_eval(value) == f"`{name}`"
    assert not Path("pwned").exists()
    assert "is a path of this machine" not in Path("new/README.md").read_text("utf-8")


def test_the_script_for_a_table_is_in_good_style_and_its_job_has_the_confs(known: Session) -> None:
    confs = {"spark.sql.catalog.lake": 'a"b', "spark.driver.memory": "8g"}
    given = [part for pair in confs.items() for part in ("--conf", "=".join(pair))]
    arguments = ["--table", "lake.rides", "--label", "lake.rides", "--drop-nulls", *given]
    assert main(["init", "new", "--master", "local[2]", *arguments]) == 0
    assert known.began == [("local[2]", "sparkdl-init", confs)]
    assert known.stopped == 1
    assert read_job_file(Path("new/job.toml"))["conf"] == confs
    script = Path("new/train.py")
    assert "table = table.na.drop(subset" in script.read_text()
    assert script.read_text().startswith('"""Predict lake.rides from lake.rides.')
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--line-length", "110"]
    subprocess.run([*ruff, "check", *options, "--select", "E,F,W,UP,B", script], check=True)
    subprocess.run([*ruff, "format", *options, "--check", script], check=True)


def test_a_session_ends_with_the_command_that_made_it(
    known: Session, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert main(["init", "new", "--table", "lost", "--label", "x"]) == 1
    error = capsys.readouterr().err
    assert "--table 'lost' is no table that Spark can read: [TABLE_OR_VIEW_NOT_FOUND] no `lost`." in error
    assert "config-command" in error
    assert known.stopped == 1

    def interrupted(self: CatalogTable) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(CatalogTable, "count", interrupted)
    arguments = ["init", "new", "--table", "rides", "--label", "x"]
    assert main(arguments) == 130  # what shells have for it
    assert capsys.readouterr().err == "sparkdl: stopped by Ctrl-C\n"
    assert known.stopped == 2
    monkeypatch.setattr(SparkSession, "getActiveSession", staticmethod(lambda: known))
    assert main(arguments) == 130
    assert known.stopped == 2  # somebody else's
    assert not Path("new").exists()


def test_types_of_spark_say_what_can_be_learned(known: Session) -> None:
    types: dict[str, T.DataType] = {
        "y": T.DecimalType(9, 2),
        "text": T.StringType(),
        "at": T.TimestampType(),
        "small": T.ShortType(),
        "list": T.ArrayType(T.IntegerType()),
        "raw": T.BinaryType(),
        "took": T.DayTimeIntervalType(),
        "nothing": T.NullType(),
    }
    rows: Any = Rows(**types)
    found = table_of(CatalogTable("rides", rows), "y")
    assert (found.task, found.features) == ("regression", ("text", "at", "small"))
    left_out = dict(found.left_out)
    assert left_out["list"].startswith("array<int>: lists and structs are no single number")
    assert left_out["raw"].startswith("binary: bytes need a Column")
    assert left_out["took"] == "interval day to second: make seconds of it first"
    assert left_out["nothing"] == "void: it is no number, string, boolean or date"
    with pytest.raises(DataError, match="column 'a`b' of rides: .* no backtick in a name: rename it"):
        table_of(CatalogTable("rides", Rows(**{"a`b": T.LongType()})), "y")  # type: ignore[arg-type]


@pytest.fixture
def rides(real: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A table of Spark's catalog, and a label with a name that has to be quoted."""
    monkeypatch.chdir(tmp_path)
    rows = real.range(300).select(
        F.when(F.col("id") > 0, F.col("id") / 300).alias("how far"),
        F.col("id").cast("string").alias("number"),
        (F.col("id") % 3).alias("where.to"),
        F.when(F.col("id") % 2 == 0, "day").otherwise("night").alias("when"),
        F.array("id").alias("stops"),
    )
    rows.write.parquet(str(tmp_path / "files"))
    real.sql(f"CREATE TABLE rides USING parquet LOCATION '{tmp_path / 'files'}'")
    rows.createOrReplaceTempView("`my rides`")
    yield real
    real.catalog.clearCache()
    real.sql("DROP TABLE rides")
    real.catalog.dropTempView("`my rides`")


def run_here(folder: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the script ``new/train.py`` of a folder in the session of the tests."""
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)  # that of all tests
    script = folder / "new" / "train.py"
    # The JVM of all tests has another working directory.
    script.write_text(script.read_text().replace('f"runs/', f'f"{folder}/runs/'))
    runpy.run_path(str(script), run_name="__main__")


def test_a_starter_trains_on_a_table_of_spark(
    rides: SparkSession, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["init", "new", "--table", "rides", "--label", "where.to", "--drop-nulls"]) == 0
    out = capsys.readouterr().out
    assert "classification of where.to (0, 1, 2) by how far, number, when" in out
    assert "left out: stops, array<bigint>: lists and structs" in out
    run_here(tmp_path, ["--epochs", "1"], monkeypatch)
    assert re.search(r"^accuracy=[01]\.\d{4}$", capsys.readouterr().out, re.MULTILINE)
    assert sorted(Predictor.load("runs/first/model").labels) == ["0", "1", "2"]


def test_mistakes_in_a_table_of_spark_are_named(rides: SparkSession) -> None:
    def found(name: str, label: str, **how: Any) -> Any:
        return table_of(CatalogTable(name, rides.table(name)), label, **how)

    assert found("`my rides`", "how far", nulls=True).rows == 300
    with pytest.raises(DataError, match=r"`my rides`: nulls in how far \(1\); fill them first"):
        found("`my rides`", "how far")
    with pytest.raises(DataError, match=r"'wen' is not in rides; did you mean 'when'\?"):
        found("rides", "wen")
    with pytest.raises(DataError, match="label 'stops' is array<bigint>"):
        found("rides", "stops")
    rides.sql("SELECT id, id % 1002 AS y FROM range(3000)").createOrReplaceTempView("many")
    with pytest.raises(DataError, match="label 'y' of many has more than 1000 different values"):
        found("many", "y", task="classification")
    assert found("many", "y").task == "regression"
    rides.sql("SELECT 1 AS x, 0.5D AS y LIMIT 0").createOrReplaceTempView("many")
    with pytest.raises(DataError, match="many has no rows"):
        found("many", "y")
    rides.catalog.dropTempView("many")


@pytest.mark.parametrize("name", ["nope", "lake.rides", "my rides", "rides; DROP TABLE rides", ""])
def test_a_table_that_is_not_there_is_named(rides: SparkSession, name: str, capsys: Any) -> None:
    assert main(["init", "new", "--table", name, "--label", "x"]) == 1
    error = capsys.readouterr().err
    assert f"--table {name!r} is no table that Spark can read: [" in error
    assert rides.catalog.tableExists("rides")


@pytest.mark.whole
def test_a_starter_trains_on_a_table(
    real: SparkSession, table: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    csv.write_csv(pa.table(COLUMNS).drop_columns("tags"), "shop.csv")
    arguments = ["--label", "kind", "--features", "grade,age,city,income"]
    assert main(["init", "new", "--data", "shop.csv", *arguments]) == 0
    run_here(tmp_path, ["--epochs", "2", "--lr", "0.03"], monkeypatch)
    real.catalog.clearCache()
    out = capsys.readouterr().out
    # Some forty rows say little of how well it learns.
    assert 0 <= float(re.findall(r"^accuracy=(.*)$", out, re.MULTILINE)[0]) <= 1
    assert re.search(r"^recall of [abc]=[01]\.\d{4}$", out, re.MULTILINE)
    assert "city: left out, all rows have one value" in out
    assert main(["runs", "runs"]) == 0
    assert "finished" in capsys.readouterr().out
    labels = Predictor.load("runs/first/model").labels
    assert sorted(labels) == ["a", "b", "c"]


# Submitted, a starter for a table runs in tests/slow/test_first_model.py.
@pytest.mark.cluster
def test_a_starter_is_submitted_and_trains_on_files_where_they_lie(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(4800, 2))
    columns = {"a": x[:, 0], "b": [None, *x[1:, 1]], "above": (x.sum(1) > 0).astype(int)}
    pq.write_table(pa.table(columns), "rows.parquet", row_group_size=400)
    arguments = ["--label", "above", "--in-place", "--drop-nulls"]
    assert main(["init", "new", "--data", "rows.parquet", *arguments]) == 0
    monkeypatch.chdir("new")
    conf = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    # Each query runs once: the Java code that Spark writes for one costs more to compile than it saves.
    for pair in ("spark.sql.codegen.wholeStage=false", "spark.sql.codegen.factoryMode=NO_CODEGEN"):
        conf += ["--conf", pair]
    arguments = ["--epochs", "2", "--lr", "0.01"]
    assert main(["submit", "--conf-file", "job.toml", *conf, "--", *arguments]) == 0
    out = capfd.readouterr().out
    assert float(re.findall(r"^val/accuracy=(.*)$", out, re.MULTILINE)[0]) > 0.9
    assert Path("runs/first/model.safetensors").exists()
    assert main(["runs", "runs"]) == 0
    assert "finished" in capfd.readouterr().out
