"""A panel's rows as Spark sends them: one series after the other, in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import quoted
from sparkdl.data.schema import check_collation, check_dataframe, check_no_stream, missing_column
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.series.grid import Series, on_grid
from sparkdl.series.layout import PanelLayout
from sparkdl.wire.frame import Array

HASH, ID, TIME, CLOCK = "__hash", "__id", "__time", "__clock"
_GROUPS = ("past", "known", "static")


def check_columns(df: DataFrame, layout: PanelLayout) -> None:
    """Check the columns of a panel before any rows are read."""
    check_dataframe(df, "panel")
    check_no_stream(df, "panel")
    fields = {field.name: field.dataType for field in df.schema.fields}
    numbers = (layout.target, *layout.past, *layout.known, *layout.static)
    for name in [*([layout.id] if layout.id else []), layout.time, *numbers]:
        if name not in fields:
            raise missing_column(df, name, "panel")
    if layout.id and isinstance(
        fields[layout.id], T.ArrayType | T.MapType | T.StructType | T.UserDefinedType
    ):
        raise DataError(
            f"id column {layout.id!r} is {fields[layout.id].simpleString()}; expected one value, such as a "
            "string or a number",
            code="data-type",
        )
    if layout.id:
        check_collation(fields[layout.id], f"id column {layout.id!r}")
    for name in numbers:
        if not isinstance(fields[name], T.NumericType | T.BooleanType):
            raise DataError(
                f"column {name!r} is {fields[name].simpleString()}; expected numbers. TabularEncoder makes "
                "numbers of categories",
                code="data-type",
            )
    kind = fields[layout.time]
    clock = isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType)
    if not clock and not isinstance(kind, T.IntegralType):
        raise DataError(
            f"time column {layout.time!r} is {kind.simpleString()}; expected dates, timestamps or integers",
            code="data-type",
        )
    if clock != bool(layout.frequency.unit):
        expected = "a unit, such as 'D' or 'h'" if clock else "the distance of the integers, such as '1'"
        raise ConfigError(
            f"frequency={str(layout.frequency)!r} with time column "
            f"{layout.time!r} of type {kind.simpleString()}: expected {expected}"
        )
    if isinstance(kind, T.DateType) and not layout.frequency.whole_days:
        raise ConfigError(
            f"frequency={str(layout.frequency)!r} with time column "
            f"{layout.time!r} of type date: several steps have one date; expected days or longer, such as "
            "'D', or timestamps, such as by .cast('timestamp')"
        )


def on_clock(df: DataFrame, layout: PanelLayout) -> bool:
    """Return whether steps are counted on the clock of the session's time zone."""
    return layout.frequency.on_calendar and isinstance(df.schema[layout.time].dataType, T.TimestampType)


def grouped(df: DataFrame, layout: PanelLayout, partitions: int | None) -> DataFrame:
    """Return a panel's columns by fixed names, each series in one partition, in the order of time."""

    def number(name: str) -> Column:
        return quoted(name).cast("double")

    key = quoted(layout.id) if layout.id else F.lit(0)
    chosen = [
        F.xxhash64(key).alias(HASH),
        key.alias(ID),
        _microseconds(df, layout.time, quoted(layout.time)).alias(TIME),
        number(layout.target).alias("target"),
    ]
    if on_clock(df, layout):
        chosen.append(_clock(quoted(layout.time).cast("timestamp_ntz")).alias(CLOCK))
    for group in _GROUPS:
        names: Sequence[str] = getattr(layout, group)
        chosen += [number(name).alias(f"{group}_{n}") for n, name in enumerate(names)]
    picked = df.select(*chosen)
    spread = picked.repartition(ID) if partitions is None else picked.repartition(partitions, ID)
    return spread.sortWithinPartitions(HASH, ID, TIME)


def _microseconds(df: DataFrame, name: str, column: Column) -> Column:
    kind = df.schema[name].dataType
    if isinstance(kind, T.DateType):
        return F.unix_date(column).cast("long") * F.lit(86_400_000_000)
    if isinstance(kind, T.IntegralType):
        return column.cast("long")
    if isinstance(kind, T.TimestampNTZType):
        return _clock(column)
    return F.unix_micros(column)


