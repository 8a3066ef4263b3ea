"""Rows that a caller holds in lists: sparse ones, and those that differ in length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparkdl.data import sparse
from sparkdl.data.collate import MASK, padded
from sparkdl.exceptions import DataError

Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
"""What a module is called with: by position, and by name."""


def spread(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
    """Return inputs with the indices and values of sparse rows in place of these."""

    def parts(value: Any, name: str) -> list[Any]:
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
    """Return inputs with rows of different lengths filled up with 0, which the module's mask hides.

    Raises:
        DataError: if it has none.
    """

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
