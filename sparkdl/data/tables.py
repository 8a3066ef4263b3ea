"""Kinds of DataFrames: of classic Spark, of Spark Connect, of pandas, or something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.data.columns import (
    METADATA,
    PARTS,
    Column,
    ColumnLike,
    ColumnPlan,
    Columns,
    TablePlan,
    make_plan,
    structure_of,
)
from sparkdl.data.convert import RowName, from_arrow, from_rows
from sparkdl.data.sparse import are_vectors, check_dense, of_rows, planned, spread
from sparkdl.exceptions import DataError
from sparkdl.wire.frame import Array

_Vectors = dict[str, dict[str, list[Array]]]
"""Indices and values of the rows of sparse columns, by column and part."""


def is_pandas(df: object) -> bool:
    """Return whether this is a DataFrame of pandas, which need not be installed."""
    kind = type(df)
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def vector_columns(df: Any) -> list[str]:
    """Return the columns of a DataFrame that hold ML vectors, and whose metadata give no shape."""
    if is_pandas(df):
        return [name for name in df.columns if len(df) and are_vectors([df[name].iloc[0]])]
    from pyspark.ml.linalg import VectorUDT

    fields = [field for field in df.schema.fields if isinstance(field.dataType, VectorUDT)]
    return [field.name for field in fields if METADATA not in field.metadata]


def check_dataframe(df: object, what: str) -> None:
    """Check that this is a DataFrame of Spark, classic or Connect.

    Raises:
        DataError: starting with ``what``, if it is not.
    """
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
    """Check that a DataFrame has an end.

    Raises:
        DataError: starting with ``what``, if it is a stream.
    """
    if df.isStreaming:
        raise DataError(
            f"{what}: the DataFrame is a stream, and an epoch needs rows that end. Write the stream to a "
            "table and train on that, or train on each batch in writeStream.foreachBatch",
            code="data-source",
        )


def plan_pandas(
    df: Any,
    features: Columns,
    label: Columns | None,
    weight: ColumnLike | None,
    ragged: bool = False,
) -> tuple[TablePlan, dict[str, Array]]:
    """Plan columns of a pandas DataFrame like those of Spark, and convert them.

    With ``ragged``, arrays without an explicit shape may differ in length.

    Raises:
        DataError: naming the column, and the row, that cannot become a tensor.
    """
    groups = {"features": spread(features), "label": label, "weight": weight}
    structures = {role: structure_of(value, role) for role, value in groups.items()}
    chosen: dict[str, Column] = {}
    for role, value in groups.items():
        if role != "features":
            check_dense(structures[role].disassemble(value).values(), role)
        for key, column in structures[role].disassemble(value).items():
            chosen[key] = column if isinstance(column, Column) else Column(column)
            _check_name(df, chosen[key].name, role)
    plans: Mapping[str, ColumnPlan] = {
        key: planned(ColumnPlan(key, column.name, dtype=column.dtype, shape=column.shape))
        for key, column in chosen.items()
    }
    plan = make_plan(structures["features"], structures["label"], plans, weight is not None, arrays=True)
    if ragged and len(df):
        arrays = [
            c.key for c in plan.columns if c.shape is None and not c.part and np.ndim(df[c.source].iloc[0])
        ]
        plan = plan.ragged(arrays)
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
    if listed and isinstance(listed[0], bytes):
        if plan.shape is None:
            raise DataError(
                f"column {plan.source!r} is binary: say how to read its bytes, for example "
                f"Column({plan.source!r}, shape=(28, 28), dtype='uint8')",
                code="data-type",
            )
        binary = replace(plan, binary=True, dtype=plan.dtype or "uint8")
        return from_arrow(binary, pa.array(listed, pa.large_binary()), name)
    if plan.shape:  # flat arrays are reshaped
        return from_rows(plan, from_rows(replace(plan, shape=None), listed, name), name)
    return from_rows(plan, listed, name)
