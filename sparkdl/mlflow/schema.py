"""Columns of a model in MLflow's words: its signature and an example of its input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sparkdl.data.columns import ColumnPlan
from sparkdl.data.ragged import ANY
from sparkdl.data.sparse import of_row
from sparkdl.exceptions import DataError
from sparkdl.ml.stages.outputs import OutputColumn
from sparkdl.serve.served import ServedModel
from sparkdl.table.encoding import TableEncoding
from sparkdl.table.values import Kind

if TYPE_CHECKING:
    from mlflow.models.signature import ModelSignature

_ROWS = 5
_TYPES: Mapping[Kind, str] = {
    "boolean": "boolean",
    "date": "datetime",
    "timestamp": "datetime",
    "string": "string",
}


def signature_of(served: ServedModel) -> ModelSignature:
    """Return the columns that a model takes and gives.

    Numbers of a table have the type "any", for MLflow takes no longs for doubles, and pandas makes doubles of
    longs with nulls; the model itself compares their type.
    """
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, Schema, schema

    any_type: Any = schema.AnyType

    if served.encoding is not None:
        inputs: list[Any] = [
            ColSpec(any_type() if kind == "number" else _TYPES[kind], name)
            for name, kind in served.encoding.kinds.items()
        ]
    else:
        inputs = [ColSpec(_type_of(plan), plan.source) for plan in _by_column(served).values()]
    outputs: list[Any] = [ColSpec(_result(output), output.column) for output in served.outputs]
    return ModelSignature(Schema(inputs), Schema(outputs))


def example_of(served: ServedModel, rows: Any) -> pd.DataFrame:
    """Return some rows of a DataFrame of Spark or pandas, or a row that is made up."""
    if rows is None:
        made = _typical(served.encoding) if served.encoding is not None else _zeros(served)
        return pd.DataFrame(made)
    names = list(served.columns)
    missing = [name for name in names if name not in rows.columns]
    if missing:
        raise DataError(
            f"input_example: column {missing[0]!r} is missing; the model takes {', '.join(names)}",
            code="data-column",
        )
    if isinstance(rows, pd.DataFrame):
        found = rows[names].head(_ROWS)
    else:
        found = rows.select(*[f"`{name.replace('`', '``')}`" for name in names]).limit(_ROWS).toPandas()
    found = found.apply(lambda column: _plain(column, sparse=column.name in served.vectors))
    for name, kind in ({} if served.encoding is None else served.encoding.kinds).items():
        if kind in ("date", "timestamp"):
            found[name] = pd.to_datetime(found[name])
    return found


def _by_column(served: ServedModel) -> dict[str, ColumnPlan]:
    """Return what becomes of each column; of a sparse vector its first part."""
    found: dict[str, ColumnPlan] = {}
    for plan in served.plans:
        found.setdefault(plan.source, plan)
    return found


def _plain(column: pd.Series[Any], sparse: bool) -> pd.Series[Any]:
    """Return a column without ML vectors, dates without times and numbers that MLflow would warn of."""
    if column.dtype != object:
        return column.astype("float64") if column.dtype.kind in "iu" else column
    if sparse:
        return column.map(_pair)
    return column.map(lambda value: value.toArray().tolist() if hasattr(value, "toArray") else value)


def _pair(value: Any) -> Any:
    """Return the indices and values of an ML vector; anything else as it is."""
    if not hasattr(value, "toArray"):
        return value
    indices, values = of_row(value, "input_example")
    return {"indices": indices.tolist(), "values": values.tolist()}


def _type_of(plan: ColumnPlan) -> Any:
    from mlflow.types import DataType
    from mlflow.types.schema import Array, Object, Property

    if plan.part:
        return Object([Property("indices", Array(DataType.long)), Property("values", Array(DataType.double))])
    kind = np.dtype(plan.dtype or "float32").kind
    found: Any = DataType.double if kind == "f" else DataType.boolean if kind == "b" else DataType.long
    for _ in (ANY,) if plan.ragged else plan.shape or ():
        found = Array(found)
    return found


def _result(output: OutputColumn) -> Any:
    from mlflow.types import DataType
    from mlflow.types.schema import Array

    if output.kind in ("number", "class"):
        return DataType.double
    if output.kind in ("label", "long"):
        return DataType.string if output.kind == "label" else DataType.long
    kinds = {"floats": DataType.float, "longs": DataType.long}
    found: Any = kinds.get(output.kind, DataType.double)
    for _ in range(output.dims):
        found = Array(found)
    return found


def _zeros(served: ServedModel) -> dict[str, list[Any]]:
    made: dict[str, list[Any]] = {}
    for name, plan in _by_column(served).items():
        shape = (1,) if plan.ragged else plan.shape or ()
        made[name] = [
            {"indices": [0], "values": [0.0]} if plan.part else np.zeros(shape, plan.dtype).tolist()
        ]
    return made


def _typical(encoding: TableEncoding) -> dict[str, list[Any]]:
    """Return a row of means and most frequent values."""
    made: dict[str, list[Any]] = {}
    for number in encoding.numbers:
        made[number.column] = [number.mean]
    for category in encoding.categories:
        if category.kind == "string":
            made[category.column] = [category.values[0] if category.values else ""]
    for name, kind in encoding.kinds.items():
        if kind == "boolean":
            made[name] = [True]
        elif kind in ("date", "timestamp"):
            made[name] = [pd.Timestamp("2020-01-01")]
    return {name: made[name] for name in encoding.columns}
