"""Backtests with rolling origin: forecasts of the past, and their errors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sparkdl.exceptions import ConfigError
from sparkdl.ml.params import value_of
from sparkdl.ml.rowwise import quoted
from sparkdl.ml.series_forecast import CUTOFF, SCALE
from sparkdl.series.errors import Scored, aggregates

if TYPE_CHECKING:
    from sparkdl.ml.series import TimeSeriesEstimator
    from sparkdl.ml.series_params import HasSeries


def origins(windows: int, step: int | None, horizon: int) -> list[int]:
    """Return how many steps before the end of a series its forecasts begin, the first one first.

    Raises:
        ConfigError: if a number cannot work.
    """
    for name, value in (("windows", windows), ("step", horizon if step is None else step)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name}={value!r}: expected an integer of at least 1")
    return [horizon + number * (step or horizon) for number in reversed(range(windows))]


def backtest(
    estimator: TimeSeriesEstimator,
    df: DataFrame,
    windows: int,
    step: int | None,
    metrics: Sequence[str],
    refit: bool,
) -> DataFrame:
    """Return the errors of an estimator, see :meth:`TimeSeriesEstimator.backtest`."""
    begins = origins(windows, step, estimator.getHorizon())
    scored(estimator, metrics)  # a metric that is none is told before the fit
    if not refit:
        forecasts = estimator.fitBefore(df, begins[0])._rows(df, begins)
    else:
        parts = [estimator.fitBefore(df, begin)._rows(df, [begin]) for begin in begins]
        forecasts = reduce(DataFrame.unionAll, parts)
    return errors(estimator, forecasts, metrics)


def errors(stage: HasSeries, forecasts: DataFrame, metrics: Sequence[str]) -> DataFrame:
    """Return a row for each series and cutoff of forecasts of the past, with a column for each metric."""
    keys = [quoted(stage.getIdCol())] if stage.getIdCol() else []
    return forecasts.groupBy(*keys, CUTOFF).agg(*scored(stage, metrics))


def scored(stage: HasSeries, metrics: Sequence[str]) -> list[Column]:
    """Return the aggregates of forecasts that are metrics.

    Raises:
        ConfigError: if there is no such metric.
    """
    forecast, *quantiles = stage.outputNames()
    levels = value_of(stage, stage.quantiles) or []
    return aggregates(
        metrics,
        Scored(
            value=quoted(stage.getOrDefault("labelCol")),
            forecast=quoted(forecast),
            quantiles={level: quoted(name) for level, name in zip(levels, quantiles, strict=True)},
            scale=F.col(SCALE),
        ),
    )
