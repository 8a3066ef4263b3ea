"""Sparse vectors: columns of ML vectors that stay sparse in the store and in batches.

Such a column becomes two ragged ones (:mod:`sparkdl.data.ragged`), the indices and the values of each row,
and two tensors of shape (rows, longest) in a batch. Value 0 at index 0 fills shorter rows up.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sparkdl.data.columns import PARTS, SPARSE, Column, ColumnLike, ColumnPlan, Columns, as_column
from sparkdl.data.convert import cast, is_null, null_error
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.wire.frame import Array

WIDE = 4096
"""From so many values on, vectors that are nearly all zeros should stay sparse."""

_DENSEST = 1 / 16
_LARGEST = int(np.iinfo(np.int32).max)


def is_wide(size: int, present: int) -> bool:
    """Return whether a vector of this size should stay sparse, with so many values other than 0."""
    return size >= WIDE and present <= size * _DENSEST


def where_taken(features: Columns, module: Any, vectors: Collection[str]) -> Columns:
    """Return features with the dtype "sparse" for the columns that a module takes as indices and values.

    These are the columns of ML vectors, shape and dtype left open, for which its forward method has two
    arguments: ``<name>_indices`` and ``<name>_values`` for a feature by name; for one by position two whose
    names end in ``indices`` and ``values``, such as those of :class:`sparkdl.nn.SparseLinear`.
    """
    arguments = _arguments(module)

    def fits(column: Any, pair: Sequence[str]) -> bool:
        known = as_column(column)
        is_open = known.dtype is None and known.shape is None
        stem = pair[0].removesuffix("indices") if pair else ""
        return known.name in vectors and is_open and list(pair) == [f"{stem}indices", f"{stem}values"]

    def taken(column: ColumnLike, pair: Sequence[str]) -> ColumnLike:
        return Column(as_column(column).name, dtype=SPARSE) if fits(column, pair) else column

    if isinstance(features, Mapping):
        return {
            name: taken(column, names_of(name) if set(names_of(name)) <= set(arguments) else ())
            for name, column in features.items()
        }
    if isinstance(features, str | Column) or not isinstance(features, Sequence):
        return taken(features, arguments[:2])
    found: list[ColumnLike] = []
    place = 0
    for column in features:
        found.append(taken(column, arguments[place : place + 2]))
        place += 2 if fits(column, arguments[place : place + 2]) else 1
    return found


def _arguments(module: Any) -> list[str]:
    """Return the names of the arguments of a module's forward method, also of one that is not built yet."""
    while isinstance(module, partial):
        module = module.func
    forward = getattr(module, "forward", None)
    if not callable(forward):
        return []
    names = list(inspect.signature(forward).parameters)
    return names[1:] if isinstance(module, type) else names


def hint(name: str, rows: Array) -> None:
    """Warn of dense rows of a column of ML vectors that are wide, and nearly all zeros."""
    size = int(rows.shape[1])
    if is_wide(size, int(np.count_nonzero(rows, axis=1).max())):
        warnings.warn(
            f"column {name!r}: its vectors have {size:,} values, nearly all 0, and take "
            f"{size * rows.itemsize >> 10:,} KiB per row as dense tensors. A module that takes indices and "
            "values, such as sparkdl.nn.SparseLinear or SparseMLP, gets them sparse",
            UserWarning,
            stacklevel=2,
        )


def spread(features: Columns | None) -> Columns | None:
    """Return features with two columns in place of each sparse one.

    By position the values follow the indices; by name they are ``<name>_indices`` and ``<name>_values``.
    """

    def parts(column: Any) -> list[Any]:
        if not isinstance(column, Column) or column.dtype != SPARSE:
            return [column]
        return [replace(column, dtype=part) for part in PARTS]

    if features is None or isinstance(features, str):
        return features
    if isinstance(features, Mapping):
        named: dict[str, Any] = {}
        for name, column in features.items():
            found = parts(column)
            names = [name] if len(found) == 1 else names_of(name)
            named |= dict(zip(names, found, strict=True))
        return named
    if isinstance(features, Sequence):
        return [part for column in features for part in parts(column)]
    found = parts(features)
    return found if len(found) > 1 else features


