"""Anomalies: values far from their forecasts."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.data.columns import quoted
from sparkdl.exceptions import ConfigError

THRESHOLD, ANOMALY = "threshold", "anomaly"


def thresholds(
    forecasts: DataFrame, keys: Sequence[str], value: str, forecast: str, share: float
) -> DataFrame:
    """Return by series the largest error that is no anomaly, as a column ``threshold``."""
    if not isinstance(share, int | float) or not 0 <= share < 1:
        raise ConfigError(f"share={share!r}: expected a number from 0 to below 1")
    error = F.abs(quoted(value) - quoted(forecast))
    errors = F.sort_array(F.collect_list(error))  # without null
    count = F.floor(F.round(F.size(errors) * F.lit(float(share)), 6)).cast("int")  # 0.29 of 100 are 29
    place = F.size(errors) - count
    largest = F.when(place > 0, F.element_at(errors, F.greatest(place, F.lit(1))))
    return forecasts.groupBy(*map(quoted, keys)).agg(largest.alias(THRESHOLD))


def anomalies(
    forecasts: DataFrame,
    keys: Sequence[str],
    value: str,
    forecast: str,
    quantiles: Sequence[str],
    limits: DataFrame | None,
) -> DataFrame:
    """Add a column ``anomaly``: whether a value is too far from its forecast; null where there is no value.

    ``limits`` are those of :func:`thresholds`; without them, values outside of the lowest and the highest
    quantile (``quantiles`` are ascending) are anomalies.
    """
    came = quoted(value)
    if limits is None:
        if len(quantiles) < 2:
            raise ConfigError(
                "anomalies: found neither thresholds nor two quantiles; give thresholds(...), or fit with "
                "quantiles=[0.01, 0.5, 0.99]"
            )
        return forecasts.withColumn(ANOMALY, (came < quoted(quantiles[0])) | (came > quoted(quantiles[-1])))
    joined = forecasts.join(limits, list(keys), "left") if keys else forecasts.crossJoin(limits)
    return joined.withColumn(ANOMALY, F.abs(came - quoted(forecast)) > F.col(THRESHOLD)).drop(THRESHOLD)
