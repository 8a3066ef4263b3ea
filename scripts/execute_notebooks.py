"""Run notebooks and keep their outputs.

    python scripts/execute_notebooks.py                 # all of them, in place
    python scripts/execute_notebooks.py quickstart      # one

Of what goes to stderr, the lines of completed epochs stay; bars on their way and Spark's lines are left out.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
TIMEOUT = 900
EPOCH = re.compile(r"(\w+ )?epoch \d+: 100%|\.\.\.$")
FEW = 4  # lines of epochs that are kept at either end
ENVIRONMENT = {
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONWARNINGS": "ignore",
    "COLUMNS": "80",  # of progress bars
    "OMP_WAIT_POLICY": "passive",  # whoever runs notebooks uses the cores for other things as well
}


def run(path: Path) -> nbformat.NotebookNode:
    """Return a notebook as it is after all its cells have run.

    Raises:
        CellExecutionError: if a cell raises; it names the cell and has the traceback.
    """
    notebook = nbformat.read(path, as_version=4)
    environment = {**os.environ, **ENVIRONMENT}
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        coalesce_streams=True,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    client.execute(env=environment)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [kept for output in cell.outputs if (kept := without_noise(output)) is not None]
    notebook.metadata = {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
    }
    return notebook


def without_noise(output: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """Return an output; of stderr the lines of completed epochs, or None."""
    if output.get("name") == "stderr":
        shown = [line.rpartition("\r")[2].rstrip() for line in output.text.split("\n")]
        shown = [line for line in shown if EPOCH.match(line)]
        if len(shown) > 2 * FEW:
            shown[FEW:-FEW] = ["..."]
        output.text = "".join(f"{line}\n" for line in shown)
        return output if output.text else None
    return output


def main() -> None:
    parser = argparse.ArgumentParser(description="Run notebooks and keep their outputs.")
    parser.add_argument(
        "names",
        nargs="*",
        help="without folder and suffix; all by default",
    )
    names = parser.parse_args().names
    for path in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        print(path.name, flush=True)
        nbformat.write(run(path), path)


if __name__ == "__main__":
    main()
