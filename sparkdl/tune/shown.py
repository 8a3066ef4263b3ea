"""Searches as tables, in notebooks and terminals."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl import html
from sparkdl.tune.trial import Trial

_ROWS = 10


def metric_value(trial: Trial, mode: str) -> float:
    """Return the last value of a trial as the metric has it; NaN if there is none."""
    value = trial.last
    return math.nan if not math.isfinite(value) else value if mode == "max" else -value


def table_html(trials: Sequence[Trial], metric: str, mode: str) -> str:
    """Return the best trials as a table of HTML, with their learning curves."""
    best = sorted(trials, key=lambda trial: (-trial.last, trial.number))[:_ROWS]
    names = _names(best)
    rows = [
        [
            trial.number,
            trial.status,
            trial.epochs,
            _number(metric_value(trial, mode)),
            *(_plain(trial.params.get(name, "")) for name in names),
            html.sparkline(_curve(trial, mode), metric),
        ]
        for trial in best
    ]
    return html.table(["trial", "status", "epochs", metric, *names, "curve"], rows)


def table_text(trials: Sequence[Trial], metric: str, mode: str) -> str:
    """Return the best trials as lines of text."""
    best = sorted(trials, key=lambda trial: (-trial.last, trial.number))[:_ROWS]
    names = _names(best)
    rows = [["trial", "status", "epochs", metric, *names]]
    rows += [
        [
            str(trial.number),
            trial.status,
            str(trial.epochs),
            _number(metric_value(trial, mode)),
            *(str(_plain(trial.params.get(name, ""))) for name in names),
        ]
        for trial in best
    ]
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )


class Progress:
    """Shows a search that runs: a table in notebooks, a bar and a last table in terminals and log files.

    Args:
        metric: by which trials are compared.
        mode: ``"max"`` or ``"min"``.
        name: of the search.
    """

    def __init__(self, metric: str, mode: str, name: str) -> None:
        self._metric, self._mode, self._name = metric, mode, name
        self._bar: Any = None
        self._handle: Any = None

    def update(self, trials: Sequence[Trial], epochs: int) -> None:
        """Show what is known after a rung."""
        if "ipykernel.zmqshell" in sys.modules:
            self._show(trials, epochs)
            return
        if self._bar is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm

            lively = sys.stderr.isatty()
            self._bar = tqdm(
                desc=self._name, unit="rung", mininterval=0.2 if lively else 30.0, dynamic_ncols=True
            )
        best = max(trials, key=lambda trial: (trial.last, -trial.number))
        ended = sum(trial.status in ("finished", "stopped", "diverged") for trial in trials)
        self._bar.set_postfix_str(
            f"{len(trials)} trials, {ended} ended, {epochs} epochs, best {self._metric}="
            f"{_number(metric_value(best, self._mode))} of trial {best.number}",
            refresh=False,
        )
        self._bar.update()

    def close(self, trials: Sequence[Trial]) -> None:
        """Show the end."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
            print(table_text(trials, self._metric, self._mode), file=sys.stderr)

    def _show(self, trials: Sequence[Trial], epochs: int) -> None:
        from IPython.display import HTML, display

        facts: Mapping[str, object] = {"trials": len(trials), "epochs": epochs}
        page = HTML(html.block(self._name, facts, table_html(trials, self._metric, self._mode)))  # type: ignore[no-untyped-call]
        if self._handle is None:
            self._handle = display(page, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(page)


def _names(trials: Sequence[Trial]) -> list[str]:
    return list(dict.fromkeys(name for trial in trials for name in trial.params))


def _curve(trial: Trial, mode: str) -> list[float]:
    sign = 1 if mode == "max" else -1
    return [sign * trial.values[epoch] for epoch in sorted(trial.values)]


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.5g}"


def _plain(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value
