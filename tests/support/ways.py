"""The ways in which a model answers the rows of an Arrow table, none of which needs a JVM."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.data.columns import ColumnPlan
from sparkdl.data.loose import array_of
from sparkdl.exceptions import SparkdlError
from sparkdl.ml.stages.arrow_columns import null_rows
from sparkdl.ml.stages.inference import inference_of
from sparkdl.ml.stages.sql import free_inputs, scorer_of
from sparkdl.mlflow.pyfunc import PyFunc
from sparkdl.nn import serialize
from sparkdl.serve import Predictor
from sparkdl.serve.served import ServedModel
from sparkdl.serve.server import arrow_ipc, formats
from sparkdl.serve.server.formats import JSON, Limits
from sparkdl.table.onnx import feeds

Answer = list[Any] | str
"""The values of all rows, ``None`` for one that is null; or the code of the error."""


class Unable(Exception):  # noqa: N818 -- no failure
    """A form that cannot hold these rows: JSON has no NaN, pandas no null beside NaN."""


class Shipped:
    """A module as tasks get it."""

    def __init__(self, module: Any) -> None:
        self.digest, self._data = uuid.uuid4().hex, serialize.dumps(module, "the module")

    def read(self) -> bytes:
        return self._data


def in_tasks(model: Any, table: pa.Table) -> Any:
    """Return what a SQL function's task gives, for batches of a few rows."""
    shipped: Any = Shipped(model.module)
    scorer = scorer_of(inference_of(model, decision=True), shipped, free_inputs(model))
    columns = [table.column(name).combine_chunks() for name in model.featuresNames()]
    batches: Iterator[Any] = (
        tuple(column.slice(start, 3) for column in columns) for start in range(0, len(table), 3)
    )
    if scorer.arity == 1:
        batches = (only for (only,) in batches)
    return [value for result in scorer(batches) for value in result.to_pylist()]


def served(model: Any, table: pa.Table) -> Any:
    """Return what the server gives for an Arrow stream."""
    made = ServedModel(model)
    limits = Limits(tuple(made.columns), 1000, made.vectors)
    rows, _, _ = formats.read(arrow_ipc.MEDIA_TYPE, arrow_ipc.write_table(table), limits)
    return made(rows).column("prediction").to_pylist()


def served_json(model: Any, table: pa.Table) -> Any:
    """Return what the server gives for JSON by columns."""
    made = ServedModel(model)
    limits = Limits(tuple(made.columns), 1000, made.vectors)
    columns = {
        name: [_as_json(value) for value in table.column(name).to_pylist()] for name in table.column_names
    }
    if any(all(value is None for value in column) for column in columns.values()):
        raise Unable  # of nulls alone JSON tells no type
    if any(pa.types.is_temporal(table.column(n).type) and made.columns.get(n) == "string" for n in columns):
        raise Unable  # times are texts in JSON
    rows, _, _ = formats.read(JSON, json.dumps({"columns": columns}).encode(), limits)
    return made(rows).column("prediction").to_pylist()


def mlflow(model: Any, table: pa.Table) -> Any:
    """Return what MLflow's pyfunc gives for a DataFrame of pandas."""
    frame = _as_pandas(table)
    found = PyFunc(ServedModel(model)).predict(frame)["prediction"]
    return found.astype(object).where(found.notna(), None).tolist()


def predictor(model: Any, table: pa.Table) -> Any:
    """Return what a Predictor gives for the table, or the arrays of its columns."""
    predict = Predictor.of(model)
    if model.encoding is not None:
        return _first(predict(table))
    return _first(_asked(predict, model, [_as_array(table.column(name)) for name in model.featuresNames()]))


def predictor_pandas(model: Any, table: pa.Table) -> Any:
    """Return what a Predictor gives for a DataFrame of pandas, or its columns."""
    predict, frame = Predictor.of(model), _as_pandas(table)
    if model.encoding is not None:
        return _first(predict(frame))
    if any(pa.types.is_integer(column.type) and column.null_count for column in table.columns):
        raise Unable  # NaN, which is a value of numbers
    columns = (frame[name] for name in model.featuresNames())
    return _first(_asked(predict, model, [_vectors(c.tolist()) if c.dtype == object else c for c in columns]))


def row_by_row(model: Any, table: pa.Table) -> Any:
    """Return what ``model.predict(row)`` gives."""
    if not hasattr(model, "predict"):
        raise Unable
    columns = [table.column(name).to_pylist() for name in model.featuresNames()]
    return [model.predict(row if len(row) > 1 else row[0]) for row in zip(*columns, strict=True)]


