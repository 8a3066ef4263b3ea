"""The documentation site builds without a warning, and its reference has every public name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from sparkdl import ml
from sparkdl.ml.params.entries import entries

pytestmark = pytest.mark.whole
ROOT = Path(__file__).parents[1]
EXTERNAL = re.compile(
    r"""<(?:script|img|iframe|link rel="stylesheet")[^>]+(?:src|href)=["']?(?:https?:)?//"""
)
PACKAGES = (
    "data",
    "train",
    "optim",
    "metrics",
    "nn",
    "ml",
    "recsys",
    "online",
    "summary",
    "tune",
    "auto",
    "distill",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a broken link or an unknown name in the reference is an error."""
    for package in ("mkdocs", "material", "mkdocstrings", "nbconvert"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


def test_the_reference_has_every_public_name(site: Path) -> None:
    anchors = set()
    for page in site.joinpath("api").glob("*.html"):
        anchors |= set(re.findall(r'id="(sparkdl[\w.]+)"', page.read_text()))
    wanted = {f"sparkdl.{p}.{name}" for p in PACKAGES for name in import_module(f"sparkdl.{p}").__all__}
    assert not wanted - anchors


def test_the_reference_has_every_param(site: Path) -> None:
    _, *blocks = site.joinpath("api", "ml.html").read_text().split('<details class="params">')
    tables = {re.search(r"Params of (\w+)", block)[1]: block.partition("</details>")[0] for block in blocks}
    assert set(tables) == {"TorchClassifier", "TorchRegressor", "TorchEstimator", "TimeSeriesEstimator"}
    for name, table in tables.items():
        known = entries(getattr(ml, name))
        assert re.findall(r"<td><code>(\w+)</code></td>\s*<td>(?:<code>|not set)", table) == sorted(known)
        assert str(known["batchSize"].default) in table


def test_search_needs_no_server(site: Path) -> None:
    assert site.joinpath("search", "search_index.js").is_file()
    assert 'src="javascripts/iframe-worker.js"' in site.joinpath("index.html").read_text()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert not [page.name for page in pages if EXTERNAL.search(page.read_text())]


def test_no_block_of_code_is_left_as_text(site: Path) -> None:
    for page in site.glob("*.html"):
        assert "```" not in page.read_text(), page.name


def test_no_docstring_keeps_its_markup(site: Path) -> None:
    for page in site.joinpath("api").glob("*.html"):
        left = re.search(r":(class|meth|func|mod|data|attr):.{0,40}|\S::</p>", page.read_text())
        assert left is None, f"{page.name}: {left}"


def test_notebooks_and_programs_have_pages(site: Path) -> None:
    for folder, suffix in (("notebooks", "ipynb"), ("examples", "py")):
        sources = {path.stem for path in ROOT.joinpath(folder).glob(f"*.{suffix}")}
        assert sources == {path.stem for path in site.joinpath(folder).glob("*.html")}
