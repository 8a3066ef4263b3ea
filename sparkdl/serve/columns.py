"""Columns of requests, as Arrow arrays, turned into what a saved model's module takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data import sparse
from sparkdl.data.columns import Column, ColumnPlan
from sparkdl.data.convert import RowName, from_arrow
from sparkdl.exceptions import DataError
from sparkdl.ml.stages.arrow_columns import null_message
from sparkdl.ml.stages.outputs import VECTOR
from sparkdl.wire.frame import Array

_PAIR = "an object with 'indices' and 'values', or a list of numbers"
_LARGEST = np.iinfo(np.int32).max


def plans_of(chosen: Mapping[str, Column]) -> Iterator[ColumnPlan]:
    """Return how columns become inputs; those of which only the dtype is known differ in length."""
    for key, column in chosen.items():
        plan = sparse.planned(ColumnPlan(key, column.name, False, column.dtype, column.shape))
        free = plan.dtype is not None and plan.shape is None
        yield replace(plan, ragged=free, fill=0.0 if free else None)


def in_words(plan: ColumnPlan) -> str:
    """Return shape and dtype of a column, in words."""
    if plan.part:
        return "sparse vector"
    shape = ["any"] if plan.ragged else list(map(str, plan.shape or ()))
    return f"{plan.dtype}[{', '.join(shape)}]" if shape else f"{plan.dtype}"


def converted(plan: ColumnPlan, column: pa.Array, rows: Array) -> Array:
    """Convert a column, of which no row is null.

    Raises:
        DataError: naming column and row of what is no such value.
    """

    def name(index: int) -> str:
        return f"row {int(rows[index])}"

    kind = column.type
    if plan.part:
        if column.null_count:
            null = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(null_message(plan.source, name(null)), code="data-null")
        return from_arrow(plan, _part_of(plan, column, name), name)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        plan = replace(plan, binary=True)
    elif not is_numeric(kind) or (plan.ragged and not _is_list(kind)):
        raise _wrong_type(plan, kind)
    if plan.ragged and not plan.binary:
        column = _typed(column, plan)
    return from_arrow(plan, column, name)


def _part_of(plan: ColumnPlan, column: pa.Array, name: RowName) -> pa.Array:
    """Return the indices or the values of vectors.

    They are lists of numbers, structs of indices and values, or those that Spark makes of ML vectors.
    """
    kind = column.type
    if _is_list(kind) and is_numeric(kind):
        values = column.cast(pa.list_(pa.float64()))
        indices, marks = pa.nulls(len(column), pa.list_(pa.int32())), np.ones(len(column), np.int8)
    elif pa.types.is_struct(kind) and {"indices", "values"} <= {field.name for field in kind}:
        fields = {field.name: column.field(field.name) for field in kind}
        marks = _marks(fields.get("type"), len(column))
        indices = _lists(plan, fields["indices"], pa.int64())
        values = _lists(plan, fields["values"], pa.float64())
        _check_pairs(plan, indices, values, marks, name)
        indices = indices.cast(pa.list_(pa.int32()))
    else:
        raise _wrong_type(plan, kind)
    vectors = pa.StructArray.from_arrays(
        [pa.array(marks, pa.int8()), pa.nulls(len(column), pa.int32()), indices, values], fields=list(VECTOR)
    )
    return sparse.of_arrow(vectors, plan.part)


def _marks(kinds: pa.Array | None, rows: int) -> Array:
    """Return 0 for each sparse vector and 1 for each dense one, as Spark's field "type" says."""
    if kinds is None or not pa.types.is_integer(kinds.type):
        return np.zeros(rows, np.int8)
    found: Array = pc.equal(kinds, 1).fill_null(False).to_numpy(zero_copy_only=False).astype(np.int8)
    return found


def _lists(plan: ColumnPlan, found: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return found.cast(pa.list_(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _wrong_type(plan, found.type) from None


def _check_pairs(plan: ColumnPlan, indices: pa.Array, values: pa.Array, marks: Array, name: RowName) -> None:
    """Check that each sparse vector has as many indices as values, and indices from 0."""
    counts = [_counts(lists) for lists in (indices, values)]
    wrong = np.flatnonzero((counts[1] < 0) | ((marks == 0) & (counts[0] != counts[1])))
    if len(wrong):
        row = int(wrong[0])
        lengths = [max(0, int(count[row])) for count in counts]
        raise DataError(
            f"column {plan.source!r}, {name(row)}: {lengths[0]} indices and {lengths[1]} values; expected "
            f"{_PAIR}",
            code="data-shape",
        )
    flat = indices.flatten().fill_null(-1).to_numpy(zero_copy_only=False)
    bad = np.flatnonzero((flat < 0) | (flat > _LARGEST))
    if len(bad):
        parents = pc.list_parent_indices(indices).to_numpy()
        raise DataError(
            f"column {plan.source!r}, {name(int(parents[bad[0]]))}: an index that is no integer from 0",
            code="data-value",
        )


def _wrong_type(plan: ColumnPlan, kind: pa.DataType) -> DataError:
    wanted = f"{in_words(plan)}: {_PAIR}" if plan.part else in_words(plan)
    return DataError(f"column {plan.source!r} has type {kind}: expected {wanted}", code="data-type")


def _counts(lists: pa.Array) -> Array:
    """Return the length of each list, -1 where it is null."""
    found: Array = pc.list_value_length(lists).fill_null(-1).to_numpy(zero_copy_only=False)
    return found


def _typed(column: pa.Array, plan: ColumnPlan) -> pa.Array:
    """Return lists of which none has a value as lists of numbers, which JSON does not tell."""
    empty = pa.types.is_null(column.type.value_type)
    return column.cast(pa.list_(pa.from_numpy_dtype(np.dtype(plan.dtype)))) if empty else column


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_numeric(kind: pa.DataType) -> bool:
    """Return whether a type is that of numbers or of (nested) lists of them."""
    while _is_list(kind):
        kind = kind.value_type
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(check(kind) for check in (*checks, pa.types.is_null))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is that of strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, lists of equal length as lists."""
    found = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(found, pa.ChunkedArray):  # of types that cannot be joined
        found = found.chunk(0)
    kind = found.type
    return found.cast(pa.list_(kind.value_type)) if pa.types.is_fixed_size_list(kind) else found


def moments(name: str, column: pa.Array) -> pa.Array:
    """Read texts as moments in time, with a zone or without.

    Raises:
        DataError: naming column and row of one that is none.
    """
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    found = ((i, text) for i, text in enumerate(column.to_pylist()) if not _is_moment(text))
    row, text = next(found, (0, column[0].as_py()))
    raise DataError(
        f"column {name!r}, row {row}: {text!r:.100} is no date or time in ISO 8601, such as '2024-01-31' or "
        "'2024-01-31T10:00:00Z'; all of a column have a time zone, or none",
        code="data-value",
    )


def _is_moment(text: str | None) -> bool:
    try:
        pa.scalar(text, pa.string()).cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return False
    return True
