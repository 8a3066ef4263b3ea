"""Trainers and results as notebooks show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from torch import nn

from sparkdl import html
from sparkdl.nn import shown
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.state import TrainState

if TYPE_CHECKING:
    from sparkdl.train.history import History
    from sparkdl.train.result import FitResult
    from sparkdl.train.run import Run

_PLACE = ("epoch", "iteration", "name")
_LARGE = (480, 96)  # size of a line that one looks at while it grows, in pixels


def trainer(name: str, module: nn.Module, optimizer: object, config: TrainConfig) -> str:
    """Return a Trainer: its module by layer, and the options that were set."""
    usual = TrainConfig()
    options = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if repr(getattr(config, field.name)) != repr(getattr(usual, field.name))
    }
    facts = {"parameters": shown.size(module), "optimizer": optimizer, **options}
    return html.block(f"Trainer of {name}", facts, shown.layers(module))


def result(found: FitResult) -> str:
    """Return a result: where the run ended, its last scores, and lines of loss and scores."""
    facts = {**ended(found.state, found.stopped_by), "parameters": shown.size(found.module)}
    facts |= _from_files(found.history)
    name = f"Result of {type(found.module).__name__}"
    return html.block(name, facts, curves(found.history, found.scores))


def ended(state: TrainState, stopped_by: str) -> dict[str, object]:
    """Return how far a run has come, and why it ended."""
    return {
        "epochs": state.epoch,
        "iterations": state.iteration,
        "seconds": f"{state.seconds:.1f}",
        "stopped by": stopped_by,
    }


def ending(state: TrainState, stopped_by: str, scores: Mapping[str, float]) -> str:
    """Return in a line how a run ended: its length, why, the last loss and scores."""
    length = f"{state.epoch} epochs, {state.iteration} iterations in {state.seconds:.1f} s"
    found = "".join(f", {name} {value:.4g}" for name, value in {"loss": state.loss, **scores}.items())
    return f"{length}, stopped by {stopped_by}{found}"


def history(found: History) -> str:
    """Return a history: its length, and lines of loss and scores."""
    facts: dict[str, object] = {"iterations": f"{len(found):,}"}
    if len(found):
        facts |= {"epochs": found[-1]["epoch"], "seconds": f"{sum(found.column('seconds')):.1f}"}
        facts |= _from_files(found)
    names = [f"{row['name']}/{score}" for row in found.validations for score in row if score not in _PLACE]
    return html.block("History", facts, curves(found, dict.fromkeys(names, 0.0)))


def run(found: Run) -> str:
    """Return a run that is under way: how far it is, how fast, and lines of loss and scores."""
    state, history = found.state, found.history
    facts: dict[str, object] = {"epochs": state.epoch, "iterations": state.iteration}
    if len(history):
        seconds, samples = sum(history.column("seconds")), sum(history.column("samples"))
        facts |= {"loss": f"{state.loss:.4g}", "records/s": f"{samples / max(seconds, 1e-9):,.0f}"}
        facts |= {"seconds": f"{state.seconds:.1f}", **_from_files(history)}
    if found.error is not None:
        facts["ended by"] = type(found.error).__name__
    elif found.stopped:
        facts["stopped"] = found.stopped
    return html.block(f"Run of {found.name}", facts, curves(history, found.scores, _LARGE))


def _from_files(history: History) -> dict[str, object]:
    """Return what a scan has read, and how long steps have waited for its rows; nothing of other rows."""
    nbytes = sum(history.column("bytes.files")) if len(history) else 0
    if not nbytes:
        return {}
    return {
        "read from files": html.amount(nbytes),
        "seconds for rows": f"{sum(history.column('phases.data')):.1f}",
    }


def curves(history: History, scores: dict[str, float], size: tuple[int, int] = html.SMALL) -> str:
    """Return a table of loss and scores: first and last value, and a line of some size."""
    series = {"loss": [float(value) for value in history.column("loss")]}
    for name in scores:
        group, _, score = name.partition("/")
        found = (row for row in history.validations if row["name"] == group)
        series[name] = [float(row[score]) for row in found if score in row]
    rows = [
        (name, f"{values[0]:.4g}", f"{values[-1]:.4g}", html.sparkline(values, name, size))
        for name, values in series.items()
        if values
    ]
    return html.table(["", "first", "last", "course"], rows)
