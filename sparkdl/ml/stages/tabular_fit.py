"""Fitting a table's encoding: at most four aggregations of Spark SQL for each 1,000 columns.

The first finds count, mean and deviation of all numbers, the second their quantiles, the third looks closer
where most rows have one of few values, and the fourth counts the values of all strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import quoted
from sparkdl.data.schema import STRINGS, check_collation, check_unambiguous, missing_column
from sparkdl.exceptions import DataError
from sparkdl.table.calendar import VALUES, Part
from sparkdl.table.encoding import Category, Number, TableEncoding
from sparkdl.table.values import Kind
from sparkdl.table.zones import UTC, zone_named

PIECES = 32
"""Stretches of about as many rows between the knots of a number."""

FEW = 48
"""A number with up to so many different values has each of them as a knot."""

RAREST = 10
"""A value that as many rows have is never rare, whatever the size of the table."""

_AT_ONCE = 1000
"""Columns of one aggregation: a task of Spark reads 4,096 rows of a Parquet file at once, in all columns."""

_PARTS: Mapping[Kind, tuple[Part, ...]] = {
    "date": ("weekday", "month"),
    "timestamp": ("weekday", "month", "hour"),
}
_SHARES = [n / PIECES for n in range(PIECES + 1)]
_ACCURACY = 10_000
_LEAST = 1e-150  # deviation whose square a double holds with all digits


def kinds_of(df: DataFrame, names: Sequence[str]) -> dict[str, Kind]:
    """Return the kind of values of each column."""
    types = {field.name: field.dataType for field in df.schema.fields}
    found: dict[str, Kind] = {}
    for name in names:
        if name not in types:
            raise missing_column(df, name, "features")
        check_unambiguous(df, name, "features")
        kind = kind_of(types[name])
        if kind is None:
            raise DataError(
                f"features column {name!r} has type {types[name].simpleString()}, which the encoding of a "
                "table does not know: it takes numbers, strings, booleans, dates and timestamps. "
                "Select parts of it into columns of their own, or train a module on it with encode='off'",
                code="data-type",
            )
        check_collation(types[name], f"features column {name!r}")
        found[name] = kind
    return found


def kind_of(data_type: T.DataType) -> Kind | None:
    """Return the kind of values of a SQL type; ``None`` if it is not one value of a table."""
    if isinstance(data_type, STRINGS):
        return "string"
    if isinstance(data_type, T.BooleanType):
        return "boolean"
    if isinstance(data_type, T.NumericType):
        return "number"
    if isinstance(data_type, T.DateType):
        return "date"
    return "timestamp" if isinstance(data_type, T.TimestampType | T.TimestampNTZType) else None


def plain(df: DataFrame, name: str, kind: Kind) -> Column:
    """Return a column as a string, or as a double: days of dates, seconds of timestamps; null for NaN."""
    column = quoted(name)
    if kind == "string":
        return column.cast("string")
    if kind == "date":
        return F.datediff(column, F.lit("1970-01-01").cast("date")).cast("double")
    if kind == "timestamp":
        if isinstance(df.schema[name].dataType, T.TimestampNTZType):
            days = F.datediff(column.cast("date"), F.lit("1970-01-01").cast("date"))
            seconds = F.extract(F.lit("SECOND"), column).cast("double")  # with their fractions
            return days * 86400.0 + F.hour(column) * 3600.0 + F.minute(column) * 60.0 + seconds
        return column.cast("double")
    number = column.cast("double")
    return F.when(~F.isnan(number), number)


def fit_encoding(
    df: DataFrame,
    names: Sequence[str],
    *,
    max_categories: int,
    min_frequency: int | None,
    required: Sequence[str] = (),
) -> TableEncoding:
    """Find out what becomes of a table's columns.

    Of a string column at most ``max_categories`` values have a number of their own, each in ``min_frequency``
    rows, by default one in 1,000, from 1 to 10. ``required`` are other columns, which must not have nulls.
    """
    kinds = kinds_of(df, names)
    numeric = {name: plain(df, name, kind) for name, kind in kinds.items() if kind != "string"}
    rows, summaries = _summarise(df, numeric, required)
    if not rows:
        raise DataError(
            "the DataFrame has no rows: there is nothing to fit an encoding to", code="data-empty"
        )
    knots = _knots(df, numeric, {name: summaries[name] for name in numeric if kinds[name] != "boolean"})
    texts = {name: plain(df, name, kind) for name, kind in kinds.items() if kind == "string"}
    least = min(RAREST, max(1, rows // 1000)) if min_frequency is None else min_frequency
    counted = _count(df, texts, max_categories, least)
    numbers: list[Number] = []
    categories: list[Category] = []
    left_out: dict[str, str] = {}
    for name, kind in kinds.items():
        why = counted[name].useless(rows, least) if kind == "string" else summaries[name].useless(rows)
        if why:
            left_out[name] = why
        elif kind == "string":
            categories.append(Category(name, kind, counted[name].values))
        else:
            numbers.append(summaries[name].number(name, kind, rows, knots.get(name, ())))
            categories += [Category(name, kind, VALUES[part], part) for part in _PARTS.get(kind, ())]
    if not numbers and not categories:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise DataError(f"no features column tells rows apart ({reasons})", code="data-value")
    return TableEncoding(tuple(numbers), tuple(categories), left_out, rows, *_clocks(df, kinds))


def _clocks(df: DataFrame, kinds: Mapping[str, Kind]) -> tuple[str, tuple[str, ...]]:
    """Return the session's zone, where columns of times depend on it, and those that have none."""
    times = [name for name, kind in kinds.items() if kind in ("date", "timestamp")]
    zone = zone_named(str(df.sparkSession.conf.get("spark.sql.session.timeZone"))) if times else UTC
    without = [name for name in times if isinstance(df.schema[name].dataType, T.TimestampNTZType)]
    return zone, tuple(without)  # also in UTC: a function in SQL follows its own session's clock


