"""Lines of loss and scores that grow in a notebook while a run trains."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkdl.exceptions import ConfigError, is_number
from sparkdl.train import shown
from sparkdl.train.hooks.base import Hook

if TYPE_CHECKING:
    from sparkdl.train.run import Run

_SHARE = 0.02  # of the run's time may go into drawing


class LivePlot(Hook):
    """Draws loss and scores below the cell that trains, and again and again while they change.

    It is HTML with SVG in one output of the cell: nothing is installed in the browser, no server runs, and
    the notebook keeps the last picture when it is saved. It works in JupyterLab, Jupyter Notebook, VS Code
    and others with Jupyter kernels; elsewhere the hook does nothing.

    Args:
        seconds: between two drawings, at least.

    Raises:
        ConfigError: if that is no positive number.

    Examples:
        ``Trainer(module, ..., hooks=[LivePlot()], progress=False)``
    """

    def __init__(self, seconds: float = 1.0) -> None:
        if not is_number(seconds) or not seconds > 0:
            raise ConfigError(f"LivePlot(seconds={seconds!r}): expected a number above 0")
        self._seconds = seconds
        self._output: NotebookOutput | None = None
        self._next = 0.0

    def on_train_begin(self, run: Run) -> None:
        """Open the output."""
        self._output, self._next = None, 0.0
        if in_notebook():
            self._output = NotebookOutput()
            self._output.show(shown.run(run))

    def on_iteration_end(self, run: Run) -> None:
        """Draw, unless it was done a moment ago."""
        if self._output is not None and time.perf_counter() >= self._next:
            self._draw(self._output, run)

    def on_validation_end(self, run: Run, name: str, scores: Mapping[str, float]) -> None:
        """Draw the new scores."""
        self.on_iteration_end(run)

    def on_train_end(self, run: Run) -> None:
        """Draw how it ended."""
        if self._output is not None:
            self._draw(self._output, run)

    def _draw(self, output: NotebookOutput, run: Run) -> None:
        begin = time.perf_counter()
        output.show(shown.run(run))
        end = time.perf_counter()
        self._next = end + max(self._seconds, (end - begin) / _SHARE)


class NotebookOutput:
    """One output of a notebook's cell, whose HTML is replaced each time that it is shown."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, page: str) -> None:
        """Show a page in place of the one before."""
        notebook: Any = import_module("IPython.display")
        if self._handle is None:
            self._handle = notebook.display(notebook.HTML(page), display_id=True)
        else:
            self._handle.update(notebook.HTML(page))


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    return "ipykernel.zmqshell" in sys.modules
