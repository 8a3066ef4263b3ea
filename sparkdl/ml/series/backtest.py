"""Backtests with rolling origin: forecasts of the past, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sparkdl.data.columns import quoted
from sparkdl.exceptions import ConfigError
from sparkdl.ml.params.columns import value_of
from sparkdl.ml.series.forecast import CUTOFF, SCALE
from sparkdl.ml.series.params import HasSeries
from sparkdl.series.errors import Scored, aggregates


def origins(windows: int, step: int | None, horizon: int) -> list[int]:
    """Return how many steps before the end of a series its forecasts begin, the first one first."""
    for name, value in (("windows", windows), ("step", horizon if step is None else step)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
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
