"""The Python in the documentation runs: every block of a page in order, in one namespace."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from execute_docs import shape, snippets, write_machines
from support.data import digits
from support.serving import classifier

from sparkdl import Dataset
from sparkdl.train.checkpoint import latest, read_point

ROOT = Path(__file__).parents[1]


def run_page(page: str, namespace: dict[str, Any]) -> None:
    """Run a page; what it says that a snippet prints is what it prints, but for the numbers."""
    for snippet in snippets((ROOT / page).read_text()):
        if snippet.info == "no-run":
            continue
        printed = snippet.run(page, namespace)
        if snippet.prints is not None:
            assert shape(printed) == shape(snippet.prints), f"{page}, line {snippet.line}"


@pytest.fixture
def namespace(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A namespace that pickles like a notebook's, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    if "mlflow" in sys.modules:  # another test may have left a store of its own
        sys.modules["mlflow"].set_tracking_uri((tmp_path / "mlruns").as_uri())
    write_machines(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__", "spark": spark}
    yield namespace
    for value in namespace.values():
        if isinstance(value, Dataset):
            value.release()


@pytest.mark.slow
def test_tuning_guide(namespace: dict[str, Any]) -> None:
    pytest.importorskip("optuna")
    run_page("docs/tuning.md", namespace)
    assert namespace["again"].replayed == namespace["again"].rungs


@pytest.mark.slow
def test_planning_guide(namespace: dict[str, Any]) -> None:
    run_page("docs/planning.md", namespace)
    assert 1 <= namespace["found"].best.executors <= 32


@pytest.mark.slow
def test_series_guide(namespace: dict[str, Any]) -> None:
    pytest.importorskip("optuna")
    run_page("docs/series.md", namespace)
    assert namespace["told"].count() == 28
    assert {"id", "cutoff", "mae", "mase", "pinball"} == set(namespace["errors"].columns)


@pytest.mark.slow
def test_distillation_guide(namespace: dict[str, Any]) -> None:
    run_page("docs/distillation.md", namespace)
    assert namespace["distiller"].cost.rows == 400
    assert "prediction" in namespace["small"].transform(namespace["scored"]).columns


@pytest.mark.slow
@pytest.mark.parametrize("page", ["optimizers", "steps", "exchange"])
def test_training_guides(namespace: dict[str, Any], page: str) -> None:
    for package in ("sklearn", "lightning.pytorch"):
        pytest.importorskip(package)
    run_page(f"docs/training_{page}.md", namespace)


@pytest.mark.slow
def test_training_guide(namespace: dict[str, Any], tmp_path: Path) -> None:
    for package in ("sklearn", "tensorboard", "mlflow", "matplotlib"):
        pytest.importorskip(package)
    run_page("docs/training.md", namespace)
    assert {"history.jsonl", "history.png", "runs", "mlruns"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.whole
def test_recovery_guide(namespace: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    run_page("docs/recovery.md", namespace)
    changes = read_point(latest(tmp_path / "runs" / "stream")).history.new_rows
    assert len(changes) == 1  # the first batch began the run, the second went on
    assert changes[0]["epoch"] == 1
    assert {"digits", "longest"} <= {path.name for path in (tmp_path / "runs").iterdir()}


@pytest.mark.slow
def test_recommenders_guide(namespace: dict[str, Any]) -> None:
    run_page("docs/recommenders.md", namespace)


@pytest.mark.slow
def test_spark_ml_guide(namespace: dict[str, Any], tmp_path: Path) -> None:
    for package in ("sklearn", "PIL", "matplotlib"):
        pytest.importorskip(package)
    run_page("docs/ml.md", namespace)
    assert {"classifier", "digits", "digits.pt2", "scored", "towers"} <= {p.name for p in tmp_path.iterdir()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*Any type hint:UserWarning")  # of MLflow
def test_serving_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri()
    namespace: dict[str, Any] = {"__name__": "__main__", "model": classifier()}
    try:
        run_page("docs/serving.md", namespace)
    finally:
        while mlflow.active_run():
            mlflow.end_run()
        mlflow.set_tracking_uri(before)
    assert namespace["again"].numClasses == 10


@pytest.mark.slow
def test_tables_guide(namespace: dict[str, Any], tmp_path: Path) -> None:
    run_page("docs/tables.md", namespace)
    assert set(namespace["model"].labels) == {"fails", "runs"}
    assert (tmp_path / "machines").is_dir()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft calls transformers so
def test_transformers_guide(namespace: dict[str, Any], tmp_path: Path) -> None:
    for package in ("transformers", "peft"):
        pytest.importorskip(package)
    run_page("docs/transformers.md", namespace)
    assert {"prices", "bert", "adapters"} <= {path.name for path in tmp_path.iterdir()}
    trained = sum(4 * p.numel() for p in namespace["adapted"].parameters() if p.requires_grad)
    assert namespace["result"].history[-1]["bytes"]["gradients"] < 2 * trained + 200


@pytest.mark.parametrize("page", ["index", "install", pytest.param("data", marks=pytest.mark.whole)])
def test_first_pages(namespace: dict[str, Any], page: str) -> None:
    run_page(f"docs/{page}.md", namespace)
    if page == "index":
        assert set(namespace["model"].labels) == {"fails", "runs"}
        assert abs(namespace["result"].module.weight.item() - 3) < 0.05


def test_concept(namespace: dict[str, Any]) -> None:
    pytest.importorskip("sklearn")
    run_page("docs/concept.md", namespace)
    assert set(namespace["last"]["bytes"]) == {"weights", "gradients", "state", "shards", "files"}


@pytest.mark.slow
def test_migration_guide(namespace: dict[str, Any]) -> None:
    x, y = digits(120)
    rows = [(row.tolist(), int(label)) for row, label in zip(x, y, strict=True)]
    df = namespace["spark"].createDataFrame(rows, "features array<float>, label int")
    namespace |= {"df": df, "held_out": df.limit(20)}
    run_page("docs/migrate.md", namespace)
    assert namespace["predicted"].count() == 20


def test_readme(namespace: dict[str, Any]) -> None:
    run_page("README.md", namespace)
    line = namespace["result"].module
    assert [line.weight.item(), line.bias.item()] == pytest.approx([3, 1], abs=0.2)


CODE = re.compile(r"^```(?P<kind>\w+)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
COLUMNS = 84  # of a line of code, at most: what a page of the site shows at 1,280 pixels


def test_install_lists_the_extras() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`.+?`) \|", (ROOT / "docs/install.md").read_text(), re.MULTILINE)
    assert sorted(re.findall(r"`(.+?)`", " ".join(rows))) == sorted(extras)


def test_code_fits_its_column() -> None:
    pages = sorted(ROOT.joinpath("docs").glob("*.md"))
    assert len(pages) > 20
    for page in pages:
        for match in CODE.finditer(page.read_text()):
            wide = [line for line in match["code"].splitlines() if len(line) > COLUMNS]
            assert not wide, f"{page.name}: {wide}"


def test_a_picture_follows_dark_mode() -> None:
    for picture in ROOT.joinpath("docs", "images").glob("*.svg"):
        assert "prefers-color-scheme: dark" in picture.read_text(), picture.name
