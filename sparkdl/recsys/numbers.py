"""Numbers on one scale, and in buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import inf, isfinite
from typing import Any, Literal, Self, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import quoted
from sparkdl.exceptions import ConfigError, DataError, integer_option
from sparkdl.ml.stages.rowwise import find_field
from sparkdl.recsys.checks import check_columns, check_new

Scale = Literal["standard", "min_max", "log"]
_ACCURACY = 10_000
_LEAST = 1e-150  # deviation whose square a double holds with all digits


@dataclass(frozen=True, slots=True)
class NumberSummary:
    """What is known of a column of numbers; plain values, to be kept as JSON.

    Attributes:
        column: its name.
        count: rows that have a number, neither null nor NaN.
        mean: their mean.
        deviation: their standard deviation.
        low: the smallest.
        high: the largest.
        splits: where buckets of about as many rows meet, ascending.
    """

    column: str
    count: int
    mean: float
    deviation: float
    low: float
    high: float
    splits: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "splits": list(self.splits)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_json` was made of.

        Raises:
            ConfigError: if a value is missing, or there are others.
        """
        names = {field.name for field in fields(cls)}
        if set(found) != names:
            raise ConfigError(f"a number's summary has {sorted(found)}, expected {sorted(names)}")
        return cls(**{**found, "splits": tuple(found["splits"])})


def summarise_numbers(df: DataFrame, *columns: str, buckets: int = 10) -> dict[str, NumberSummary]:
    """Look at columns of numbers, in one pass: for :func:`with_scaled` and :func:`with_buckets`.

    Args:
        df: the rows to look at: those to train on.
        columns: numbers; null and NaN are left out.
        buckets: how many buckets to find splits for; columns with few different values have fewer.

    Raises:
        ConfigError: if ``buckets`` cannot work, or there is no column.
        DataError: naming the column that is missing, no number, empty or infinite.
    """
    owner = "summarise_numbers"
    if not columns:
        raise ConfigError(f"{owner}: columns=(): expected at least one column")
    integer_option(owner, "buckets", buckets, 1)
    _check_numbers(df, owner, *columns)
    shares = [n / buckets for n in range(1, buckets)] or [0.5]
    wanted = []
    for name in columns:
        number = quoted(name).cast("double")
        value = F.when(~F.isnan(number), number)
        spread = F.stddev_pop(value)
        quantiles = F.percentile_approx(value, shares, _ACCURACY)
        wanted.append(F.struct(F.count(value), F.avg(value), spread, F.min(value), F.max(value), quantiles))
    row = df.agg(*(column.alias(str(n)) for n, column in enumerate(wanted))).collect()[0]
    found = {}
    for name, (count, mean, deviation, low, high, quantiles) in zip(columns, row, strict=True):
        if not count:
            raise DataError(f"{owner}: column {name!r} is null in all rows", code="data-empty")
        if not (isfinite(low) and isfinite(high)):
            raise DataError(f"{owner}: column {name!r} has infinite values; filter them", code="data-value")
        if low == high:  # sums of equal values may be off by their last digit
            mean, deviation = low, 0.0
        splits = tuple(sorted(set(quantiles) - {low})) if buckets > 1 else ()
        found[name] = NumberSummary(name, count, mean, deviation, low, high, splits)
    return found


def with_scaled(
    df: DataFrame, output: str, summary: NumberSummary, *, scale: Scale = "standard"
) -> DataFrame:
    """Add a number on a common scale; null and NaN become 0.

    Args:
        df: the rows.
        output: the new column, ``double``.
        summary: of the column, of :func:`summarise_numbers`.
        scale: ``"standard"`` for mean 0 and deviation 1; ``"min_max"`` for 0 to 1, new values outside are
            cut; ``"log"`` for the logarithm of 1 plus the distance from the smallest value, for counts.
            Infinite values fail where rows are read, but for ``"min_max"``.

    Raises:
        ConfigError: if there is no such scale.
        DataError: naming the column that is missing, no number, there already, or too large or too small.
    """
    owner = "with_scaled"
    if scale not in get_args(Scale):
        raise ConfigError(
            f"{owner}: scale={scale!r}: expected one of {', '.join(map(repr, get_args(Scale)))}"
        )
    _check_numbers(df, owner, summary.column)
    check_new(df, owner, output=output)
    value, span = quoted(summary.column).cast("double"), summary.high - summary.low
    width = summary.deviation if scale == "standard" else span
    if not isfinite(width) or (scale == "standard" and span > 0 and width < _LEAST):
        raise DataError(
            f"{owner}: column {summary.column!r} has values from {summary.low} to {summary.high}: doubles "
            f"lose their squares, or their distance, which scale={scale!r} needs; multiply them by a power "
            "of ten first",
            code="data-value",
        )
    if scale == "standard":
        scaled = (value - summary.mean) / (summary.deviation or 1.0)
    else:
        above = F.greatest(value - summary.low, F.lit(0.0))
        scaled = F.log1p(above) if scale == "log" else F.least(above / (span or 1.0), F.lit(1.0))
    if scale != "min_max":  # which cuts values outside
        wrong = F.lit(f"{owner}: column {summary.column!r} has infinite values; filter them")
        scaled = F.when(F.abs(value) == F.lit(inf), F.raise_error(wrong)).otherwise(scaled)
    return df.withColumn(output, F.when(value.isNull() | F.isnan(value), 0.0).otherwise(scaled))


def with_buckets(df: DataFrame, output: str, summary: NumberSummary) -> DataFrame:
    """Add the number of the bucket that a value falls in.

    Args:
        df: the rows.
        output: the new column, ``int``: 0 for null and NaN, then from 1 by size, up to
            ``len(summary.splits) + 1``. A value that is a split begins a bucket.
        summary: of the column, of :func:`summarise_numbers`, or one with splits of your own.

    Raises:
        ConfigError: if splits do not ascend.
        DataError: naming the column that is missing, no number, or there already.
    """
    owner = "with_buckets"
    if list(summary.splits) != sorted(set(summary.splits)):
        raise ConfigError(f"{owner}: splits={summary.splits}: expected ascending numbers")
    _check_numbers(df, owner, summary.column)
    check_new(df, owner, output=output)
    value = quoted(summary.column).cast("double")
    splits = F.array(*(F.lit(float(split)) for split in summary.splits)).cast("array<double>")
    below = F.size(F.filter(splits, lambda split: split <= value))
    return df.withColumn(output, F.when(value.isNull() | F.isnan(value), 0).otherwise(below + 1))


def _check_numbers(df: DataFrame, owner: str, *columns: str) -> None:
    check_columns(df, owner, **{f"columns[{n}]": name for n, name in enumerate(columns)})
    for name in columns:
        found = find_field(df, f"{owner}: column", name).dataType
        if not isinstance(found, T.NumericType):
            raise DataError(
                f"{owner}: column {name!r} has type {found.simpleString()}, expected numbers: cast it",
                code="data-type",
            )
