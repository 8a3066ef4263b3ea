"""The command that writes a starter: its files run, and mistakes in a table are named."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl.__main__ import main
from sparkdl.cli.clusters import KINDS, kind_of
from sparkdl.cli.schema import read_table
from sparkdl.cli.submit import command as submit
from sparkdl.cli.submit.job import Job, read_job_file
from sparkdl.exceptions import DataError
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
def test_the_script_is_in_good_style(table: str, label: str) -> None:
    assert main(["init", "shop", "--data", table, "--label", label, "--features", "age,member"]) == 0
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--line-length", "110"]
    subprocess.run([*ruff, "check", *options, "--select", "E,F,W,UP,B", "shop/train.py"], check=True)
    subprocess.run([*ruff, "format", *options, "--check", "shop/train.py"], check=True)


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
        (["--data", "text.parquet", "--label", "x"], "is not a Parquet file"),
        (["--data", "text.parquet"], "--data needs --label"),
        (["--label", "x"], "--label needs --data"),
    ],
)
def test_mistakes_in_arguments_are_named(table: str, arguments: list[str], problem: str, capsys: Any) -> None:
    Path("text.parquet").write_text("a,b\n1,2\n")
    assert main(["init", "new", *arguments]) == 1
    found = capsys.readouterr().err
    assert problem in found
    assert "troubleshooting.md#config-command" in found
    assert not Path("new").exists()


@pytest.mark.cluster
def test_a_starter_trains_on_a_table(table: str, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert (
        main(["init", "shop", "--data", table, "--label", "kind", "--features", "grade,age,city,income"]) == 0
    )
    monkeypatch.chdir("shop")
    conf = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    assert main(["submit", "--conf-file", "job.toml", *conf, "--", "--epochs", "30", "--lr", "0.03"]) == 0
    out = capfd.readouterr().out
    assert float(re.findall(r"^accuracy=(.*)$", out, re.MULTILINE)[0]) > 0.8
    assert main(["runs", "runs"]) == 0
    assert "finished" in capfd.readouterr().out
    assert "city: left out, all rows have one value" in out
    labels = Predictor.load("runs/first/model").labels
    assert sorted(labels) == ["a", "b", "c"]
