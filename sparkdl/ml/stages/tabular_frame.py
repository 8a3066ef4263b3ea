"""Applying a table's encoding to DataFrames."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SqlColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import Column, ColumnPlan, Columns, quoted, structure_of, tensor_metadata
from sparkdl.exceptions import DataError
from sparkdl.ml.stages.outputs import lists
from sparkdl.ml.stages.tabular_fit import kinds_of, plain
from sparkdl.ml.stages.udf import has_arrow_udf, make_udf, readable
from sparkdl.table.encoding import TableEncoding
from sparkdl.table.values import Kind
from sparkdl.table.zones import UTC

_MOST_ARGUMENTS = 64
"""Columns that a function gets one by one, beyond which it gets one struct: Spark compares each argument of a
Python function with all others, which takes minutes for 3,000."""

_FITS: Mapping[Kind, tuple[Kind, ...]] = {
    "number": ("number", "boolean"),
    "boolean": ("boolean", "number"),
    "date": ("date", "timestamp"),
    "timestamp": ("timestamp", "date"),
    "string": ("string",),
}


def columns_of(encoding: TableEncoding) -> dict[str, Column]:
    """Return the columns that a module gets of an encoded table, by the names of its arguments."""
    return {name: Column(name, (width,), dtype) for name, (width, dtype) in encoding.outputs.items()}


def inputs_of(encoding: TableEncoding, named: bool) -> Columns:
    """Return these columns for a module that gets them by name, or else by position."""
    columns = columns_of(encoding)
    return columns if named else list(columns.values())


def plans_of(encoding: TableEncoding, named: bool) -> tuple[ColumnPlan, ...]:
    """Return how these columns become a module's inputs."""
    inputs = inputs_of(encoding, named)
    chosen = structure_of(inputs, "features").disassemble(inputs)
    return tuple(ColumnPlan(key, c.name, False, c.dtype, c.shape) for key, c in chosen.items())


def arguments(df: DataFrame, encoding: TableEncoding) -> list[SqlColumn]:
    """Return the columns that an encoding reads, as it wants them."""
    values = []
    for name, found in kinds_of(df, encoding.columns).items():
        fitted = encoding.kinds[name]
        if found not in _FITS[fitted]:
            kind = df.schema[name].dataType.simpleString()
            raise DataError(
                f"features column {name!r} has type {kind}: the encoding was fitted on a {fitted} column; "
                "cast it to that type",
                code="data-type",
            )
        clock = found == "date" or isinstance(df.schema[name].dataType, T.TimestampNTZType)
        values.append(_in_unit(plain(df, name, found), found, fitted, encoding.zone_of(name), clock))
    return values


def _in_unit(column: SqlColumn, found: Kind, wanted: Kind, zone: str, clock: bool) -> SqlColumn:
    """Turn days into seconds, or back, and what a zone's clock shows into instants, or back."""
    if (found, wanted) == ("date", "timestamp"):
        column = column * 86400.0
    if wanted == "timestamp" and clock and zone != UTC:
        return F.to_utc_timestamp(F.timestamp_micros(F.round(column * 1e6).cast("long")), zone).cast("double")
    if (found, wanted) != ("timestamp", "date"):
        return column
    if not clock and zone != UTC:
        column = F.from_utc_timestamp(F.timestamp_seconds(F.floor(column)), zone).cast("double")
    return F.floor(column / 86400.0).cast("double")


def encoded(
    df: DataFrame, encoding: TableEncoding, outputs: Mapping[str, str], keep: Sequence[str] | None = None
) -> DataFrame:
    """Add the arrays of an encoding to a DataFrame; nothing is computed until its rows are asked for.

    ``outputs`` is the name of the new column by name of an array, others are left out; ``keep`` is all
    columns by default. DataError is raised for a column that is missing or of another type than in the fit.
    """
    chosen = {name: outputs[name] for name in encoding.outputs if outputs.get(name)}
    values = arguments(df, encoding)
    kept = [F.col("*")] if keep is None else [quoted(name) for name in keep]
    if not chosen:
        return df.select(*kept)
    kinds: dict[str, Any] = {"int32": T.IntegerType(), "float32": T.FloatType()}
    fields = [T.StructField(name, T.ArrayType(kinds[encoding.outputs[name][1]])) for name in chosen]
    if len(values) > _MOST_ARGUMENTS and has_arrow_udf():
        values = [F.struct(*values)]
    task = _Task(encoding, tuple(chosen), len(values))
    result = f"sparkdl_{uuid.uuid4().hex}"
    df = readable(df, encoding.columns[0])
    df = df.select(*kept, make_udf(task, T.StructType(fields))(*values).alias(result))
    added = []
    for name, column in chosen.items():
        width, dtype = encoding.outputs[name]
        added.append(F.col(result).getField(name).alias(column, metadata=tensor_metadata((width,), dtype)))
    return df.select("*", *added).drop(result)


@dataclass(frozen=True)
class _Task:
    """Encodes the rows of a task."""

    encoding: TableEncoding
    names: tuple[str, ...]  # of the arrays that are asked for
    arity: int  # how many arguments there are: the columns, or one struct of them

    def __call__(self, batches: Iterator[pa.Array | tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """Encode batches."""
        for batch in batches:
            columns = batch if isinstance(batch, tuple) else (batch,)
            if len(columns) < len(self.encoding.columns):
                columns = tuple(columns[0].flatten())
            found = self.encoding.encode(dict(zip(self.encoding.columns, columns, strict=True)))
            yield pa.StructArray.from_arrays([lists(found[name]) for name in self.names], self.names)
