"""Rows that a caller holds in arrays and lists: also sparse ones, and those that differ in length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sparkdl.data import sparse
from sparkdl.data.collate import MASK, check_mask, padded
from sparkdl.data.columns import ColumnPlan
from sparkdl.data.convert import check_unmasked, exact, from_rows, is_null, null_error
from sparkdl.exceptions import DataError
from sparkdl.wire.frame import Array

Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
"""What a module is called with: by position, and by name."""


def array_of(plan: ColumnPlan, rows: Any) -> Array:
    """Return a caller's rows as a column of them becomes, with its checks; as they are without a dtype."""
    check_unmasked(rows, plan.words)
    try:
        array: Array = exact(plan, rows, np.asarray(rows))
    except ValueError:  # lists of no one shape
        array = from_rows(plan, list(rows), lambda index: f"row {index}")
    if array.dtype == object and array.ndim:
        null = next((n for n, row in enumerate(array) if _has_null(row)), None)
        if null is not None:
            raise null_error(f"{plan.words}, row {null}")
    if array.dtype.kind not in "biufc" or array.ndim == 0:
        raise DataError(
            f"{plan.words}: expected an array of numbers with a dimension for rows, got {array.dtype} of "
            f"shape {array.shape}",
            code="data-type" if array.ndim else "data-shape",
        )
    if not len(array) and plan.shape is not None:
        array = array.reshape(0, *plan.shape)
    if plan.dtype is not None:
        array = from_rows(plan, array, lambda index: f"row {index}")
    elif plan.shape is not None and len(array):
        array = from_rows(replace(plan, dtype=str(array.dtype)), array, lambda index: f"row {index}")
    if not array.flags.writeable or not array.dtype.isnative or min(array.strides, default=0) < 0:
        array = np.array(array, array.dtype.newbyteorder("="))  # torch takes no others
    return array


def _has_null(value: Any) -> bool:
    """Return whether a value is null, or has one in its lists or arrays."""
    return is_null(value) or (isinstance(value, np.ndarray | list | tuple) and any(map(_has_null, value)))


def spread(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
    """Return inputs with indices and values in place of sparse rows; DataError names a row that is null."""

    def parts(value: Any, name: str) -> list[Any]:
        if isinstance(value, list) and value and all(map(is_null, value)):
            raise null_error(f"{name}, row 0")
        if not sparse.are_vectors(value):
            return [value]
        return [padded(found).numpy() for found in sparse.of_rows(value, name)]

    named: dict[str, Any] = {}
    for name, value in kwargs.items():
        found = parts(value, f"input {name!r}")
        names = [name] if len(found) == 1 else sparse.names_of(name)
        named |= dict(zip(names, found, strict=True))
    return tuple(part for n, value in enumerate(args) for part in parts(value, f"input {n}")), named


def filled(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
    """Return inputs with rows of different lengths filled up with 0, which the module's mask hides."""
    check_mask(kwargs, lambda index: f"row {index}")

    def full(rows: Any, name: str) -> Any:
        if not all(isinstance(row, list) or np.ndim(row) for row in rows):
            return rows
        lengths = sorted({len(row) for row in rows})
        if len(lengths) < 2:
            return rows
        if MASK not in kwargs:
            raise DataError(
                f"{name}: rows of {lengths[0]} and of {lengths[-1]} values, and the module has no {MASK} "
                "that says what fills the shorter ones up; predict rows of one length at a time",
                code="data-shape",
            )
        return padded([np.asarray(row) for row in rows]).numpy()

    named = {name: full(rows, f"input {name!r}") for name, rows in kwargs.items()}
    return tuple(full(rows, f"input {n}") for n, rows in enumerate(args)), named
