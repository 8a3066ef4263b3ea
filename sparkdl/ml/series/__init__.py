"""Forecasts of panels of series as stages.

The stages load when they are first used: the executors import single modules of this package.
"""

from __future__ import annotations

from sparkdl.lazy import lazy

_HOMES = {
    "sparkdl.ml.series.stage": "TimeSeriesEstimator TimeSeriesModel",
}

__all__, __getattr__, __dir__ = lazy(__name__, _HOMES)
