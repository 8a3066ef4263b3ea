"""Errors of forecasts as aggregates of Spark SQL, one for each metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from sparkdl.exceptions import ConfigError


@dataclass(frozen=True, slots=True)
class Scored:
    """The columns that errors are computed of."""

    value: Column  # what came; rows where it is null do not count
    forecast: Column  # what was forecast
    quantiles: Mapping[float, Column]  # by level, the column of a quantile
    scale: Column  # the mean absolute error of a seasonal naive forecast before the forecast


def _mae(of: Scored) -> Column:
    return F.avg(F.abs(of.value - of.forecast))


def _rmse(of: Scored) -> Column:
    return F.sqrt(F.avg((of.value - of.forecast) ** 2))


def _smape(of: Scored) -> Column:
    size = F.abs(of.value) + F.abs(of.forecast)
    return F.avg(F.when(size == 0, F.lit(0.0)).otherwise(2 * F.abs(of.value - of.forecast) / size))


def _mase(of: Scored) -> Column:
    return F.avg(F.abs(of.value - of.forecast) / of.scale)


def _pinball(of: Scored) -> Column:
    if not of.quantiles:
        raise ConfigError("metrics: 'pinball' needs quantiles=, such as [0.1, 0.5, 0.9]")
    losses = []
    for level, column in of.quantiles.items():
        error = of.value - column
        losses.append(F.greatest(F.lit(level) * error, F.lit(level - 1) * error))
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    return F.avg(total / F.lit(len(losses)))


METRICS: Mapping[str, Callable[[Scored], Column]] = {
    "mae": _mae,
    "rmse": _rmse,
    "smape": _smape,
    "mase": _mase,
    "pinball": _pinball,
}
"""By name: the mean absolute error, the root of the mean squared error, the symmetric mean absolute
percentage error as a share (0 to 2), the mean absolute scaled error (Hyndman and Koehler, 2006), the pinball
loss."""


def aggregates(metrics: Sequence[str], of: Scored) -> list[Column]:
    """Return a column for each metric; raises ConfigError if there is no such metric."""
    for name in metrics:
        if name not in METRICS:
            raise ConfigError(f"metrics: found {name!r}, expected some of {', '.join(METRICS)}")
    if not metrics:
        raise ConfigError(f"metrics: found none, expected some of {', '.join(METRICS)}")
    return [METRICS[name](of).alias(name) for name in metrics]
