"""Arrow columns, of a task of a transform or of a request, turned into what a module takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.collate import check_mask
from sparkdl.data.columns import ColumnPlan, Structure
from sparkdl.data.convert import RowName, from_arrow
from sparkdl.data.ragged import kind_of
from sparkdl.exceptions import DataError
from sparkdl.ml.stages.arrow_vectors import ArrowVectors, is_list, is_numeric, wrong_type
from sparkdl.table.encoding import TableEncoding
from sparkdl.wire.frame import Array


class ArrowColumns:
    """Converts Arrow columns to arrays; the first rows decide on shapes that are not known.

    ``places`` are for each plan which of the columns is its own, ``at`` is the number of the first row. With
    ``keep``, rows with null are left out. ``plans`` has what the rows so far have told.
    """

    def __init__(
        self,
        plans: tuple[ColumnPlan, ...],
        structure: Structure,
        *,
        keep: bool,
        name: RowName,
        places: tuple[int, ...] = (),
        at: int = 0,
    ) -> None:
        self.plans = plans
        self._structure = structure
        self._places = places or range(len(plans))
        self._keep = keep
        self._name = name
        self._seen = at

    def convert(self, columns: Sequence[pa.Array]) -> tuple[Array, dict[str, Array] | None]:
        """Return which rows are valid, and the arrays of these; ``None`` if no row is."""
        columns = [columns[place] for place in self._places]
        valid = np.ones(len(columns[0]), np.bool_)
        for plan, column in zip(self.plans, columns, strict=True):
            null = null_rows(column)
            if null is not None:
                if not self._keep:
                    raise DataError(
                        null_message(plan.source, self._row(int(np.flatnonzero(null)[0]))), code="data-null"
                    )
                valid &= ~null
        arrays: dict[str, Array] | None = None
        if valid.all():
            arrays = self._arrays(columns, np.arange(len(valid)))
        elif valid.any():
            chosen = pa.array(valid)
            arrays = self._arrays([column.filter(chosen) for column in columns], np.flatnonzero(valid))
        else:  # a column of a wrong type is one whatever its rows are
            for plan, column in zip(self.plans, columns, strict=True):
                _converted(plan, column.slice(0, 0), self._row)
        self._seen += len(valid)
        return valid, arrays

    def _arrays(self, columns: Sequence[pa.Array], rows: Array) -> dict[str, Array]:
        arrays = {}
        resolved = []
        for plan, column in zip(self.plans, columns, strict=True):
            plan, array = _converted(plan, column, lambda index: self._row(int(rows[index])))
            arrays[plan.key] = array
            resolved.append(plan.resolved(*kind_of(array)))
        check_mask(self._structure.assemble(arrays), lambda index: self._row(int(rows[index])))
        self.plans = tuple(resolved)
        return arrays

    def _row(self, index: int) -> str:
        return self._name(self._seen + index)


class EncodedColumns:
    """Encodes the columns of a table, in which null is a value."""

    def __init__(
        self, plans: tuple[ColumnPlan, ...], encoding: TableEncoding, columns: tuple[str, ...]
    ) -> None:
        self.plans = plans
        self._encoding = encoding
        self._columns = columns

    def convert(self, columns: Sequence[pa.Array]) -> tuple[Array, dict[str, Array] | None]:
        """Return that all rows are valid, and the arrays."""
        encoded = self._encoding.encode(dict(zip(self._columns, columns, strict=True)))
        arrays = {plan.key: encoded[plan.source] for plan in self.plans}
        return np.ones(len(columns[0]), np.bool_), arrays


def _converted(plan: ColumnPlan, column: pa.Array, name: RowName) -> tuple[ColumnPlan, Array]:
    """Convert a column; also return its plan with what its type tells."""
    kind = column.type
    if pa.types.is_null(kind) and plan.ragged:  # JSON tells no type of rows of which none has a value
        column = column.cast(pa.list_(pa.from_numpy_dtype(np.dtype(plan.dtype or "float32"))))
        kind = column.type
    if plan.part:
        column = ArrowVectors.read(plan, column, name).part(plan.part)
    elif pa.types.is_struct(kind) and not plan.ragged:
        column = ArrowVectors.read(plan, column, name).dense(plan, name)
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        plan = _with_bytes(plan)
    elif not is_numeric(kind) or (plan.ragged and not is_list(kind)):
        raise wrong_type(plan, kind)
    elif plan.ragged and pa.types.is_null(kind.value_type):  # JSON tells no type of lists without a value
        column = column.cast(pa.list_(pa.from_numpy_dtype(np.dtype(plan.dtype))))
    return plan, from_arrow(plan, column, name)


def _with_bytes(plan: ColumnPlan) -> ColumnPlan:
    if plan.shape is None or plan.ragged:
        raise DataError(
            f"column {plan.source!r} is binary: the shape of a row's tensor must be known to read its bytes",
            code="data-type",
        )
    return replace(plan, binary=True, dtype=plan.dtype or "uint8")


def null_message(column: str, row: str) -> str:
    """Return the error for null in a column."""
    return (
        f"column {column!r}, {row}: null; handleInvalid='skip' leaves such rows out, 'keep' gives null "
        "outputs for them"
    )


def null_rows(column: pa.Array) -> Array | None:
    """Tell which rows are null or have null in their (nested) list; ``None`` if none are."""
    found: Array | None = None
    if column.null_count:
        found = column.is_null().to_numpy(zero_copy_only=False)
    if is_list(column.type):
        inside = null_rows(column.flatten())
        if inside is not None:
            parents = pc.list_parent_indices(column).to_numpy()
            found = np.zeros(len(column), np.bool_) if found is None else found
            found[parents[inside]] = True
    return found
