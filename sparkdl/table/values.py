"""Columns of any origin as strings and doubles, which are what an encoding reads."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from sparkdl.exceptions import DataError
from sparkdl.table.zones import UTC, local, localized
from sparkdl.wire.frame import Array

Kind = Literal["number", "boolean", "date", "timestamp", "string"]
_SECONDS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_EXPECTED = {
    "number": "numbers",
    "boolean": "booleans, or 0 and 1",
    "date": "dates, or days since 1970-01-01",
    "timestamp": "timestamps, or seconds since 1970-01-01 in UTC",
}

_LATEST = {"date": float(2**31), "timestamp": 2.0**63 / 1e6}
"""Days and seconds that Spark's dates and timestamps can have at most."""


def arrow(name: str, values: Any) -> pa.Array:
    """Return a column of any origin, an Arrow array, pandas series, numpy array, list, as an Arrow array.

    ``None`` and NaN are null.
    """
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ndarray) and values.dtype.kind in "UO":
        values = values.tolist()
    try:
        found = numbers_of(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(
            f"column {name!r}: {reprlib.repr(values):.100} is no column of one type: {error!s:.200}",
            code="data-type",
        ) from error
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def numbers_of(values: Any, **options: Any) -> pa.Array:
    """Return a column as an Arrow array, also one of integers that doubles cannot hold beside fractions.

    Arrow refuses these, and integers beyond 64 bits; Spark rounds them. Whole numbers alone stay exact.
    ``values`` and ``options`` are what ``pyarrow.array`` takes.
    """
    try:
        return pa.array(values, **options)
    except (OverflowError, pa.ArrowInvalid):
        if not isinstance(values, list):
            raise
        return pa.array(_of_one_type(values, _are_longs(values)), **options)


def _are_longs(value: Any) -> bool:
    """Return whether all numbers of (nested) lists are whole, and fit 64 bits."""
    if isinstance(value, list):
        return all(map(_are_longs, value))
    if isinstance(value, float) and not value.is_integer():
        return False
    return not isinstance(value, int | float) or -(1 << 63) <= value < 1 << 63


def _of_one_type(value: Any, whole: bool) -> Any:
    """Return (nested) lists with integers, or doubles, in place of all numbers."""
    if isinstance(value, list):
        return [_of_one_type(item, whole) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if whole else float(value)
    return value


def texts(name: str, column: pa.Array) -> pa.Array:
    """Return a column of strings; a number that was one may have lost zeros, as those of 01234."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return texts(name, column.dictionary_decode())
    if str(kind) in ("string", "large_string", "string_view", "null"):  # Arrow 15 has no name for views
        return column.cast(pa.string())
    if column.null_count == len(column):  # of NaN alone a DataFrame makes a column of numbers
        return pa.nulls(len(column), pa.string())
    raise DataError(
        f"column {name!r} has type {kind}: the encoding was fitted on strings; pass the strings that the "
        "table had then, or null",
        code="data-type",
    )


def doubles(name: str, column: pa.Array, kind: Kind, zone: str = UTC) -> Array:
    """Return a column of numbers, dates as days and timestamps as seconds; NaN for null.

    ``kind`` is that of the fit. ``zone`` is of the clock that times without a zone follow, and in which an
    instant has its date. Dates begin at its midnight.
    """
    found = column.type
    scale = 1.0
    if pa.types.is_timestamp(found) and kind == "date":
        column = local(name, column, zone).cast(pa.date32(), safe=False)
        found = column.type
    if pa.types.is_date(found) and kind == "timestamp":
        column = column.cast(pa.date32()).cast(pa.timestamp("s"))
        found = column.type
    if pa.types.is_date(found) and kind == "date":
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_timestamp(found) and kind == "timestamp":
        column, scale = localized(name, column, zone).cast(pa.int64()), _SECONDS[found.unit]
    elif pa.types.is_boolean(found):
        column = column.cast(pa.int8())
    elif not any(
        check(found)
        for check in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    ):
        raise DataError(
            f"column {name!r} has type {found}: the encoding was fitted on {_EXPECTED[kind]}; pass such "
            "values, or null",
            code="data-type",
        )
    # Whole numbers beyond 2^53 lose digits, which a model cannot tell apart anyway.
    values: Array = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) / scale
    _check_values(name, values, kind)
    return values


def _check_values(name: str, values: Array, kind: Kind) -> None:
    """Check that numbers can be what they stand for."""
    if kind == "number":
        return
    possible = np.isin(values, (0.0, 1.0)) if kind == "boolean" else abs(values) <= _LATEST[kind]
    wrong = np.flatnonzero(~(possible | np.isnan(values)))
    if len(wrong):
        raise DataError(
            f"column {name!r}, row {wrong[0]}: {values[wrong[0]]:g} where the encoding was fitted on "
            f"{_EXPECTED[kind]}; pass such values, or null",
            code="data-value",
        )


def columns_of(table: Any, names: Sequence[str]) -> dict[str, pa.Array]:
    """Return columns of a pandas DataFrame, an Arrow table or a dict."""
    held = getattr(table, "column_names", None) or getattr(table, "columns", None)
    there = list(held if held is not None else table)
    missing = [name for name in names if name not in there]
    if missing:
        raise DataError(
            f"column {missing[0]!r} is missing; the model was fitted on {', '.join(names)}, and the table "
            f"has {', '.join(map(str, there))}",
            code="data-column",
        )
    found = {name: arrow(name, table[name]) for name in names}
    if len({len(column) for column in found.values()}) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in found.items())
        raise DataError(f"columns have different numbers of rows: {lengths}", code="data-shape")
    return found
