"""Scorers as functions that Spark can call, on classic Spark and on Spark Connect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import quoted
from sparkdl.ml.stages.arrow_vectors import VECTOR


class Task(Protocol):
    """What runs in the tasks: from batches of columns to batches of one column."""

    @property
    def arity(self) -> int:
        """Number of columns."""

    @property
    def names(self) -> tuple[str, ...]:
        """Fields of the struct that is returned; none where it is a single value."""

    def __call__(self, batches: Iterator[pa.Array | tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """Return a result for each batch."""


def has_arrow_udf() -> bool:
    """Whether this Spark has UDFs on Arrow arrays, from 4.1 on; before, pandas is in between."""
    return hasattr(F, "arrow_udf")


def make_udf(scorer: Task, returns: Any) -> Any:
    """Return a scorer, or another task, as a UDF.

    It is an iterator UDF: other columns stay in the JVM, Spark knows what goes in and out, and works in SQL,
    streams and Connect alike; ``mapInArrow`` would be little faster, and would send every column to and fro.
    """
    arrow = has_arrow_udf()

    def predict(batches: Any) -> Any:
        return scorer(batches) if arrow else through_pandas(scorer, batches)

    # Hints are how Spark tells the kinds of UDFs.
    column: Any = pa.Array if arrow else pd.Series
    found: Any = pd.DataFrame if scorer.names and not arrow else column
    given: Any = column if scorer.arity == 1 else tuple[column, ...]
    predict.__annotations__ = {"batches": Iterator[given], "return": Iterator[found]}
    make = getattr(F, "arrow_udf" if arrow else "pandas_udf")
    return make(predict, returns)


def through_pandas(scorer: Task, batches: Iterator[Any]) -> Iterator[Any]:
    """Score pandas series, for which null and NaN are the same."""

    def columns() -> Iterator[tuple[pa.Array, ...]]:
        for batch in batches:
            several = batch if isinstance(batch, tuple) else (batch,)
            yield tuple(_from_pandas(series) for series in several)

    for result in scorer(columns()):
        if not scorer.names:
            yield to_pandas(result)
        else:
            # flatten() gives the fields of null structs as null, field() would not.
            fields = zip(scorer.names, result.flatten(), strict=True)
            yield pd.DataFrame({name: to_pandas(column) for name, column in fields})


def to_pandas(found: pa.Array | pa.Table) -> Any:
    """Return results as pandas, which would make doubles of integers beside null."""
    nullable = {pa.int64(): pd.Int64Dtype()}
    return found.to_pandas(types_mapper=nullable.get) if _has_null_integers(found) else found.to_pandas()


def _has_null_integers(found: pa.Array | pa.Table) -> bool:
    columns = found.columns if isinstance(found, pa.Table) else [found]
    return any(pa.types.is_int64(column.type) and column.null_count for column in columns)


def _from_pandas(column: Any) -> pa.Array:
    """Return a column that Spark gave as pandas; ML vectors are data frames of their fields."""
    if not isinstance(column, pd.DataFrame):
        return pa.array(column, from_pandas=False)
    fields = [pa.array(column[field.name], field.type, from_pandas=True) for field in VECTOR]
    return pa.StructArray.from_arrays(fields, fields=list(VECTOR), mask=pa.array(column["type"].isna()))


def has_udt(data_type: Any) -> bool:
    """Whether a type is or holds a user-defined one, such as that of ML vectors."""
    if isinstance(data_type, T.StructType):
        return any(has_udt(field.dataType) for field in data_type.fields)
    if isinstance(data_type, T.ArrayType):
        return has_udt(data_type.elementType)
    if isinstance(data_type, T.MapType):
        return has_udt(data_type.keyType) or has_udt(data_type.valueType)
    return isinstance(data_type, T.UserDefinedType)


def readable(df: DataFrame, column: str) -> DataFrame:
    """Return a DataFrame as Arrow UDFs can read it."""
    return by_rows(df, column) if has_arrow_udf() and has_udt(df.schema) else df


def by_rows(df: DataFrame, column: str) -> DataFrame:
    """Make Spark hand over rows.

    From 4.3 on it gives Arrow UDFs the columns of a scan as they are, but fails where it meets ML vectors. A
    filter works on rows. This one lets all of them pass, which Spark cannot know: the hash of a boolean is
    never 0. It keeps no other filter from moving below it.
    """
    return df.where(F.hash(quoted(column).isNull()) != 0)
