"""A run in plain values: its options by flat names, for tables, and how it ended."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from sparkdl import redaction
from sparkdl.nn.objective import parts_of
from sparkdl.optim.describe import options_of, written
from sparkdl.train.run import Run

_LONGEST = 500
_FEW = 16
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>$")

Plain = str | int | float
Status = Literal["FINISHED", "FAILED", "KILLED"]


def ending(run: Run) -> tuple[Status, str]:
    """Return how a run ended, and the reason; for ``on_train_end``."""
    error = run.error
    if error is not None:
        reason = redaction.text(f"{type(error).__name__}: {error}".split("\n")[0])
        return "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED", reason
    if run.stopped == "interrupt":
        return "KILLED", "interrupt"
    return "FINISHED", run.stopped or "end_when"


def params(run: Run) -> dict[str, Plain]:
    """Return module, optimizer, loss, columns and all options of a run; those of a dict get dotted names.

    The learning rate is the optimizer's own, which a schedule may change; several groups have a list.
    """
    rates = list(dict.fromkeys(options["lr"] for options in options_of(run.optimizer) if "lr" in options))
    plan = run.data.plan
    found = {
        "module": type(run.module).__name__,
        "trainable_parameters": run.layout.numel,
        "iterations_per_epoch": run.steps,
        "optimizer": written(run.optimizer),
        **({"learning_rate": rates[0] if len(rates) == 1 else rates} if rates else {}),
        **(parts_of(run.objective) or {"loss": "the module's own"}),
        "features": run.data.feature_columns,
        "label": plan.sources(plan.label),
        **{field.name: getattr(run.config, field.name) for field in fields(run.config)},
    }
    return flatten(found)


def flatten(options: Mapping[str, Any], prefix: str = "") -> dict[str, Plain]:
    """Return options as numbers and short strings, those of dicts in dicts by dotted name."""
    flat: dict[str, Plain] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = _plain(value)
    return flat


def _plain(value: Any) -> Plain:
    if isinstance(value, str):
        return redaction.text(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, partial):
        return _called(value.func, value.args, value.keywords)[:_LONGEST]
    if isinstance(value, nn.Module):
        return _called(type(value), (), _given(value))[:_LONGEST]
    kind = type(value)
    of_dataclass = getattr(kind, "__dataclass_params__", None)
    if of_dataclass is not None and of_dataclass.repr and "__repr__" in vars(kind):
        return _called(kind, (), {f.name: getattr(value, f.name) for f in fields(value)})[:_LONGEST]
    if isinstance(value, Sequence):
        return f"[{', '.join(str(_plain(item)) for item in value)}]"[:_LONGEST]
    text = redaction.text(str(getattr(value, "__qualname__", None) or repr(value)))
    # An address in memory says nothing, and differs from run to run.
    return type(value).__name__ if _ADDRESS.search(text) else text[:_LONGEST]


def _called(what: Any, args: Sequence[Any], options: Mapping[str, Any]) -> str:
    """Return a call as one would write it."""
    told = [*map(_plain, args), *(f"{name}={_plain(value)}" for name, value in options.items())]
    return f"{_plain(what)}({', '.join(map(str, told))})"


def _given(module: nn.Module) -> dict[str, Any]:
    """Return the plain arguments that a module, such as a loss, has kept and that are not its defaults."""
    found = {}
    for name, parameter in inspect.signature(type(module)).parameters.items():
        value = getattr(module, name, None)
        if isinstance(value, torch.Tensor) and value.numel() <= _FEW:
            value = value.tolist()
        if isinstance(value, str | int | float | list) and repr(value) != repr(parameter.default):
            found[name] = value
    return found
