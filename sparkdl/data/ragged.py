"""Rows whose arrays differ in their first dimension, such as texts of different lengths.

In memory such a column is a numpy array of objects, one array per row. In the store it is a file with all
values, one row after the other, and a file with the end of each row. Its shape begins with ``ANY``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparkdl.wire.frame import Array

ANY = -1
"""First dimension of a row's shape, where it differs from row to row."""

TYPICAL = 256
"""Stands for that dimension where the bytes of a row are estimated."""


def is_ragged(shape: Sequence[int] | None) -> bool:
    """Return whether a shape of one row is that of a ragged column."""
    return bool(shape) and shape is not None and shape[0] == ANY


def of_rows(rows: Sequence[Array]) -> Array:
    """Return rows as one column."""
    column = np.empty(len(rows), object)
    for index, row in enumerate(rows):
        column[index] = row
    return column


def split(values: Array, ends: Array) -> Array:
    """Return the column whose rows lie one after the other in ``values``; ``ends`` has the end of each."""
    values = values if values.flags.writeable else values.copy()  # torch wants to own them
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    return of_rows([values[start:end] for start, end in zip(starts, ends, strict=True)])


def joined(column: Array) -> tuple[Array, Array]:
    """Return the values of all rows, one after the other, and the length of each row."""
    lengths = np.array([len(row) for row in column], np.int64)
    return np.concatenate(list(column)), lengths


def kind_of(column: Array) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape of one row, of a column with rows."""
    if column.dtype == object:
        first: Any = column[0]
        return str(first.dtype), (ANY, *first.shape[1:])
    return str(column.dtype), tuple(column.shape[1:])
