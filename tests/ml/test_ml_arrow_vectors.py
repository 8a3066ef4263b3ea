"""ML vectors in Arrow, without Spark: as rows of numbers, as indices and values, and those that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors

from sparkdl.data.columns import ColumnPlan, Structure
from sparkdl.exceptions import DataError
from sparkdl.ml.stages.arrow_columns import ArrowColumns
from sparkdl.ml.stages.arrow_vectors import VECTOR, ArrowVectors

DENSE = ColumnPlan("v", "v")
THREE = ColumnPlan("v", "v", dtype="float32", shape=(3,))
INDICES = ColumnPlan("v", "v", dtype="int32", part="sparse.indices", ragged=True)
RAGGED = ColumnPlan("v", "v", dtype="float32", ragged=True)
VALUES = ColumnPlan("v", "v", dtype="float32", part="sparse.values", ragged=True)


def sparse(size: Any, indices: Any, values: Any) -> dict[str, Any]:
    return {"type": 0, "size": size, "indices": indices, "values": values}


def dense(*values: float) -> dict[str, Any]:
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


def name(index: int) -> str:
    return f"row {index}"


def of_spark(rows: list[dict[str, Any]]) -> list[list[float]]:
    """Return what Spark itself makes of them."""
    return [
        list(
            Vectors.dense(row["values"]).toArray()
            if row["type"]
            else Vectors.sparse(row["size"], row["indices"], row["values"]).toArray()
        )
        for row in rows
    ]


def test_vectors_become_dense() -> None:
    rows = [sparse(3, [0, 2], [4.0, 5.0]), dense(1.0, 2.0, 3.0), sparse(3, [], [])] * 2
    column = pa.array(rows, VECTOR)
    for begin, end in ((0, 6), (1, 4), (2, 3), (4, 5)):
        found = ArrowVectors.read(DENSE, column.slice(begin, end - begin), name).dense(DENSE, name)
        assert found.to_pylist() == of_spark(rows[begin:end])


def test_vectors_become_indices_and_values() -> None:
    column = pa.array([sparse(9, [2, 5], [1.0, 2.0]), dense(0.0, 3.0), sparse(9, [], [])], VECTOR)
    for rows, indices in (
        (column, [[2, 5], [0, 1], []]),
        (column.filter(pa.array([True, False, True])), [[2, 5], []]),
        (pa.array([[7.0, 0.0], [1.0]]), [[0, 1], [0]]),
    ):
        assert ArrowVectors.read(INDICES, rows, name).part("sparse.indices").to_pylist() == indices
    assert ArrowVectors.read(VALUES, column, name).part("sparse.values").to_pylist() == [[1, 2], [0, 3], []]


def test_a_vector_of_unknown_size_has_that_of_the_plan() -> None:
    column = pa.array([{"indices": [2], "values": [1.0]}, {"indices": [0], "values": [2.0]}])
    assert ArrowVectors.read(THREE, column, name).dense(THREE, name).to_pylist() == [[0, 0, 1], [2, 0, 0]]


@pytest.mark.parametrize(
    ("plan", "row", "code", "message"),
    [
        (THREE, sparse(3, [0, 1], [1.0]), "data-shape", "2 indices and 1 values"),
        (THREE, sparse(3, [-1], [1.0]), "data-value", "no integer from 0"),
        (THREE, sparse(3, [3], [1.0]), "data-value", "from 0 below the size, 3"),
        (DENSE, sparse(2, [1, 2], [1.0, 1.0]), "data-value", "from 0 below the size, 2"),
        (INDICES, sparse(5, [7], [1.0]), "data-value", "from 0 below the size, 5"),
        (THREE, sparse(2**31 - 1, [0], [1.0]), "data-shape", "vector of 2147483647 values, expected 3"),
        (THREE, sparse(None, [3], [1.0]), "data-value", "no integer from 0"),
        (DENSE, sparse(None, [3], [1.0]), "data-shape", "size is not known"),
        (THREE, dense(1.0, 2.0), "data-shape", "vector of 2 values, expected 3"),
        (THREE, {"type": 1, "size": None, "indices": None, "values": None}, "data-shape", "0 values"),
        (THREE, sparse(3, [0], [None]), "data-null", "null"),
    ],
)
def test_what_is_no_vector_is_named(plan: ColumnPlan, row: Any, code: str, message: str) -> None:
    column = pa.array([sparse(3, [1], [1.0]), row], VECTOR)
    columns = ArrowColumns((plan,), Structure("single", ("v",)), keep=False, name=name)
    with pytest.raises(DataError, match=rf"column 'v', row 1.*{message}") as caught:
        columns.convert([column])
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("plan", "column", "found"),
    [
        (THREE, pa.array(["a"]), "string: expected float32\\[3\\]"),
        (DENSE, pa.array(["a"]), "string: expected numbers"),
        (INDICES, pa.array([1.0]), "double: expected sparse vector"),
        (THREE, pa.array([{"x": 1.0}]), "struct<x: double>: expected float32"),
        (THREE, pa.array([{"indices": ["a"], "values": [1.0]}]), "list<.*string>: expected"),
        (
            ColumnPlan("v", "v", dtype="float32", ragged=True),
            pa.array([2.0]),
            "double: expected float32.any.",
        ),
        (
            ColumnPlan("v", "v", dtype="float32", ragged=True),
            pa.array([dense(1.0)], VECTOR),
            "expected float32.any",
        ),
    ],
)
def test_columns_of_other_types_are_refused(plan: ColumnPlan, column: pa.Array, found: str) -> None:
    columns = ArrowColumns((plan,), Structure("single", ("v",)), keep=False, name=name)
    with pytest.raises(DataError, match=f"column 'v' has type {found}|column 'v' has type struct.*{found}"):
        columns.convert([column])


def test_bytes_of_rows_of_any_length_are_refused() -> None:
    plan = ColumnPlan("v", "v", dtype="uint8", ragged=True)
    columns = ArrowColumns((plan,), Structure("single", ("v",)), keep=False, name=name)
    with pytest.raises(DataError, match="column 'v' is binary: the shape"):
        columns.convert([pa.array([b"ab"])])


def test_lists_without_a_value_have_the_type_that_is_planned() -> None:
    columns = ArrowColumns((RAGGED,), Structure("single", ("v",)), keep=False, name=name)
    valid, arrays = columns.convert([pa.array([[], []])])
    assert valid.all()
    assert arrays is not None
    assert [(row.dtype, len(row)) for row in arrays["v"]] == [(np.float32, 0)] * 2
