"""Trainers and results as notebooks show them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import nn

from sparkdl import html
from sparkdl.nn import shown
from sparkdl.train.history import History
from sparkdl.train.options.config import TrainConfig

_LARGE = (480, 96)
"""Size of a line that one looks at while it grows, in pixels."""


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


def result(found: Any) -> str:
    """Return a result: where the run ended, its last scores, and lines of loss and scores."""
    state = found.state
    facts = {
        "epochs": state.epoch,
        "iterations": state.iteration,
        "seconds": f"{state.seconds:.1f}",
        "stopped by": found.stopped_by,
        "parameters": shown.size(found.module),
    }
    name = f"Result of {type(found.module).__name__}"
    return html.block(name, facts, curves(found.history, found.scores))


def run(found: Any) -> str:
    """Return a run that is under way: how far it is, how fast, and lines of loss and scores.

    Args:
        found: a :class:`sparkdl.train.Run`.
    """
    state, history = found.state, found.history
    facts: dict[str, object] = {"epochs": state.epoch, "iterations": state.iteration}
    if len(history):
        seconds, samples = sum(history.column("seconds")), sum(history.column("samples"))
        facts |= {"loss": f"{state.loss:.4g}", "records/s": f"{samples / max(seconds, 1e-9):,.0f}"}
        facts["seconds"] = f"{state.seconds:.1f}"
    if found.error is not None:
        facts["ended by"] = type(found.error).__name__
    elif found.stopped:
        facts["stopped"] = found.stopped
    return html.block(f"Run of {found.name}", facts, curves(history, found.scores, _LARGE))


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
