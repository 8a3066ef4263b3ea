"""Backtests with rolling origin: forecasts of the past, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sparkdl.data.columns import quoted
from sparkdl.exceptions import ConfigError, is_integer
from sparkdl.ml.series.forecast import CUTOFF, SCALE
from sparkdl.ml.series.params import HasSeries


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
    return F.avg(reduce(add, losses) / F.lit(len(losses)))


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


def origins(windows: int, step: int | None, horizon: int) -> list[int]:
    """Return how many steps before the end of a series its forecasts begin, the first one first."""
    for name, value in (("windows", windows), ("step", horizon if step is None else step)):
        if not is_integer(value, 1):
            raise ConfigError(f"{name}={value!r}: expected an integer of at least 1")
    return [horizon + number * (step or horizon) for number in reversed(range(windows))]


def backtest(
    estimator: HasSeries,
    forecast: Callable[[int, Sequence[int]], DataFrame],
    windows: int,
    step: int | None,
    metrics: Sequence[str],
    refit: bool,
) -> DataFrame:
    """Return the errors of an estimator, see :meth:`TimeSeriesEstimator.backtest`.

    ``forecast`` fits to all but so many last steps, and forecasts from so many steps before the end.
    """
    begins = origins(windows, step, estimator.getHorizon())
    scored(estimator, metrics)  # a metric that is none is told before the fit
    if not refit:
        forecasts = forecast(begins[0], begins)
    else:
        forecasts = reduce(DataFrame.unionAll, [forecast(begin, [begin]) for begin in begins])
    return errors(estimator, forecasts, metrics)


def errors(stage: HasSeries, forecasts: DataFrame, metrics: Sequence[str]) -> DataFrame:
    """Return a row for each series and cutoff of forecasts of the past, with a column for each metric."""
    keys = [quoted(stage.getIdCol())] if stage.getIdCol() else []
    return forecasts.groupBy(*keys, CUTOFF).agg(*scored(stage, metrics))


def scored(stage: HasSeries, metrics: Sequence[str]) -> list[Column]:
    """Return the aggregates of forecasts that are metrics; raises ConfigError if there is no such metric."""
    for name in metrics:
        if name not in METRICS:
            raise ConfigError(f"metrics: found {name!r}, expected some of {', '.join(METRICS)}")
    if not metrics:
        raise ConfigError(f"metrics: found none, expected some of {', '.join(METRICS)}")
    forecast, *quantiles = map(quoted, stage.outputNames())
    of = Scored(
        value=quoted(stage.getOrDefault("labelCol")),
        forecast=forecast,
        quantiles=dict(zip(stage._quantiles(), quantiles, strict=True)),
        scale=F.col(SCALE),
    )
    return [METRICS[name](of).alias(name) for name in metrics]
