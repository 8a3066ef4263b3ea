"""The columns of a DataFrame, of Spark or pandas, checked and planned as tensors."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column as SqlColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import DataType

from sparkdl.data.columns import (
    METADATA,
    PARTS,
    Column,
    ColumnLike,
    ColumnPlan,
    Columns,
    TablePlan,
    as_column,
    described,
    plan_columns,
    quoted,
    unread_bytes,
)
from sparkdl.data.convert import RowName, from_arrow, from_rows
from sparkdl.data.sparse import are_vectors, check_dense, of_rows, planned, spread
from sparkdl.exceptions import DataError
from sparkdl.wire.frame import Array

_Vectors = dict[str, dict[str, list[Array]]]
"""Indices and values of the rows of sparse columns, by column and part."""

STRINGS = T.StringType | T.CharType | T.VarcharType
"""The SQL types of strings; Spark 4.1 and later can keep the last two."""

_BINARY = "UTF8_BINARY"

_OWN = "__sparkdl_"  # names of columns that sparkdl adds itself begin so


def is_pandas(df: object) -> bool:
    """Return whether this is a DataFrame of pandas, which need not be installed."""
    kind = type(df)
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def is_frame(value: object) -> bool:
    """Return whether this is a DataFrame of Spark or pandas."""
    return is_pandas(value) or (
        type(value).__module__.startswith("pyspark.sql.") and type(value).__name__ == "DataFrame"
    )


def vector_columns(df: Any) -> list[str]:
    """Return the columns of a DataFrame that hold ML vectors, and whose metadata give no shape."""
    if is_pandas(df):
        return [name for name in df.columns if len(df) and are_vectors([df[name].iloc[0]])]
    fields = [field for field in df.schema.fields if _is_vector(field.dataType)]
    return [field.name for field in fields if METADATA not in field.metadata]


def _is_vector(data_type: DataType) -> bool:
    """Return whether values are ML vectors. Where their module is not loaded, none are: it takes 0.7 s."""
    linalg: Any = sys.modules.get("pyspark.ml.linalg")
    return linalg is not None and isinstance(data_type, linalg.VectorUDT)


def check_dataframe(df: object, what: str) -> None:
    """Check that this is a DataFrame of Spark, classic or Connect."""
    if type(df).__module__.startswith("pyspark.sql."):
        return
    remedy = (
        "its to_spark() gives one"
        if type(df).__module__.startswith("pyspark.pandas.")
        else "spark.createDataFrame makes one of pandas and Arrow tables, Dataset.from_numpy takes arrays"
    )
    raise DataError(
        f"{what}: found a {type(df).__module__}.{type(df).__qualname__}, expected a Spark DataFrame; "
        f"{remedy}",
        code="data-source",
    )


def check_no_stream(df: Any, what: str) -> None:
    """Check that a DataFrame has an end."""
    if df.isStreaming:
        raise DataError(
            f"{what}: the DataFrame is a stream, and an epoch needs rows that end. Write the stream to a "
            "table and train on that, or train on each batch in writeStream.foreachBatch",
            code="data-source",
        )


def plan_dataframe(
    df: DataFrame,
    features: Columns,
    label: Columns | None,
    weight: ColumnLike | None,
    ragged: bool = False,
) -> tuple[TablePlan, list[SqlColumn]]:
    """Check the chosen columns against a DataFrame's schema; return the plan, and SQL for each column.

    With ``ragged``, arrays without an explicit shape may differ in length. DataError names a bad column.
    """
    expressions: dict[str, SqlColumn] = {}

    def plan_one(key: str, chosen: ColumnLike, role: str) -> ColumnPlan:
        plan, expressions[key] = _plan_column(df, key, _column(chosen, role), role, ragged)
        return plan

    plan = plan_columns(spread(features), label, weight, plan_one)
    return plan, [expressions[column.key].alias(column.key) for column in plan.columns]


def _column(chosen: ColumnLike, role: str) -> Column:
    """Return a chosen column, which only a feature may want sparse."""
    column = as_column(chosen)
    if role != "features":
        check_dense(column, role)
    return column


def _plan_column(
    df: DataFrame, key: str, column: Column, role: str, ragged: bool
) -> tuple[ColumnPlan, SqlColumn]:
    if column.name not in df.schema.names:
        raise missing_column(df, column.name, role)
    check_unambiguous(df, column.name, role)
    expression = quoted(column.name)
    field = df.schema[column.name]
    column, fill = described(column, field.metadata)
    kind = _kind(field.dataType)
    if role == "weight":
        _check_weight(column, field.dataType)
    if column.dtype in PARTS:
        if kind != "vector":
            raise DataError(
                f"{role} column {column.name!r} has type {field.dataType.simpleString()}: only ML vectors "
                "can be sparse, such as HashingTF, FeatureHasher and VectorAssembler make",
                code="data-type",
            )
        part = column.dtype.rpartition(".")[2]
        return planned(ColumnPlan(key, column.name, dtype=column.dtype)), _part(expression, part)
    if kind == "vector":
        from pyspark.ml.functions import vector_to_array

        # The function itself fails on null, with a Java error that names neither column nor row.
        # As doubles, which they are: as floats, numbers that do not fit would be infinite already.
        expression = F.when(expression.isNotNull(), vector_to_array(expression))
    elif kind == "binary":
        if column.shape is None:
            raise unread_bytes(f"{role} column", column.name)
    elif kind != "numeric":
        raise DataError(
            f"{role} column {column.name!r} has type {field.dataType.simpleString()}: {kind}",
            code="data-type",
        )
    dtype = column.dtype or ("uint8" if kind == "binary" else None)
    plan = ColumnPlan(key, column.name, kind == "binary", dtype, column.shape)
    if column.shape is None and isinstance(field.dataType, T.ArrayType):
        plan = replace(plan, ragged=ragged or fill is not None, fill=fill)
    return plan, expression


def missing_column(df: DataFrame, name: str, role: str) -> DataError:
    """Return the error for a column that is not there; of a struct's field it says how to get one."""
    types = {field.name: field.dataType for field in df.schema.fields if not field.name.startswith(_OWN)}
    struct = types.get(name.partition(".")[0])
    remedy = ""
    if "." in name and isinstance(struct, T.StructType):
        made = name.replace(".", "_")
        remedy = f". Make a column of the struct's field first: df.withColumn({made!r}, F.col({name!r}))"
    return DataError(
        f"{role} column {name!r} is not in the DataFrame; it has {', '.join(sorted(types))}{remedy}",
        code="data-column",
    )


