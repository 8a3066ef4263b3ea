"""Forecasts of panels of series as stages.

The stages load when they are first used: the executors import single modules of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["TimeSeriesEstimator", "TimeSeriesModel"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("sparkdl.ml.series.stage"), name)
    raise AttributeError(f"module 'sparkdl.ml.series' has no attribute {name!r}")