def count_rows(df: DataFrame, names: Sequence[str], required: Sequence[str] = ()) -> int:
    """Count the rows of a fit by an encoding that is there."""
    kinds = kinds_of(df, names)
    numeric = {name: plain(df, name, kind) for name, kind in kinds.items() if kind != "string"}
    rows, ends = _aggregated(df, numeric, [F.min("v"), F.max("v")], required)
    for name, (low, high) in ends.items():
        if low is not None:
            _check_finite(name, low, high)
    if not rows:
        raise DataError("the DataFrame has no rows: there is nothing to train on", code="data-empty")
    return rows


def _aggregated(
    df: DataFrame, columns: Mapping[str, Column], wanted: Sequence[Column], required: Sequence[str] = ()
) -> tuple[int, dict[str, Sequence[Any]]]:
    """Return the number of rows, and aggregates of each column's values ``v``; also look for nulls.

    The columns become rows, one for each value. So the plan has as many aggregates for 3,000 columns as for
    one: Spark's driver has no memory for a plan of thousands.
    """
    names = list(columns)
    if len(names) > _AT_ONCE:
        rows, first = _aggregated(df, {name: columns[name] for name in names[:_AT_ONCE]}, wanted, required)
        _, others = _aggregated(df, {name: columns[name] for name in names[_AT_ONCE:]}, wanted)
        return rows, first | others
    nulls = [F.when(quoted(name).isNull(), 0.0) for name in required]
    values = [*nulls, *columns.values()] or [F.lit(0.0)]
    grouped = df.select(F.posexplode(F.array(*values)).alias("n", "v")).groupBy("n")
    found: dict[int, Any] = {
        row[0]: row[1:] for row in grouped.agg(F.count(F.lit(1)), F.count("v"), *wanted).collect()
    }
    if not found:
        return 0, {}
    _check_required(required, [found[n][1] for n in range(len(required))])
    return int(found[0][0]), {name: found[n][2:] for n, name in enumerate(columns, len(required))}


def _check_required(names: Sequence[str], nulls: Sequence[int]) -> None:
    for name, count in zip(names, nulls, strict=True):
        if count:
            raise DataError(
                f"column {name!r}: null in {count} row{'s' if count > 1 else ''}; drop or fill nulls first, "
                "for example with df.dropna() or df.fillna(), or set handleInvalid='skip'",
                code="data-null",
            )


# -- numbers ---------------------------------------------------------------------------------------


def _check_finite(name: str, low: float, high: float, deviation: float = 0.0) -> None:
    if not (isfinite(low) and isfinite(high) and isfinite(deviation)):
        raise DataError(
            f"features column {name!r} holds infinite values, or too large ones (from {low} to {high}): "
            "filter such rows, or make null of such values",
            code="data-value",
        )


@dataclass(frozen=True, slots=True)
class _Summary:
    """What a column of numbers holds."""

    count: int
    mean: float
    deviation: float
    low: float
    high: float
    distinct: int

    def useless(self, rows: int) -> str:
        """Return why the column tells no rows apart; empty if it does."""
        if not self.count:
            return "all rows are null"
        return "all rows have one value" if self.low == self.high and self.count == rows else ""

    def number(self, name: str, kind: Kind, rows: int, knots: Sequence[float]) -> Number:
        deviation = self.deviation if self.deviation > 0 else 1.0
        scaled = sorted({round((knot - self.mean) / deviation, 7) for knot in knots})
        bends = tuple(scaled) if len(scaled) > 2 else ()
        return Number(name, kind, self.mean, deviation, self.count < rows, bends)


