"""Columns of Parquet files, checked against their schema and planned as tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from sparkdl.data.columns import (
    SPARSE,
    Column,
    ColumnLike,
    ColumnPlan,
    Columns,
    TablePlan,
    as_column,
    described,
    plan_columns,
    unread_bytes,
)
from sparkdl.exceptions import DataError

_OF_SPARK = b"org.apache.spark.sql.parquet.row.metadata"
"""Under which Spark keeps its own schema in a file, with the columns' metadata."""

_VECTOR = {"type", "size", "indices", "values"}  # fields of an ML vector as Spark writes it


def plan_schema(
    schema: pa.Schema,
    values: pa.Schema,
    features: Columns,
    label: Columns | None,
    weight: ColumnLike | None,
    ragged: bool,
) -> TablePlan:
    """Check the chosen columns against the schema of the first file, and ``values`` of folders' columns.

    With ``ragged``, arrays without an explicit shape may differ in length. Raises DataError naming the column
    that is missing or whose type cannot become a tensor.
    """
    known = _metadata(schema)
    schema = pa.schema([*schema, *values])

    def plan_one(key: str, chosen: ColumnLike, role: str) -> ColumnPlan:
        column = as_column(chosen)
        return _plan_column(schema, key, column, role, known.get(column.name, {}), ragged)

    return plan_columns(features, label, weight, plan_one)


def _metadata(schema: pa.Schema) -> dict[str, Mapping[str, Any]]:
    """Return the metadata of the columns, as Spark has written them."""
    try:
        fields = json.loads((schema.metadata or {})[_OF_SPARK])["fields"]
        return {field["name"]: field["metadata"] for field in fields}
    except (KeyError, TypeError, ValueError):  # of another writer
        return {}


def _plan_column(
    schema: pa.Schema, key: str, column: Column, role: str, metadata: Mapping[str, Any], ragged: bool
) -> ColumnPlan:
    count = schema.names.count(column.name)
    if count != 1:
        found = "is not in the files; they have" if not count else f"is there {count} times among"
        folders = (
            ". Names of folders, such as day=1, count below the paths that are given" if not count else ""
        )
        raise DataError(
            f"{role} column {column.name!r} {found} {', '.join(sorted(schema.names))}{folders}",
            code="data-column",
        )
    data_type = schema.field(column.name).type
    column, fill = described(column, metadata)
    if column.dtype is not None and column.dtype.startswith(SPARSE):
        raise DataError(
            f"{role} column {column.name!r}: dtype {column.dtype!r} needs a DataFrame; read the "
            "files by Spark, for Dataset.from_dataframe",
            code="data-type",
        )
    binary = pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type)
    if not binary and (why := _why_not(data_type)):
        raise DataError(f"{role} column {column.name!r} has type {data_type}: {why}", code="data-type")
    nested = is_nested(data_type)
    if role == "weight" and (binary or nested or column.shape not in (None, ())):
        raise DataError(
            f"weight column {column.name!r} has type {data_type}; expected one number per row",
            code="data-shape",
        )
    if binary and column.shape is None:
        raise unread_bytes(f"{role} column", column.name)
    plan = ColumnPlan(key, column.name, binary, column.dtype or ("uint8" if binary else None), column.shape)
    if nested and column.shape is None:
        plan = replace(plan, ragged=ragged or fill is not None, fill=fill)
    return plan


def is_nested(data_type: pa.DataType) -> bool:
    """Return whether values are lists."""
    types = pa.types
    return bool(
        types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type)
    )


def as_lists(data_type: pa.DataType) -> pa.DataType:
    """Return a type with lists of any size in place of those of a fixed one."""
    return pa.list_(as_lists(data_type.value_type)) if is_nested(data_type) else data_type


def leaves(schema: pa.Schema) -> dict[str, int]:
    """Return the places of plain columns in the row groups of a file of this schema.

    A path does not tell: that of column ``a.b`` is that of field ``b`` of a struct ``a``, too.
    """
    found, place = dict[str, int](), 0
    for field in schema:
        if not pa.types.is_nested(field.type):
            found[field.name] = place
        place += _count_leaves(field.type)
    return found


def _count_leaves(data_type: pa.DataType) -> int:
    data_type = getattr(data_type, "storage_type", data_type)
    fields = data_type.num_fields if pa.types.is_nested(data_type) else 0
    return sum(_count_leaves(data_type.field(n).type) for n in range(fields)) or 1


def _why_not(data_type: pa.DataType) -> str:
    """Return why values cannot become a tensor; empty if they can."""
    types = pa.types
    while is_nested(data_type):
        data_type = data_type.value_type
    if (
        types.is_integer(data_type)
        or types.is_floating(data_type)
        or types.is_boolean(data_type)
        or types.is_decimal(data_type)
    ):
        return ""
    if types.is_string(data_type) or types.is_large_string(data_type) or types.is_dictionary(data_type):
        return "turn strings into numbers first, for example with pyspark.ml.feature.StringIndexer"
    if types.is_temporal(data_type):
        return "turn dates into numbers first, for example with unix_timestamp()"
    if types.is_struct(data_type) and {field.name for field in data_type} == _VECTOR:
        return (
            "write ML vectors as arrays first, with pyspark.ml.functions.vector_to_array; or read them by "
            "Spark, for Dataset.from_dataframe"
        )
    return "expected numbers, booleans, arrays of them or binary"