def _part(vector: SqlColumn, part: str) -> SqlColumn:
    """Return the indices or the values of ML vectors, sparse or dense ones, as arrays."""
    plain = F.unwrap_udt(vector)
    values = plain.getField("values")
    if part == "values":
        return values
    places = F.transform(values, lambda _, place: place.cast("int"))
    return F.when(plain.getField("type") == 0, plain.getField("indices")).otherwise(places)


def check_collation(data_type: DataType, what: str) -> None:
    """Check that strings are equal only where their bytes are, as Python has it, and not by a collation."""
    collation = getattr(data_type, "collation", _BINARY)
    if collation != _BINARY:
        raise DataError(
            f"{what} has type {data_type.simpleString()}, of which Spark takes some strings that differ for "
            f"one, and sparkdl does not: cast it to STRING COLLATE {_BINARY}",
            code="data-type",
        )


def same_names(df: DataFrame, name: str) -> list[str]:
    """Return the names of a DataFrame's columns that Spark takes for ``name``."""
    found = [other for other in df.columns if other.lower() == name.lower()]
    if len(set(found) | {name}) > 1:
        case_sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false"))
        if case_sensitive.lower() == "true":
            return [other for other in found if other == name]
    return found


def check_unambiguous(df: DataFrame, name: str, role: str) -> None:
    """Check that Spark finds no more than one column of a name."""
    found = same_names(df, name)
    if len(found) > 1:
        raise DataError(
            f"{role} column {name!r} is ambiguous: the DataFrame has {' and '.join(map(repr, found))}, which "
            "Spark does not tell apart; drop or rename the others, for example with df.toDF(*names)",
            code="data-column",
        )


