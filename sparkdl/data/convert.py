"""From Arrow columns and Python rows to arrays of fixed shape and dtype."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data import ragged
from sparkdl.data.columns import ColumnPlan
from sparkdl.exceptions import DataError
from sparkdl.wire.frame import Array

_ADVICE = "pad or filter them; collate=Pad() of a Dataset or of Trainer.fit pads each batch"

RowName = Callable[[int], str]
"""Names a row of the current batch, for errors."""


def is_null(value: Any) -> bool:
    """Return whether a caller's value is null, in Python or in pandas."""
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def null_error(where: str) -> DataError:
    """Return the error for null in a row."""
    return DataError(f"{where}: null; drop or fill nulls first", code="data-null")


def check_unmasked(value: Any, where: str) -> None:
    """Check that no value of a masked array of numpy is masked: ``asarray`` would take what lies below."""
    if not isinstance(value, np.ma.MaskedArray) or not np.ma.is_masked(value):
        return
    masked = np.ma.getmaskarray(value)
    row = f", row {np.flatnonzero(masked.reshape(len(masked), -1).any(axis=1))[0]}" if masked.ndim else ""
    raise DataError(
        f"{where}{row}: masked, which stands for null; drop such rows, or fill them with filled() first",
        code="data-null",
    )


def from_arrow(plan: ColumnPlan, column: pa.Array, row_name: RowName) -> Array:
    """Convert an Arrow column to an array of shape (rows, *shape); ``row_name`` names a row in errors."""
    rows = len(column)
    _no_nulls(plan, column, 1, row_name, "null")
    if plan.binary:
        return _from_binary(plan, column, row_name)
    if plan.ragged:
        ends = np.cumsum(pc.list_value_length(column).to_numpy(zero_copy_only=False), dtype=np.int64)
        flat = from_arrow(_of_values(plan), column.flatten(), _row_of(ends, row_name))
        if plan.shape is not None and not len(flat):
            flat = flat.reshape(0, *plan.shape[1:])
        return ragged.split(flat, ends)
    # Where the nesting has the planned dimensions their sizes are known; else the first row decides.
    depth = _depth(column.type)
    planned = plan.shape if plan.shape is not None and len(plan.shape) == depth else None
    if planned is None and depth == 1 and plan.shape is not None:
        planned = (prod(plan.shape),)  # a flat array, to be reshaped
    shape: list[int] = []
    for level in range(depth):
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        length = planned[level] if planned else int(lengths[0]) if len(lengths) else 0
        wrong = np.flatnonzero(lengths != length)
        if len(wrong):
            where = row_name(int(wrong[0]) // prod(shape))
            advice = "pad or filter them" if planned else _ADVICE
            raise DataError(
                f"{plan.words}, {where}: array of {int(lengths[wrong[0]])} values where "
                f"other rows have {length}; all rows must have one shape ({advice})",
                code="data-shape",
            )
        shape.append(length)
        column = column.flatten()
        _no_nulls(plan, column, prod(shape), row_name, "null inside the array")
    if pa.types.is_decimal(column.type) and np.dtype(plan.dtype or "float32").kind in "iu":
        column = _whole(plan, column, prod(shape), row_name)
    elif pa.types.is_decimal(column.type) or pa.types.is_null(column.type):  # of no values, JSON has no type
        column = column.cast(pa.float64())
    values: Array = column.to_numpy(zero_copy_only=False)
    return _finish(plan, values.reshape(rows, *shape) if rows else values.reshape(0), row_name)


def _whole(plan: ColumnPlan, column: pa.Array, per_row: int, row_name: RowName) -> pa.Array:
    """Return decimals as int64, exactly: as float64 large ones would be rounded."""
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        _check_whole(plan, column.to_pylist(), lambda index: row_name(index // per_row))
        raise


def _check_whole(plan: ColumnPlan, values: Iterable[Decimal], row_name: RowName) -> None:
    """Check that decimals are whole numbers that int64 can hold."""
    info = np.iinfo(np.int64)
    for index, value in enumerate(values):
        if not value.is_finite() or value != int(value) or not info.min <= value <= info.max:
            raise DataError(
                f"{plan.words}, {row_name(index)}: {value} does not fit {plan.dtype}", code="data-value"
            )


def _depth(data_type: pa.DataType) -> int:
    """Return how deeply lists are nested."""
    nested = pa.types.is_list(data_type) or pa.types.is_large_list(data_type)
    return 1 + _depth(data_type.value_type) if nested else 0


def _no_nulls(plan: ColumnPlan, column: pa.Array, per_row: int, row_name: RowName, what: str) -> None:
    if column.null_count:
        index = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(
            f"{plan.words}, {row_name(index // max(per_row, 1))}: {what}; "
            "drop or fill nulls first, for example with df.na.drop() or df.na.fill()",
            code="data-null",
        )


def _from_binary(plan: ColumnPlan, column: pa.Array, row_name: RowName) -> Array:
    assert plan.shape is not None
    assert plan.dtype is not None
    expected = plan.row_bytes
    lengths = pc.binary_length(column).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != expected)
    if len(wrong):
        raise DataError(
            f"{plan.words}, {row_name(int(wrong[0]))}: {int(lengths[wrong[0]])} bytes, expected "
            f"{expected} for shape {plan.shape} of {plan.dtype}",
            code="data-shape",
        )
    values: Array = np.empty(0, plan.dtype)
    if len(column):  # one row lies after the other, for all are of one size
        wide = pa.types.is_large_binary(column.type)
        _, offsets, data = column.buffers()
        start = int(np.frombuffer(offsets, np.int64 if wide else np.int32)[column.offset])
        raw: Array = np.frombuffer(data, np.uint8, len(column) * expected, start)
        values = np.require(raw.view(plan.dtype), requirements="A")
    return _finish(plan, values.reshape(len(column), *plan.shape), row_name)


def from_rows(plan: ColumnPlan, values: Sequence[Any] | Array, row_name: RowName) -> Array:
    """Convert Python values or a numpy array, one item per row, like :func:`from_arrow`."""
    if plan.ragged:
        return _from_ragged(plan, values, row_name)
    if isinstance(values, np.ndarray):
        return _finish(plan, values, row_name)
    arrays = [_numbers(plan, value, row_name(index)) for index, value in enumerate(values)]
    for index, array in enumerate(arrays):
        expected = plan.shape if plan.shape is not None else arrays[0].shape
        if array.shape != expected:
            wanted = "where a number is expected"
            if plan.shape != ():
                wanted = f"where other rows have {expected}"
                wanted += f"; {_ADVICE}" if plan.shape is None else ""
            raise DataError(
                f"{plan.words}, {row_name(index)}: shape {array.shape} {wanted}", code="data-shape"
            )
    if not arrays:
        return np.empty(0)
    return _finish(plan, np.stack(arrays), row_name)


def _numbers(plan: ColumnPlan, value: Any, row: str) -> Array:
    """Return a row's value as an array of numbers."""
    check_unmasked(value, f"{plan.words}, {row}")
    try:
        array: Array = np.asarray(value)
    except ValueError:  # lists of several lengths
        array = np.empty(0, object)
    if array.dtype == object and array.size and all(isinstance(item, Decimal) for item in array.flat):
        if np.dtype(plan.dtype or "float32").kind not in "iu":
            return array.astype(np.float64)
        _check_whole(plan, array.flat, lambda _: row)
        return array.astype(np.int64)
    array = exact(plan, value, array)
    if array.dtype == object or array.dtype.kind not in "biuf":
        null = value is None or (array.dtype == object and any(item is None for item in array.flat))
        what = (
            "null"
            if null
            else f"{reprlib.repr(value):.100} is not a number or an array of numbers of one shape"
        )
        raise DataError(f"{plan.words}, {row}: {what}", code="data-null" if null else "data-type")
    return array


def exact(plan: ColumnPlan, value: Any, array: Array) -> Array:
    """Return whole numbers as int64, where integers are planned and floats beside them made floats of all.

    ``array`` is what numpy has made of ``value``: floats round integers beyond 2**53.
    """
    if np.dtype(plan.dtype or "float32").kind not in "iu" or array.dtype.kind not in "fu":
        return array
    if array.dtype.kind == "u":
        return array.astype(np.int64) if (array < 1 << 63).all() else array
    limit = float(1 << 63)
    if not ((array >= -limit) & (array <= limit) & (array == np.floor(array))).all():
        return array
    if hasattr(value, "dtype"):  # nothing was mixed
        return array.astype(np.int64) if (array < limit).all() else array
    items = value.to_numpy(object) if hasattr(value, "to_numpy") else np.asarray(value, object)
    whole = [int(item) for item in items.flat]
    if any(not -(1 << 63) <= item < 1 << 63 for item in whole):
        return array
    return np.array(whole, np.int64).reshape(array.shape)


def _from_ragged(plan: ColumnPlan, values: Sequence[Any] | Array, row_name: RowName) -> Array:
    """Convert rows that may differ in their first dimension."""
    arrays = [_numbers(plan, value, row_name(index)) for index, value in enumerate(values)]
    for index, array in enumerate(arrays):
        inner = plan.shape[1:] if plan.shape is not None else arrays[0].shape[1:]
        if not array.ndim or array.shape[1:] != inner:
            raise DataError(
                f"{plan.words}, {row_name(index)}: shape {array.shape} where other rows have "
                f"{('any length', *inner)}; rows may differ in their first dimension alone",
                code="data-shape",
            )
    if not arrays:
        return ragged.of_rows([])
    # The first row that is not empty knows the dtype: an empty list is one of float64.
    known = next((array.dtype for array in arrays if len(array)), arrays[0].dtype)
    joined, lengths = ragged.joined(ragged.of_rows([a if len(a) else a.astype(known) for a in arrays]))
    ends = np.cumsum(lengths)
    return ragged.split(_finish(_of_values(plan), joined, _row_of(ends, row_name)), ends)


def _of_values(plan: ColumnPlan) -> ColumnPlan:
    """Return the plan of a ragged column's values, as if each were a row."""
    return replace(plan, ragged=False, shape=None if plan.shape is None else plan.shape[1:])


def _row_of(ends: Array, row_name: RowName) -> RowName:
    """Name the row in which a value of a ragged column is."""
    return lambda value: row_name(int(np.searchsorted(ends, value, side="right")))


def _finish(plan: ColumnPlan, values: Array, row_name: RowName) -> Array:
    """Bring values to the planned dtype and shape and check them."""
    if values.dtype.kind not in "biuf":
        raise DataError(f"{plan.words}: values of type {values.dtype} are not numbers", code="data-type")
    rows = len(values)
    dtype = np.dtype(plan.dtype or default_dtype(values.dtype, values.ndim))
    if plan.shape is not None and rows:
        if prod(values.shape[1:]) != prod(plan.shape):
            raise DataError(
                f"{plan.words}, {row_name(0)}: {prod(values.shape[1:])} values, expected "
                f"{prod(plan.shape)} for shape {plan.shape}",
                code="data-shape",
            )
        values = values.reshape(rows, *plan.shape)
    if dtype.kind in "iub" and rows:
        _in_range(plan, values, dtype, row_name)
    out, lost = cast(values, dtype)
    if lost is not None and not plan.finite:  # a label has an error of its own
        _reject(plan, lost, values, row_name, f"does not fit {dtype}")
    if plan.finite and out.dtype.kind == "f":
        _reject(plan, ~np.isfinite(out), values, row_name, "must be finite; filter such rows first")
    if plan.non_negative:
        _reject(plan, values < 0, values, row_name, "must not be negative")
    if plan.non_negative and dtype.kind == "f":
        why = f"is too small for {dtype}, as which it is 0 or rounded: multiply all weights by one number"
        _reject(plan, (out < np.finfo(dtype).tiny) & (values > 0), values, row_name, why)
    return out


def cast(values: Array, dtype: Any, *, copy: bool = False) -> tuple[Array, Array | None]:
    """Return values as ``dtype``, and where finite ones became infinite; ``None`` if none did."""
    try:
        with np.errstate(over="raise"):
            return values.astype(dtype, "C", subok=False, copy=copy), None
    except FloatingPointError:
        with np.errstate(over="ignore"):
            out = values.astype(dtype, "C", subok=False)
        return out, np.isinf(out) & np.isfinite(values)


def default_dtype(dtype: np.dtype[Any], dimensions: int) -> str:
    """Choose the stored dtype of values of ``dtype``; bytes of arrays, of two dimensions or more, stay so."""
    if dtype == np.uint8 and dimensions > 1:
        return "uint8"
    return "int64" if dtype.kind in "iu" else "float32"


def _in_range(plan: ColumnPlan, values: Array, dtype: np.dtype[Any], row_name: RowName) -> None:
    if values.dtype.kind == "f":
        why = f"does not fit {dtype}: where it stands for null, as in pandas, drop or fill it first"
        _reject(plan, np.isnan(values), values, row_name, why, "data-null")
    if dtype.kind == "b":
        _reject(plan, (values != 0) & (values != 1), values, row_name, "does not fit bool, 0 or 1")
        return
    info = np.iinfo(dtype)
    if values.dtype.kind == "f":
        # As floats the bounds are powers of two: exact, where iinfo.max would be rounded up.
        bad = (values < float(info.min)) | (values >= float(info.max + 1)) | (values != np.floor(values))
    else:
        bad = (values < info.min) | (values > info.max)
    _reject(plan, bad, values, row_name, f"does not fit {dtype}")


def _reject(
    plan: ColumnPlan, bad: Array, values: Array, row_name: RowName, why: str, code: str = "data-value"
) -> None:
    if bad.any():
        rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
        row = int(rows[0])
        value = values[row].reshape(-1)[np.flatnonzero(bad[row].reshape(-1))[0]]
        raise DataError(f"{plan.words}, {row_name(row)}: {value} {why}", code=code)
