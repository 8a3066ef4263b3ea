"""Notebooks run, and what is committed has their outputs and reads well on a phone."""

from __future__ import annotations

import base64
import struct
from importlib.util import find_spec
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from execute_notebooks import EPOCH, FOLDER, run  # noqa: E402

FILES = sorted(FOLDER.glob("*.ipynb"))
NEEDS = {
    "distillation": ("sklearn", "matplotlib"),
    "pipeline_and_tuning": ("sklearn", "matplotlib"),
    "quickstart": ("sklearn", "matplotlib"),
    "recommendation": ("recbole", "matplotlib"),
    "tuning": ("optuna", "sklearn", "matplotlib"),
    "surviving_preemption": ("sklearn", "matplotlib", "psutil"),
}
COLUMNS = 64  # of a line, at most: what a phone shows without scrolling, held sideways
PIXELS = 720  # of a figure, at most: six inches at 120 dots
BYTES = 250_000


def name_of(path: Path) -> str:
    return path.stem


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWS", "1000000")  # of a table that is of several GB in what is committed
    for package in NEEDS.get(path.stem, ("matplotlib",)):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    assert kinds(run(path)) == kinds(read(path))


LIVE = """
from functools import partial
import numpy as np, torch
from sparkdl import Dataset, Trainer, session
from sparkdl.train import LivePlot, MaxEpoch
spark = session.builder("local[1]").getOrCreate()
x = np.random.default_rng(0).normal(size=(200, 3)).astype("float32")
data = Dataset.from_numpy(x, (x.sum(1) > 0).astype("int64"))
trainer = Trainer(
    torch.nn.Linear(3, 2), loss=torch.nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.1),
    end_when=MaxEpoch(3), hooks=[LivePlot(0.01)], progress=False,
)
"""


@pytest.mark.slow
def test_a_live_plot_stays_in_the_notebook() -> None:
    cells = [
        nbformat.v4.new_code_cell(source) for source in (LIVE, "_ = trainer.fit(data, data)", "spark.stop()")
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    (shown,) = notebook.cells[1].outputs  # one output, no warning
    assert shown.output_type == "display_data"
    assert "epochs <b>3</b>" in shown.data["text/html"]
    assert shown.data["text/html"].count("<svg") == 2


def kinds(notebook: nbformat.NotebookNode) -> list[set[str]]:
    """Return what each cell prints, shows and returns."""
    return [{output.output_type for output in cell.outputs} for cell in code_cells(notebook)]


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_notebook_is_committed_as_it_ran(path: Path) -> None:
    cells = code_cells(read(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run scripts/notebooks"
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    for output in outputs:
        if output.get("name") == "stderr":  # progress bars of completed epochs alone
            assert all(EPOCH.match(line) for line in output.text.splitlines()), output.text
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < BYTES


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_notebook_is_narrow(path: Path) -> None:
    for cell in code_cells(read(path)):
        assert len(cell.source.splitlines()) <= 40, cell.source
        texts = [cell.source]
        for output in cell.outputs:
            data = output.get("data", {})
            if output.get("name") != "stderr":
                texts.append(output.get("text", ""))
            if "text/html" not in data:  # which is shown in its place
                texts.append(data.get("text/plain", ""))
            if "image/png" in data:
                (width,) = struct.unpack(">I", base64.b64decode(data["image/png"])[16:20])
                assert width <= PIXELS, cell.source
        wide = [line for text in texts for line in text.splitlines() if len(line) > COLUMNS]
        assert not wide
