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


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, lists of equal length as lists."""
    found = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(found, pa.ChunkedArray):  # of types that cannot be joined
        found = found.chunk(0)
    kind = found.type
    return found.cast(pa.list_(kind.value_type)) if pa.types.is_fixed_size_list(kind) else found


_KINDS = tuple(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC"))
"""What texts of times are read as, the first one that all of a column fit; Java writes nanoseconds."""


def moments(name: str, column: pa.Array) -> pa.Array:
    """Read texts as moments in time, with a zone or without."""
    for kind in _KINDS:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    given = [(row, text, _zones_of(text)) for row, text in enumerate(column.to_pylist()) if text is not None]
    usual = next((zones for _, _, zones in given if zones), set())
    found = ((row, text) for row, text, zones in given if not zones)  # the wrong one, or one of another kind
    other = ((row, text) for row, text, zones in given if not zones & usual)
    row, text = next(found, None) or next(other, None) or given[0][:2]
    raise DataError(
        f"column {name!r}, row {row}: {text!r:.100} is no date or time in ISO 8601, such as '2024-01-31' or "
        "'2024-01-31T10:00:00Z'; all of a column have a time zone, or none",
        code="data-value",
    )


def _zones_of(text: str) -> set[str | None]:
    """Return as what a text is a moment: with a zone, without one, or neither."""
    found = set()
    for kind in _KINDS:
        try:
            pa.scalar(text, pa.string()).cast(kind)
        except pa.ArrowInvalid:
            continue
        found.add(kind.tz)
    return found