def names_of(name: str) -> list[str]:
    """Return the arguments for the indices and values of a sparse input of this name."""
    return [f"{name}_indices", f"{name}_values"]


def check_dense(column: Column, role: str) -> None:
    """Check that a column is not sparse."""
    if column.dtype in (SPARSE, *PARTS):
        raise ConfigError(f"{role} column {column.name!r}: only features can be sparse; leave its dtype out")


def planned(plan: ColumnPlan) -> ColumnPlan:
    """Return the plan of a column as it is stored: one whose dtype is one of :data:`PARTS` changes."""
    if plan.dtype not in PARTS:
        return plan
    return replace(plan, dtype=PARTS[plan.dtype], part=plan.dtype, ragged=True, fill=0.0)


def passed(plans: Sequence[ColumnPlan]) -> tuple[list[int], tuple[int, ...]]:
    """Say which plans' columns are passed, each sparse one once, and for each plan its place among these."""
    chosen: list[int] = []
    places: list[int] = []
    known: dict[str, int] = {}
    for n, plan in enumerate(plans):
        if plan.part and plan.source in known:
            places.append(known[plan.source])
            continue
        places.append(len(chosen))
        chosen.append(n)
        if plan.part:
            known[plan.source] = places[-1]
    return chosen, tuple(places)


def are_vectors(rows: Any) -> bool:
    """Return whether rows are ML vectors or scipy's sparse ones; of a list the first not null counts."""
    one = next((row for row in rows if not is_null(row)), None) if isinstance(rows, list) else rows
    return type(one).__module__.startswith(("pyspark.ml.linalg", "scipy.sparse"))


def of_row(value: Any, where: str) -> tuple[Array, Array]:
    """Return indices and values of an ML vector, a row of scipy, a dense array, or such a pair."""
    if is_null(value):
        raise null_error(where)
    if isinstance(value, tuple) and len(value) == 2:
        found = np.asarray(value[0]), np.asarray(value[1])
        if found[0].ndim == 1 and found[0].shape == found[1].shape and found[0].dtype.kind in "iu":
            return _narrow(found[0], where), _single(found[1], where)
    elif hasattr(value, "tocsr"):
        row = value.tocsr()
        return _narrow(row.indices, where), _single(row.data, where)
    elif not callable(getattr(value, "indices", len)):  # that of a tensor is a method
        return np.asarray(value.indices, np.int32), _single(np.asarray(value.values), where)
    else:
        array = np.asarray(value.toArray() if hasattr(value, "toArray") else value)
        if array.ndim == 1 and array.dtype.kind in "biuf":
            return np.arange(len(array), dtype=np.int32), _single(array, where)
    raise DataError(
        f"{where}: found {value!r:.100}; expected an ML vector, a sparse row of scipy, an array, or a tuple "
        "of indices and values",
        code="data-type",
    )


def _narrow(indices: Array, where: str) -> Array:
    """Return indices as int32, to which larger ones would be others."""
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) <= _LARGEST:
        found = next(int(index) for index in indices if not 0 <= int(index) <= _LARGEST)
        raise DataError(f"{where}: index {found}; expected one from 0 to {_LARGEST}", code="data-value")
    return indices.astype(np.int32)


def _single(values: Array, where: str) -> Array:
    """Return values as float32, which finite ones must fit."""
    found, lost = cast(values, np.float32, copy=True)
    if lost is not None:
        raise DataError(f"{where}: {values[lost][0]} does not fit float32", code="data-value")
    return found


def of_rows(rows: Any, where: str) -> tuple[list[Array], list[Array]]:
    """Return indices and values of several rows, a list or a matrix; DataError names one that is neither."""
    each = [rows.getrow(n) if hasattr(rows, "getrow") else rows[n] for n in range(_count(rows))]
    pairs = [of_row(row, f"{where}, row {n}") for n, row in enumerate(each)]
    return [indices for indices, _ in pairs], [values for _, values in pairs]


def _count(rows: Any) -> int:
    shape = getattr(rows, "shape", None)
    return int(shape[0]) if shape else len(rows)