def _clock(column: Column) -> Column:
    """Return the microseconds of a timestamp without a time zone, whose days all have 24 hours."""
    days = F.unix_date(column.cast("date")).cast("long")
    minutes = 1440 * days + 60 * F.hour(column) + F.minute(column)
    seconds = 60 * minutes + F.extract(F.lit("SECOND"), column)
    return (seconds * F.lit(1_000_000)).cast("long")


def as_times(df: DataFrame, name: str, column: Column, instant: Column | None = None) -> Column:
    """Return int64 times as the type that a panel's time column has.

    ``instant`` says where they are of the session's clock, see :func:`on_clock`: microseconds in UTC, or null
    where a time has no row.
    """
    kind = df.schema[name].dataType
    if isinstance(kind, T.DateType):
        return F.date_from_unix_date((column / F.lit(86_400_000_000)).cast("int"))
    if isinstance(kind, T.IntegralType):
        return column.cast(kind)
    if isinstance(kind, T.TimestampNTZType) or instant is not None:
        seconds = column.cast("decimal(18,0)") / F.lit(1_000_000)
        clock = F.lit("1970-01-01").cast("timestamp_ntz") + F.make_dt_interval(secs=seconds)
        return clock if instant is None else F.coalesce(F.timestamp_micros(instant), clock.cast(kind))
    return F.timestamp_micros(column).cast(kind)


def series_of(batches: Iterable[pa.RecordBatch], layout: PanelLayout) -> Iterator[tuple[int, Series]]:
    """Iterate over the series of a partition of :func:`grouped`: the hash of each id, and the series."""
    for key, id, rows in _rows_of(batches, layout):
        try:
            if id is None or id != id:
                what = "null" if id is None else "NaN"
                raise DataError(f"column {layout.id!r}: {what}; every row needs a series", code="data-null")
            if rows["empty"].any():
                raise DataError(f"series {id!r}: null in time column {layout.time!r}", code="data-null")
            series = on_grid(id, rows, layout)
        except DataError:
            if not layout.skip:
                raise
            continue
        yield key, series


def _rows_of(
    batches: Iterable[pa.RecordBatch], layout: PanelLayout
) -> Iterator[tuple[int, Any, dict[str, Array]]]:
    """Iterate over hash, id and columns of each series, whose rows may lie in several batches."""
    parts: list[dict[str, Array]] = []
    last: tuple[int, Any] | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        ids, arrays = batch.column(ID), _arrays(batch, layout)
        changes = pc.fill_null(pc.not_equal(ids.slice(1), ids.slice(0, len(ids) - 1)), True)
        ends = [*(np.flatnonzero(changes.to_numpy(zero_copy_only=False)) + 1).tolist(), len(ids)]
        start = 0
        for end in ends:
            found = int(arrays["hash"][start]), ids[start].as_py()
            if last is not None and found != last:
                yield *last, _joined(parts)
                parts = []
            last = found
            parts.append({name: values[start:end] for name, values in arrays.items()})
            start = end
    if last is not None:
        yield *last, _joined(parts)


def _joined(parts: list[dict[str, Array]]) -> dict[str, Array]:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _arrays(batch: pa.RecordBatch, layout: PanelLayout) -> dict[str, Array]:
    def column(name: str) -> Array:
        values: Array = batch.column(name).to_numpy(zero_copy_only=False)
        return values

    found = {"hash": column(HASH), "target": column("target")}
    found["empty"] = batch.column(TIME).is_null().to_numpy(zero_copy_only=False)
    found["time"] = pc.fill_null(batch.column(TIME), 0).to_numpy()
    if CLOCK in batch.schema.names:
        found["instant"] = found["time"]
        found["time"] = pc.fill_null(batch.column(CLOCK), 0).to_numpy()
    for group in _GROUPS:
        names: Sequence[str] = getattr(layout, group)
        columns = [column(f"{group}_{n}") for n in range(len(names))]
        found[group] = np.stack(columns, 1) if columns else np.empty((batch.num_rows, 0))
    return found
