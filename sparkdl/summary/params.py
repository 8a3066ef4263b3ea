"""The options of a run as flat names and plain values, for tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sparkdl import redaction

if TYPE_CHECKING:
    from sparkdl.train.run import Run

_LONGEST = 500
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>$")

Plain = str | int | float


def params(run: Run) -> dict[str, Plain]:
    """Return module, size and all options of a run; those of a dict get dotted names."""
    return {
        "module": type(run.module).__name__,
        "trainable_parameters": run.layout.numel,
        "iterations_per_epoch": run.steps,
        **flatten({field.name: getattr(run.config, field.name) for field in fields(run.config)}),
    }


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
    if isinstance(value, Sequence):
        return f"[{', '.join(str(_plain(item)) for item in value)}]"[:_LONGEST]
    text = redaction.text(str(getattr(value, "__qualname__", None) or repr(value)))
    # An address in memory says nothing, and differs from run to run.
    return type(value).__name__ if _ADDRESS.search(text) else text[:_LONGEST]
