"""Trainers and results as notebooks show them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import nn

from sparkdl import html
from sparkdl.nn import shown
from sparkdl.train.config import TrainConfig
from sparkdl.train.history import History


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


def curves(history: History, scores: dict[str, float]) -> str:
    """Return a table of loss and scores: first and last value, and a line."""
    series = {"loss": [float(value) for value in history.column("loss")]}
    for name in scores:
        group, _, score = name.partition("/")
        found = (row for row in history.validations if row["name"] == group)
        series[name] = [float(row[score]) for row in found if score in row]
    rows = [
        (name, f"{values[0]:.4g}", f"{values[-1]:.4g}", html.sparkline(values, name))
        for name, values in series.items()
        if values
    ]
    return html.table(["", "first", "last", "course"], rows)
