"""Fitted models as notebooks show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkdl import html
from sparkdl.nn import shown
from sparkdl.nn.signature import TensorSpec
from sparkdl.train.shown import curves

_MOST = 6  # names in a line


def line(fitted: Any) -> str:
    """Return a fitted model in a line, as Spark's own models are shown."""
    facts = {"uid": fitted.uid, "module": type(fitted.module).__name__}
    if hasattr(fitted, "numClasses"):
        classes = len(fitted.labels) or fitted.numClasses
        facts["numClasses"] = f"{_known(classes)}{_names(fitted.labels) if fitted.labels else ''}"
    if hasattr(fitted, "featuresNames"):
        facts["numFeatures"] = f"{_known(fitted.numFeatures)}{_names(fitted.featuresNames())}"
    return f"{type(fitted).__name__}: {', '.join(f'{name}={value}' for name, value in facts.items())}"


def _known(count: int) -> str:
    return str(count) if count > 0 else "not known yet"


def _names(names: Sequence[str]) -> str:
    more = f", ... {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f" ({', '.join(names[:_MOST])}{more})"


def model(fitted: Any) -> str:
    """Return a fitted model: columns, shapes, the module by layer, and its training if that is known."""
    signature = fitted.signature
    facts: dict[str, object] = {
        "features": ", ".join(fitted.featuresNames()),
        "inputs": "; ".join(map(_kind, signature.inputs)) or "not known yet",
        "outputs": "; ".join(map(_kind, signature.outputs)) or "not known yet",
        "parameters": shown.size(fitted.module),
    }
    parts = [shown.layers(fitted.module)]
    if fitted.hasSummary:
        summary = fitted.summary
        facts |= {"epochs": summary.totalEpochs, "iterations": summary.totalIterations}
        parts.append(curves(summary.history, summary.scores))
    return html.block(f"{type(fitted).__name__} of {type(fitted.module).__name__}", facts, *parts)


def _kind(spec: TensorSpec) -> str:
    return f"{spec.dtype}{'' if spec.shape is None else list(spec.shape)}"