def _check_weight(column: Column, data_type: DataType) -> None:
    """Check that a weight is one number per row: an array of one would meet the losses in another shape."""
    found = ""
    if isinstance(data_type, T.ArrayType | T.BinaryType | T.UserDefinedType):
        found = f"type {data_type.simpleString()}"
    elif column.shape not in (None, ()):
        found = f"shape {column.shape}"
    if found:
        raise DataError(
            f"weight column {column.name!r} has {found}; expected one number per row. Of arrays with one "
            f"element take F.col({column.name!r})[0]",
            code="data-shape",
        )


def _kind(data_type: DataType) -> str:
    """Classify a SQL type as numeric, vector or binary, or say why it cannot become a tensor."""
    if _is_vector(data_type):
        return "vector"
    if isinstance(data_type, T.BinaryType):
        return "binary"
    while isinstance(data_type, T.ArrayType):
        data_type = data_type.elementType
    if isinstance(data_type, T.NumericType | T.BooleanType):
        return "numeric"
    if isinstance(data_type, STRINGS):
        return "turn strings into numbers first, for example with pyspark.ml.feature.StringIndexer"
    if isinstance(data_type, T.DateType | T.TimestampType | T.TimestampNTZType):
        return "turn dates into numbers first, for example with unix_timestamp()"
    return "expected numbers, booleans, arrays of them, ML vectors or binary"


def plan_pandas(
    df: Any,
    features: Columns,
    label: Columns | None,
    weight: ColumnLike | None,
    ragged: bool = False,
) -> tuple[TablePlan, dict[str, Array]]:
    """Plan columns of a pandas DataFrame like those of Spark, and convert them.

    With ``ragged``, arrays without an explicit shape may differ in length. DataError names column and row.
    """

    def plan_one(key: str, chosen: ColumnLike, role: str) -> ColumnPlan:
        column = _column(chosen, role)
        _check_name(df, column.name, role)
        free = ragged and column.shape is None and len(df) and np.ndim(df[column.name].iloc[0])
        plan = ColumnPlan(key, column.name, dtype=column.dtype, shape=column.shape, ragged=bool(free))
        return planned(plan)

    plan = plan_columns(spread(features), label, weight, plan_one, arrays=True)
    vectors: _Vectors = {}
    return plan, {column.key: _convert(column, df[column.source], vectors) for column in plan.columns}


def _check_name(df: Any, name: str, role: str) -> None:
    count = list(df.columns).count(name)
    if count != 1:
        found = "is not in the DataFrame; it has" if not count else f"is there {count} times among"
        raise DataError(
            f"{role} column {name!r} {found} {', '.join(map(str, df.columns))}", code="data-column"
        )


def _convert(plan: ColumnPlan, series: Any, vectors: _Vectors) -> Array:
    """Return a column as an array; of a sparse one both parts are read at once, and kept for the other."""
    name: RowName = lambda index: f"row {index}"  # noqa: E731
    if isinstance(series.dtype, np.dtype) and series.dtype.kind != "O":
        values: Array = series.to_numpy()  # NaN is a value here, as in Spark
        return from_rows(plan, values, name)
    null = np.flatnonzero(series.isna().to_numpy())
    if len(null):
        raise DataError(
            f"column {plan.source!r}, {name(int(null[0]))}: null; drop or fill nulls first, for example with "
            "df.dropna() or df.fillna()",
            code="data-null",
        )
    listed = series.tolist()
    if plan.part:
        if plan.source not in vectors:
            found = of_rows(listed, f"column {plan.source!r}")
            vectors[plan.source] = dict(zip(PARTS, found, strict=True))
        return from_rows(plan, vectors[plan.source][plan.part], name)
    if listed and isinstance(listed[0], bytes | bytearray | memoryview):
        if plan.shape is None:
            raise unread_bytes("column", plan.source)
        binary = replace(plan, binary=True, dtype=plan.dtype or "uint8")
        return from_arrow(binary, pa.array(listed, pa.large_binary()), name)
    if plan.shape:  # flat arrays are reshaped
        return from_rows(plan, from_rows(replace(plan, shape=None), listed, name), name)
    return from_rows(plan, listed, name)
