"""Columns of requests, as Arrow arrays, turned into what a saved model's module takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from sparkdl.data import sparse
from sparkdl.data.columns import Column, ColumnPlan
from sparkdl.exceptions import DataError


def plans_of(chosen: Mapping[str, Column]) -> Iterator[ColumnPlan]:
    """Return how columns become inputs; those of which only the dtype is known differ in length."""
    for key, column in chosen.items():
        plan = sparse.planned(ColumnPlan(key, column.name, False, column.dtype, column.shape))
        free = plan.dtype is not None and plan.shape is None
        yield replace(plan, ragged=free, fill=0.0 if free else None)


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
    """Read texts as moments in time, with a zone or without."""
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
