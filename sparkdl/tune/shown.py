"""Searches as tables, in notebooks and terminals."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl import html
from sparkdl.train.hooks.live import NotebookOutput, in_notebook
from sparkdl.train.hooks.progress import open_bar
from sparkdl.tune.trial import Trial, best_first, names_of

_ROWS = 10
_ERRORS = 3


def metric_value(trial: Trial, mode: str) -> float:
    """Return the last value of a trial as the metric has it; NaN if there is none."""
    value = trial.last
    return math.nan if not math.isfinite(value) else value if mode == "max" else -value


def table_html(trials: Sequence[Trial], metric: str, mode: str) -> str:
    """Return the best trials as a table of HTML, with their learning curves."""
    best = best_first(trials)[:_ROWS]
    names, rows = _cells(best, metric, mode)
    curves = (html.sparkline(_curve(trial, mode), metric) for trial in best)
    return html.table([*names, "curve"], [[*row, curve] for row, curve in zip(rows, curves, strict=True)])


def table_text(trials: Sequence[Trial], metric: str, mode: str) -> str:
    """Return the best trials as lines of text."""
    names, cells = _cells(best_first(trials)[:_ROWS], metric, mode)
    rows = [names, *([str(cell) for cell in row] for row in cells)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def failures(trials: Sequence[Trial]) -> list[str]:
    """Return a line for each of the first trials that failed, and one for the others."""
    failed = [trial for trial in trials if trial.status == "failed"]
    lines = [f"trial {trial.number} failed: {trial.error.splitlines()[0]:.200}" for trial in failed[:_ERRORS]]
    if len(failed) > _ERRORS:
        lines.append(f"{len(failed) - _ERRORS} more trials failed")
    return lines


def _cells(trials: Sequence[Trial], metric: str, mode: str) -> tuple[list[str], list[list[Any]]]:
    """Return the names of a table's columns, and a row for each trial."""
    names = names_of(trials)
    rows: list[list[Any]] = [
        [
            trial.number,
            trial.status,
            trial.epochs,
            _number(metric_value(trial, mode)),
            *(html.short(trial.params.get(name, "")) for name in names),
        ]
        for trial in trials
    ]
    return ["trial", "status", "epochs", metric, *names], rows


class SearchProgress:
    """Shows a search that runs: a table in notebooks, a bar and a last table in terminals and log files."""

    def __init__(self, metric: str, mode: str, name: str) -> None:
        self._metric, self._mode, self._name = metric, mode, name
        self._bar: Any = None
        self._output = NotebookOutput()

    def update(self, trials: Sequence[Trial], epochs: int, rungs: int) -> None:
        """Show what is known after so many rungs; trials that wait for good end without one."""
        if in_notebook():
            self._show(trials, epochs)
            return
        if self._bar is None:
            self._bar = open_bar(self._name, "rung", bar_format="{desc}: {n_fmt} rungs{postfix}, {elapsed}")
        best = max(trials, key=lambda trial: (trial.last, -trial.number))
        ended = sum(trial.is_over for trial in trials)
        failed = sum(trial.status == "failed" for trial in trials)
        self._bar.set_postfix_str(
            f"{len(trials)} trials, {ended} ended, {f'{failed} failed, ' if failed else ''}{epochs} epochs, "
            f"best {self._metric}={_number(metric_value(best, self._mode))} of trial {best.number}",
            refresh=False,
        )
        self._bar.update(rungs - self._bar.n)

    def close(self, trials: Sequence[Trial]) -> None:
        """Show the end."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
            lines = [table_text(trials, self._metric, self._mode), *failures(trials)]
            print("\n".join(lines), file=sys.stderr)

    def _show(self, trials: Sequence[Trial], epochs: int) -> None:
        facts: Mapping[str, object] = {"trials": len(trials), "epochs": epochs}
        self._output.show(html.block(self._name, facts, table_html(trials, self._metric, self._mode)))


def _curve(trial: Trial, mode: str) -> list[float]:
    sign = 1 if mode == "max" else -1
    return [sign * trial.values[epoch] for epoch in sorted(trial.values)]


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.5g}"
