"""The progress bar: epoch, loss, records per second, the time left and the last validation score."""

from __future__ import annotations

import math
import shutil
import sys
import warnings
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.live import in_notebook

if TYPE_CHECKING:
    from sparkdl.train.run import Run


_WIDE = 100
"""Columns of a terminal from which there is room for the name, the bar and the number of iterations."""

_RECENT = 50  # iterations that tell how long the others of the epoch will take


class Progress(Hook):
    """A tqdm bar over the iterations of each epoch, in terminals, notebooks and log files.

    A line stays for each epoch: loss, monitored score, and records per second of its iterations' ``seconds``.
    Iterations arrive in groups, so the clock between two of them says nothing.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: Any = None
        self._samples = 0
        self._seconds = 0.0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._warm = False

    def on_train_begin(self, run: Run) -> None:
        """Forget an earlier run."""
        self._recent.clear()
        self._warm = False

    def on_iteration_end(self, run: Run) -> None:
        """Move the bar; the first iteration of an epoch opens it."""
        if self._bar is None:
            self._open(run)
        row = run.history[-1]
        self._samples += row["samples"]
        self._seconds += row["seconds"]
        if self._warm:  # the first iteration of a run starts Python and loads torch
            self._recent.append(row["seconds"])
        self._warm = True
        self._bar.set_postfix_str(self._text(run), refresh=False)
        self._bar.update()

    def on_validation_begin(self, run: Run, name: str) -> None:
        """Say what takes the time."""
        if self._bar is not None:
            self._bar.set_postfix_str(self._text(run, f"validating {name}"), refresh=_lively())

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

    def _text(self, run: Run, doing: str = "") -> str:
        parts = [f"loss={_number(run.state.loss)}"]
        if not math.isnan(run.state.score):
            parts.append(f"{run.monitored}={_number(run.state.score)}")
        if doing:
            return ", ".join([*parts, doing])
        parts.append(f"{self._samples / max(self._seconds, 1e-9):,.0f} records/s")
        left = run.steps - run.state.step if run.state.step else 0
        if left and self._recent:
            seconds = left * sum(self._recent) / len(self._recent)
            parts.append(f"{str(timedelta(seconds=round(seconds))).removeprefix('0:')} left")
        return ", ".join(parts)

    def _open(self, run: Run) -> None:
        self._samples, self._seconds = 0, 0.0
        name, form = f"epoch {run.previous.epoch + 1}", "{desc}: {percentage:3.0f}%{postfix}"
        if not _lively() or shutil.get_terminal_size().columns >= _WIDE:
            name, form = (
                f"{self._name} {name}",
                "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}",
            )
        self._bar = open_bar(name, "it", total=run.steps, initial=run.previous.step, bar_format=form)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _number(value: float) -> str:
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"


def open_bar(name: str, unit: str, **options: Any) -> Any:
    """Return a bar of tqdm that suits where it is shown: a terminal, a notebook or a log file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would advise to install ipywidgets; the text bar will do
        from tqdm.auto import tqdm

    return tqdm(desc=name, unit=unit, mininterval=0.2 if _lively() else 30.0, dynamic_ncols=True, **options)


def _lively() -> bool:
    """Return whether the bar is redrawn in place. In a log file every refresh is a line: write few."""
    return sys.stderr.isatty() or in_notebook()
