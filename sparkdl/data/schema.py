"""The columns of a DataFrame, checked against its schema and planned as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdl.data.columns import (
    METADATA,
    PARTS,
    Column,
    ColumnLike,
    ColumnPlan,
    Columns,
    TablePlan,
    described,
    make_plan,
    quoted,
    structure_of,
)
from sparkdl.data.sparse import check_dense, planned, spread
from sparkdl.exceptions import ConfigError, DataError

if TYPE_CHECKING:
    from pyspark.sql import Column as SqlColumn
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField


_OWN = "__sparkdl_"
"""Names of columns that sparkdl adds itself begin so."""


def plan_dataframe(
    df: DataFrame, features: Columns, label: Columns | None, weight: ColumnLike | None
) -> tuple[TablePlan, list[SqlColumn]]:
    """Check the chosen columns against a DataFrame's schema.

    Returns:
        The plan, and one SQL expression per planned column, named by its key.

    Raises:
        DataError: naming the column that is missing or whose type cannot become a tensor.
    """
    groups = {"features": spread(features), "label": label, "weight": weight}
    structures = {role: structure_of(value, role) for role, value in groups.items()}
    plans: dict[str, ColumnPlan] = {}
    expressions: dict[str, SqlColumn] = {}
    for role, value in groups.items():
        if role == "weight" and structures[role].kind not in ("none", "single"):
            raise ConfigError(f"weight={value!r:.100}: expected one column")
        if role != "features":
            check_dense(structures[role].disassemble(value).values(), role)
        for key, chosen in structures[role].disassemble(value).items():
            column = chosen if isinstance(chosen, Column) else Column(chosen)
            plans[key], expressions[key] = _plan_column(df, key, column, role)
    plan = make_plan(structures["features"], structures["label"], plans, weight is not None)
    return plan, [expressions[column.key].alias(column.key) for column in plan.columns]


def _plan_column(df: DataFrame, key: str, column: Column, role: str) -> tuple[ColumnPlan, SqlColumn]:
    from pyspark.sql import functions as F

    fields = {field.name: field for field in df.schema.fields}
    if column.name not in fields:
        raise missing_column(df, column.name, role)
    check_unambiguous(df, column.name, role)
    expression = quoted(column.name)
    field = fields[column.name]
    column = described(column, field.metadata)
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
        array = vector_to_array(expression, "float64" if column.dtype == "float64" else "float32")
        expression = F.when(expression.isNotNull(), array)
    elif kind == "binary":
        if column.shape is None:
            raise DataError(
                f"{role} column {column.name!r} is binary: say how to read its bytes, "
                f"for example Column({column.name!r}, shape=(28, 28), dtype='uint8')",
                code="data-type",
            )
    elif kind != "numeric":
        raise DataError(
            f"{role} column {column.name!r} has type {field.dataType.simpleString()}: {kind}",
            code="data-type",
        )
    dtype = column.dtype or ("uint8" if kind == "binary" else None)
    plan = ColumnPlan(key, column.name, kind == "binary", dtype, column.shape)
    fill = _fill_of(field) if column.shape is None else None
    return replace(plan, ragged=fill is not None, fill=fill), expression


def missing_column(df: DataFrame, name: str, role: str) -> DataError:
    """Return the error for a column that is not there; of a struct's field it says how to get one."""
    from pyspark.sql import types as T

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
    from pyspark.sql import functions as F

    plain = F.unwrap_udt(vector)
    values = plain.getField("values")
    if part == "values":
        return values.cast("array<float>")
    places = F.transform(values, lambda _, place: place.cast("int"))
    return F.when(plain.getField("type") == 0, plain.getField("indices")).otherwise(places)


def _fill_of(field: StructField) -> float | None:
    """Return what fills the rows of a column of arrays up; ``None`` if its metadata does not say so."""
    from pyspark.sql import types as T

    found = field.metadata.get(METADATA)
    fill = found.get("fill") if isinstance(found, Mapping) else None
    if fill is None or not isinstance(field.dataType, T.ArrayType):
        return None
    if isinstance(fill, bool) or not isinstance(fill, int | float):
        raise ConfigError(f"column {field.name!r}: its metadata has fill={fill!r:.50}; expected a number")
    return fill


def arrays_of(df: DataFrame, plan: TablePlan) -> list[str]:
    """Return the keys of planned columns that hold arrays without an explicit shape."""
    from pyspark.sql import types as T

    types = {field.name: field.dataType for field in df.schema.fields}
    return [c.key for c in plan.columns if c.shape is None and isinstance(types[c.source], T.ArrayType)]


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
    from pyspark.sql import types as T

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
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import types as T

    if isinstance(data_type, VectorUDT):
        return "vector"
    if isinstance(data_type, T.BinaryType):
        return "binary"
    while isinstance(data_type, T.ArrayType):
        data_type = data_type.elementType
    if isinstance(data_type, T.NumericType | T.BooleanType):
        return "numeric"
    if isinstance(data_type, T.StringType):
        return "turn strings into numbers first, for example with pyspark.ml.feature.StringIndexer"
    if isinstance(data_type, T.DateType | T.TimestampType | T.TimestampNTZType):
        return "turn dates into numbers first, for example with unix_timestamp()"
    return "expected numbers, booleans, arrays of them, ML vectors or binary"
