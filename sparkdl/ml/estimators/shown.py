"""Fitted models as notebooks show them."""

from __future__ import annotations

from typing import Any

from sparkdl import html
from sparkdl.nn import shown
from sparkdl.nn.signature import TensorSpec
from sparkdl.train.shown import curves


def model(fitted: Any) -> str:
    """Return a fitted model: columns, shapes, the module by layer, and its training if that is known.

    Args:
        fitted: a model of this package.
    """
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
