"""The progress bar: epoch, loss, records per second and the last validation score."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.live import in_notebook

if TYPE_CHECKING:
    from sparkdl.train.run import Run


class Progress(Hook):
    """A tqdm bar over the iterations of each epoch, in terminals, notebooks and log files.

    Args:
        name: name of the run.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: Any = None
        self._since = time.perf_counter()
        self._samples = 0

    def on_iteration_end(self, run: Run) -> None:
        """Move the bar; the first iteration of an epoch opens it."""
        if self._bar is None:
            self._open(run)
        row = run.history[-1]
        self._samples += row["samples"]
        self._bar.set_postfix_str(self._text(run), refresh=False)
        self._bar.update()

    def on_validation_begin(self, run: Run, name: str) -> None:
        """Say what takes the time."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self._text(run)}, validating {name}", refresh=_lively())

    def on_validation_end(self, run: Run, name: str, scores: Mapping[str, float]) -> None:
        """Show the new score."""
        if self._bar is not None:
            self._bar.set_postfix_str(self._text(run), refresh=_lively())

    def on_epoch_end(self, run: Run) -> None:
        """Leave the epoch's bar as it is and begin another one."""
        self._close()

    def on_train_end(self, run: Run) -> None:
        """Close a bar that an epoch cut short has left."""
        self._close()

    def _text(self, run: Run) -> str:
        rate = self._samples / max(time.perf_counter() - self._since, 1e-9)
        text = f"loss={run.state.loss:.4f}, {rate:.0f} records/s"
        if math.isnan(run.state.score):
            return text
        return f"{text}, {run.monitored}={run.state.score:.4f}"

    def _open(self, run: Run) -> None:
        self._bar = open_bar(
            f"{self._name} epoch {run.previous.epoch + 1}", "it", total=run.steps, initial=run.previous.step
        )
        # The bar opens when its first iteration is over, which took time, too.
        self._since, self._samples = time.perf_counter() - run.history[-1]["seconds"], 0

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def open_bar(name: str, unit: str, **options: Any) -> Any:
    """Return a bar of tqdm that suits where it is shown: a terminal, a notebook or a log file.

    Args:
        name: what the bar is about.
        unit: what it counts.
        **options: further ones of tqdm.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would advise to install ipywidgets; the text bar will do
        from tqdm.auto import tqdm

    return tqdm(desc=name, unit=unit, mininterval=0.2 if _lively() else 30.0, dynamic_ncols=True, **options)


def _lively() -> bool:
    """Return whether the bar is redrawn in place. In a log file every refresh is a line: write few."""
    return sys.stderr.isatty() or in_notebook()
