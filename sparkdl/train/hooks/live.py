"""Lines of loss and scores that grow in a notebook while a run trains."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkdl.exceptions import ConfigError
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
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise ConfigError(f"LivePlot(seconds={seconds!r}): expected a number above 0")
        self._seconds = seconds
        self._handle: Any = None
        self._next = 0.0

    def on_train_begin(self, run: Run) -> None:
        """Open the output."""
        self._handle, self._next = None, 0.0
        if in_notebook():
            shows = _display()
            self._handle = shows.display(shows.HTML(shown.run(run)), display_id=True)

    def on_iteration_end(self, run: Run) -> None:
        """Draw, unless it was done a moment ago."""
        if self._handle is not None and time.perf_counter() >= self._next:
            self._draw(run)

    def on_validation_end(self, run: Run, name: str, scores: Mapping[str, float]) -> None:
        """Draw the new scores."""
        self.on_iteration_end(run)

    def on_train_end(self, run: Run) -> None:
        """Draw how it ended."""
        if self._handle is not None:
            self._draw(run)

    def _draw(self, run: Run) -> None:
        begin = time.perf_counter()
        self._handle.update(_display().HTML(shown.run(run)))
        end = time.perf_counter()
        self._next = end + max(self._seconds, (end - begin) / _SHARE)


def _display() -> Any:
    """Return the module of the notebook that shows things."""
    return import_module("IPython.display")


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    return "ipykernel.zmqshell" in sys.modules