def _summarise(
    df: DataFrame, columns: Mapping[str, Column], required: Sequence[str]
) -> tuple[int, dict[str, _Summary]]:
    """Return the number of rows, and the summary of each column."""
    v = F.col("v")
    wanted = [F.count(v), F.avg(v), F.stddev_pop(v), F.min(v), F.max(v), F.approx_count_distinct(v)]
    rows, values = _aggregated(df, columns, wanted, required)
    found: dict[str, _Summary] = {}
    for name, (count, mean, deviation, low, high, distinct) in values.items():
        if count:
            _check_finite(name, low, high, deviation)
            if low < high and deviation < _LEAST:
                raise DataError(
                    f"features column {name!r}: its values, from {low} to {high}, are so close to 0 that "
                    "their squares are lost: scale them first, such as by a logarithm",
                    code="data-value",
                )
        # A sum of equal values may be off by its last digit, and so would a deviation from its mean.
        deviation = 0.0 if low == high else deviation or 0.0
        found[name] = _Summary(count, mean or 0.0, deviation, low, high, distinct)
    return rows, found


def _knots(
    df: DataFrame, columns: Mapping[str, Column], summaries: Mapping[str, _Summary]
) -> dict[str, list[float]]:
    """Return the knots of each column: all its values if they are few, else quantiles.

    Where most rows have one value, such as 0, nearly all quantiles would be that one. So the
    frequent values are knots, and the quantiles those of the other rows.
    """
    few = {name: columns[name] for name, summary in summaries.items() if summary.distinct <= FEW}
    many = {name: columns[name] for name in summaries if name not in few}
    known = _values_and_quantiles(df, few, many)
    # Several quantiles fall on a frequent value.
    frequent = {name: [a for a, b in pairwise(known[name]) if a == b] for name in many}
    skewed = {
        name: F.when(~columns[name].isin(*often), columns[name]) for name, often in frequent.items() if often
    }
    others = _values_and_quantiles(df, {}, skewed)
    return known | {name: [*frequent[name], *quantiles] for name, quantiles in others.items()}


def _values_and_quantiles(
    df: DataFrame, few: Mapping[str, Column], many: Mapping[str, Column]
) -> dict[str, list[float]]:
    """Return all values of some columns, and the quantiles of others."""
    n, v = F.col("n"), F.col("v")
    columns, known = {**few, **many}, dict[str, list[float]]()
    for begin in range(0, len(columns), _AT_ONCE):  # each aggregation numbers its columns from 0
        some = {name: columns[name] for name in list(columns)[begin : begin + _AT_ONCE]}
        first = max(0, len(few) - begin)
        wanted = [
            F.collect_set(F.when(n < first, v)),
            F.percentile_approx(F.when(n >= first, v), _SHARES, _ACCURACY),
        ]
        _, found = _aggregated(df, some, wanted)
        known |= {name: [*values, *(quantiles or ())] for name, (values, quantiles) in found.items()}
    return known


# -- categories ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Counted:
    """The frequent values of a column of strings, most frequent first."""

    values: tuple[str, ...]
    rows: int
    distinct: int

    def useless(self, rows: int, least: int) -> str:
        """Return why the column tells no rows apart; empty if it does."""
        if not self.distinct:
            return "all rows are null"
        if not self.values and self.rows == rows:
            return f"none of its {self.distinct} values is in {least} rows"
        if self.distinct == 1 and self.rows == rows:
            return "all rows have one value"
        return ""


def _count(df: DataFrame, columns: Mapping[str, Column], most: int, least: int) -> dict[str, _Counted]:
    """Count the values of columns of strings, equal counts in the order of the alphabet, in one job."""
    if not columns:
        return {}
    pairs = [F.struct(F.lit(n).alias("n"), value.alias("v")) for n, value in enumerate(columns.values())]
    counts = (
        df.select(F.explode(F.array(*pairs)).alias("p"))
        .select("p.n", "p.v")
        .where(F.col("v").isNotNull())
        .groupBy("n", "v")
        .agg(F.count(F.lit(1)).alias("rows"))
    )
    by_count = Window.partitionBy("n").orderBy(F.col("rows").desc(), "v")
    whole = Window.partitionBy("n")
    ranked = counts.select(
        "n",
        "v",
        "rows",
        F.row_number().over(by_count).alias("rank"),
        F.sum("rows").over(whole).alias("all_rows"),
        F.count(F.lit(1)).over(whole).alias("distinct"),
    )
    kept = ranked.where((F.col("rank") == 1) | ((F.col("rank") <= most) & (F.col("rows") >= least)))
    found: dict[int, list[Any]] = {n: [] for n in range(len(columns))}
    for row in kept.collect():
        found[row["n"]].append(row)
    result: dict[str, _Counted] = {}
    for n, name in enumerate(columns):
        ranks = sorted(found[n], key=lambda row: row["rank"])
        values = tuple(row["v"] for row in ranks if row["rows"] >= least)
        totals = (int(ranks[0]["all_rows"]), int(ranks[0]["distinct"])) if ranks else (0, 0)
        result[name] = _Counted(values, *totals)
    return result
