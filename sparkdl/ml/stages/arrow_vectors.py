"""ML vectors in Arrow: as Spark passes them, as requests have them, and as lists of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.columns import ColumnPlan
from sparkdl.data.convert import RowName
from sparkdl.exceptions import DataError
from sparkdl.wire.frame import Array

VECTOR = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)
"""The form in which Spark keeps ML vectors: type 0 is sparse, 1 dense."""

_PAIR = "an object with 'indices' and 'values', or a list of numbers"
_LARGEST = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class ArrowVectors:
    """Vectors of which none is null."""

    sparse: Array  # which of them are
    sizes: Array  # of the sparse ones, -1 where it is not known
    indices: pa.ListArray  # of the values of the sparse ones
    values: pa.ListArray  # of all

    @classmethod
    def read(cls, plan: ColumnPlan, column: pa.Array, name: RowName) -> Self:
        """Read lists of numbers, structs of indices and values, or what Spark makes of ML vectors.

        DataError is raised for another type, or names the row whose indices and values do not fit.
        """
        kind, rows = column.type, len(column)
        if is_list(kind) and is_numeric(kind):
            none = pa.nulls(rows, pa.list_(pa.int32()))
            values = column.cast(pa.list_(pa.float64()))
            return cls(np.zeros(rows, np.bool_), np.full(rows, -1), none, values)
        if not pa.types.is_struct(kind) or not {"indices", "values"} <= {field.name for field in kind}:
            raise wrong_type(plan, kind)
        fields = {field.name: column.field(field.name) for field in kind}
        narrow = fields["indices"].type == pa.list_(pa.int32())
        indices = fields["indices"] if narrow else _lists(plan, fields["indices"], pa.int64())
        values = _lists(plan, fields["values"], pa.float64())
        sparse = _integers(fields.get("type"), rows) != 1
        sizes = _integers(fields.get("size"), rows)
        _check_pairs(plan, indices, values, sparse, name)
        _check_values(plan, values, name)
        _check_indices(plan, indices, sizes, name)
        return cls(sparse, sizes, indices.cast(pa.list_(pa.int32())), values)

    def part(self, part: str) -> pa.ListArray:
        """Return the indices or the values; all values of a dense vector, also those that are 0."""
        if part == "sparse.values":
            return self.values
        if self.sparse.all():
            return self.indices
        counts, places = self._places()
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(places.astype(np.int32)))

    def dense(self, plan: ColumnPlan, name: RowName) -> pa.ListArray:
        """Return all vectors as lists of doubles."""
        if not self.sparse.any():
            return self.values
        counts, places = self._places()
        planned = None if plan.shape is None else prod(plan.shape)
        known = self.sizes if planned is None else np.where(self.sizes < 0, planned, self.sizes)
        sizes = np.where(self.sparse, known, counts)
        if (sizes < 0).any():
            row = int(np.flatnonzero(sizes < 0)[0])
            raise DataError(f"{plan.words}, {name(row)}: its size is not known", code="data-shape")
        if planned is not None and (sizes != planned).any():
            row = int(np.flatnonzero(sizes != planned)[0])
            raise DataError(
                f"{plan.words}, {name(row)}: vector of {sizes[row]} values, expected {planned}",
                code="data-shape",
            )
        _check_indices(plan, self.indices, sizes, name)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        at = np.repeat(starts[:-1], counts) + places
        values = self.values.flatten().to_numpy(zero_copy_only=False)
        flat = np.bincount(at, values, int(starts[-1]))  # values of one place add up, as in scipy
        return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), pa.array(flat))

    def _places(self) -> tuple[Array, Array]:
        """Return how many values each vector has, and the index of each value in its vector."""
        counts = _counts(self.values)
        places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        given = self.indices.filter(pa.array(self.sparse)).flatten()
        places[np.repeat(self.sparse, counts)] = given.to_numpy(zero_copy_only=False)
        return counts, places


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is that of lists of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_numeric(kind: pa.DataType) -> bool:
    """Return whether a type is that of numbers or of (nested) lists of them."""
    while is_list(kind):
        kind = kind.value_type
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(check(kind) for check in (*checks, pa.types.is_null))


def in_words(plan: ColumnPlan) -> str:
    """Return shape and dtype of a column, in words."""
    if plan.part:
        return "sparse vector"
    shape = ["any"] if plan.ragged else list(map(str, plan.shape or ()))
    dtype = plan.dtype or "numbers"
    return f"{dtype}[{', '.join(shape)}]" if shape else dtype


def wrong_type(plan: ColumnPlan, kind: pa.DataType) -> DataError:
    """Return the error for a column of another type."""
    wanted = f"{in_words(plan)}: {_PAIR}" if plan.part else in_words(plan)
    return DataError(f"column {plan.source!r} has type {kind}: expected {wanted}", code="data-type")


def _integers(found: pa.Array | None, rows: int) -> Array:
    """Return the values of a field of structs, -1 where there are none."""
    if found is None or not pa.types.is_integer(found.type):
        return np.full(rows, -1)
    values: Array = found.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return values


def _lists(plan: ColumnPlan, found: pa.Array, kind: pa.DataType) -> pa.ListArray:
    try:
        return found.cast(pa.list_(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise wrong_type(plan, found.type) from None


def _check_pairs(plan: ColumnPlan, indices: pa.Array, values: pa.Array, sparse: Array, name: RowName) -> None:
    """Check that each sparse vector has as many indices as values."""
    counts = [_counts(lists) for lists in (indices, values)]
    wrong = np.flatnonzero((counts[1] < 0) | (sparse & (counts[0] != counts[1])))
    if len(wrong):
        row = int(wrong[0])
        lengths = [max(0, int(count[row])) for count in counts]
        raise DataError(
            f"column {plan.source!r}, {name(row)}: {lengths[0]} indices and {lengths[1]} values; expected "
            f"{_PAIR}",
            code="data-shape",
        )


def _check_values(plan: ColumnPlan, values: pa.Array, name: RowName) -> None:
    flat = values.flatten()
    if flat.null_count:
        null = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))
        row = int(pc.list_parent_indices(values).to_numpy()[null[0]])
        raise DataError(f"column {plan.source!r}, {name(row)}: null among the values", code="data-null")


def _check_indices(plan: ColumnPlan, indices: pa.Array, sizes: Array, name: RowName) -> None:
    """Check that indices are integers from 0, and below the size where that is known."""
    flat = indices.flatten().fill_null(-1).to_numpy(zero_copy_only=False)
    smallest = sizes.min(initial=_LARGEST)
    if not len(flat) or (flat.min() >= 0 and flat.max() < smallest):  # as Spark's own, told at once
        return
    above = np.repeat(np.where(sizes < 0, _LARGEST, sizes - 1), np.maximum(_counts(indices), 0))
    bad = np.flatnonzero((flat < 0) | (flat > above))
    if len(bad):
        row = int(pc.list_parent_indices(indices).to_numpy()[bad[0]])
        below = f" below the size, {sizes[row]}" if sizes[row] >= 0 else ""
        raise DataError(
            f"column {plan.source!r}, {name(row)}: an index that is no integer from 0{below}",
            code="data-value",
        )


def _counts(lists: pa.Array) -> Array:
    """Return the length of each list, -1 where it is null."""
    found: Array = pc.list_value_length(lists).fill_null(-1).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)