def in_onnx(model: Any, table: pa.Table, path: str) -> Any:
    """Return what ONNX Runtime gives for the rows one by one, of a model exported by the whole table.

    Raises:
        SparkdlError: if it cannot be exported, or the rows do not fit it.
    """
    import onnxruntime

    predict = Predictor.of(model)
    twice = pa.concat_tables([table, table])  # an example has two rows at least
    if model.encoding is not None:
        predict.to_onnx(path, twice)
        inputs = feeds(
            model.encoding, {name: table.column(name).combine_chunks() for name in table.column_names}
        )
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    else:
        arrays = [_as_array(twice.column(name)) for name in model.featuresNames()]
        plans = [ColumnPlan("", "", dtype=spec.dtype, shape=spec.shape) for spec in model.signature.inputs]
        arrays = [array_of(plan, array) for plan, array in zip(plans, arrays, strict=True)]
        predict.to_onnx(path, tuple(arrays))
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        inputs = dict(zip([entry.name for entry in session.get_inputs()], arrays, strict=True))
    rows = ({name: array[n : n + 1] for name, array in inputs.items()} for n in range(len(table)))
    found = [session.run(None, row)[0] for row in rows]
    return _first(np.concatenate(found))


WAYS: dict[str, Callable[[Any, pa.Table], Any]] = {
    "tasks": in_tasks,
    "server, Arrow": served,
    "server, JSON": served_json,
    "MLflow": mlflow,
    "Predictor": predictor,
    "Predictor, pandas": predictor_pandas,
    "row by row": row_by_row,
}


def answer(ask: Callable[[Any, pa.Table], Any], model: Any, table: pa.Table) -> Answer:
    """Return the answer of one way; raises :class:`Unable`."""
    try:
        found: list[Any] = ask(model, table)
    except SparkdlError as error:
        return error.code
    return found


def answers(model: Any, table: pa.Table) -> dict[str, Answer]:
    """Return the answer of each way that these rows can go."""
    found: dict[str, Answer] = {}
    for way, ask in WAYS.items():
        with suppress(Unable):
            found[way] = answer(ask, model, table)
    return found


def differing(found: dict[str, Answer], *, one_fault: bool) -> list[str]:
    """Return the ways that answer otherwise than the tasks.

    Of rows with several faults each way names the first that it meets.
    """
    expected = found["tasks"]
    if isinstance(expected, str) and not one_fault:
        return [way for way, answer in found.items() if not isinstance(answer, str)]
    return [way for way, answer in found.items() if not same(answer, expected)]


def same(one: Any, other: Any) -> bool:
    """Return whether two answers are one, but for the last bits of numbers."""
    if isinstance(one, str) or isinstance(other, str) or one is None or other is None:
        return one is other is None or (isinstance(one, str) and one == other)
    if isinstance(one, list | np.ndarray) and isinstance(other, list | np.ndarray):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.isclose(one, other, rtol=1e-6, atol=1e-6, equal_nan=True))


def _asked(predict: Predictor, model: Any, columns: list[Any]) -> Any:
    """Return what a Predictor gives for inputs by position, or by name where the module has names."""
    keys = [spec.key for spec in model.signature.inputs]
    return predict(*columns) if None in keys else predict(dict(zip(keys, columns, strict=True)))


def _first(output: Any) -> Any:
    return output.reshape(len(output), -1)[:, 0].tolist() if output.size == len(output) else output.tolist()


def _as_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise Unable
    if isinstance(value, bytes):
        raise Unable
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):  # a vector, in the one form that a request has for all of them
        indices = list(range(len(value["values"]))) if value["type"] else value["indices"]
        return {"indices": indices, "values": _as_json(value["values"])}
    return value.isoformat() if isinstance(value, date | datetime) else value


def _as_pandas(table: pa.Table) -> Any:
    """Return a DataFrame; pandas makes doubles of integers beside null, as it does of those of Spark."""
    for column in table.columns:
        if any(isinstance(v, float) and math.isnan(v) for v in _flat(column.to_pylist())):
            raise Unable
        if pa.types.is_nested(column.type) and column.null_count == len(column):
            raise Unable  # of nulls alone pandas tells no type
        if pa.types.is_list(column.type) and null_rows(column.combine_chunks().drop_null()) is not None:
            raise Unable
    frame = table.to_pandas()
    return frame.assign(**{name: frame[name].map(_listed) for name in frame if frame[name].dtype == object})


def _flat(value: Any) -> Iterator[Any]:
    """Yield the values of nested lists."""
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _as_array(column: pa.ChunkedArray) -> Any:
    """Return a column as a caller without Arrow holds it."""
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return column.to_numpy() if plain and not column.null_count else _vectors(column.to_pylist())


def _vectors(rows: list[Any]) -> list[Any]:
    """Return rows with ML vectors in place of what Arrow has for them."""
    from pyspark.ml.linalg import Vectors

    def vector(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if value["type"]:
            return Vectors.dense(value["values"])
        return Vectors.sparse(value["size"], value["indices"], value["values"])

    return list(map(vector, rows))
