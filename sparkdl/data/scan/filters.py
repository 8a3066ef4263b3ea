"""The rows of a scan that a filter and deletion vectors leave: found once, the same in each epoch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.scan.files import File
from sparkdl.data.scan.listing import Listing
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.wire.frame import Array

ROLE = "filter column"
"""What errors call a column that only the filter reads."""

_SELECTED = "selected"
_NULL = "null/"
_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """An expression of Arrow, true of the rows that are left."""

    expression: Any
    columns: tuple[str, ...]  # that it reads
    schema: pa.Schema  # of all columns that there are, those that folders give among them
    # whether row groups are passed over of which footers say that it is true of none of their rows
    skips: bool

    @classmethod
    def of(cls, given: Any, listing: Listing) -> Self:
        """Check what a caller has given: an expression, or tuples as pandas takes them."""
        folders = listing.values.schema
        names = listing.schema.names
        in_files = [f for f in listing.schema if f.name not in folders.names and names.count(f.name) == 1]
        schema = pa.schema([*in_files, *folders])
        expression = _expression(given)
        try:
            schema.empty_table().filter(expression)
        except _ERRORS as error:
            listed = ", ".join(f"{field.name} ({field.type})" for field in schema)
            raise ConfigError(
                f"filter={expression!s:.200}: {str(error).partition(' in ')[0]:.200}. Expected a comparison, "
                f"true or false, of columns that there are: {listed:.1000}"
            ) from error
        columns = tuple(_needed(expression, schema, schema.names))
        # Footers have no word of NaN, of which a comparison may be true that is true of no other value.
        floating = any(pa.types.is_floating(schema.field(name).type) for name in columns)
        return cls(expression, columns, schema, not floating)

    def left(
        self,
        system: Any,
        file: File,
        values: pa.RecordBatch,
        nullable: Mapping[int, Collection[str]],
        selected: Array | None = None,
    ) -> list[Array]:
        """Tell for each row group of a file which of its rows are left; called in a task.

        ``values`` are of the columns that its folders give, in one row. ``nullable`` columns must have no
        null in a row that is left, or DataError names the group. ``selected`` is from the file's first row
        on; of rows after its end all are left.
        """
        from pyarrow import dataset

        there = [_is(field, column[0]) for field, column in zip(values.schema, values.columns, strict=True)]
        known = reduce(and_, there) if there else None
        fragment = dataset.ParquetFileFormat().make_fragment(file.path, system, known)
        only = self.expression if self.skips else None
        parts = {part.row_groups[0].id: part for part in fragment.split_by_row_group(only, self.schema)}
        masks, first = [], 0
        for number, names in nullable.items():
            mask = np.ones(fragment.metadata.row_group(number).num_rows, np.bool_)
            if selected is not None:
                some = selected[first : first + len(mask)]
                mask[: len(some)] = some
            first += len(mask)
            where = f"row group {number} of {file.path}"
            masks.append(
                self._of_group(parts[number], mask, where, names) if number in parts else mask & False
            )
        return masks

    def _of_group(self, fragment: Any, mask: Array, where: str, nullable: Collection[str]) -> Array:
        wanted = {_SELECTED: self.expression} | {_NULL + name: pc.field(name).is_null() for name in nullable}
        try:
            found = fragment.scanner(schema=self.schema, columns=wanted, use_threads=False).to_table()
        except (OSError, *_ERRORS) as error:
            raise DataError(f"{where} cannot be read: {error}", code="data-source") from error
        left: Array = mask & found[_SELECTED].combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)
        for name in nullable:
            nulls = int((left & found[_NULL + name].to_numpy()).sum())
            if nulls:
                raise DataError(
                    f"column {name!r}: {nulls} nulls among the {left.sum()} rows that are left of {where}; "
                    "drop or fill nulls first, or let the filter do without them: "
                    f"~pyarrow.compute.field({name!r}).is_null()",
                    code="data-null",
                )
        return left


def _expression(given: Any) -> Any:
    if isinstance(given, pc.Expression):
        return given
    from pyarrow import parquet

    try:
        return parquet.filters_to_expression(given)
    except (ValueError, TypeError, AttributeError, *_ERRORS) as error:
        raise ConfigError(
            f"filter={given!r:.200}: {error}. Expected an expression, such as pyarrow.compute.field('age') > "
            "17, or tuples that all must be true, such as [('age', '>', 17), ('state', 'in', ['NY', 'CA'])]"
        ) from error


def _needed(expression: Any, schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Return which of some columns an expression reads; halves of them at a time, for there may be many."""
    without = set(names)
    try:
        pa.schema([each for each in schema if each.name not in without]).empty_table().filter(expression)
    except _ERRORS:
        if len(names) == 1:
            return list(names)
        half = len(names) // 2
        return [*_needed(expression, schema, names[:half]), *_needed(expression, schema, names[half:])]
    return []


def _is(field: pa.Field, value: pa.Scalar) -> Any:
    """Return the expression that a column has one value."""
    return pc.field(field.name) == value if value.is_valid else pc.field(field.name).is_null()


@dataclass(frozen=True, slots=True, eq=False)
class SelectedRows:
    """The rows of row groups that are left."""

    rows: Array  # for each row group, how many it has in its file
    # for each the first of its bytes among the bits; -1 for one whose rows are all left, or none
    begins: Array
    bits: Array  # one for each row of the others, in bytes of eight rows; each begins with a byte

    @classmethod
    def of(cls, rows: Array, left: Array, bits: Array) -> Self:
        """Join what tasks have found: rows of row groups, how many are left, and the bits."""
        some = (left > 0) & (left < rows)
        ends = np.cumsum(np.where(some, -(-rows // 8), 0))
        begins = np.where(some, np.concatenate([[0], ends[:-1]]), -1)
        return cls(rows, begins, bits)

    def mask(self, group: int) -> Array | None:
        """Tell which rows of a row group are left; ``None`` if all are."""
        begin, rows = int(self.begins[group]), int(self.rows[group])
        if begin < 0:
            return None
        return np.unpackbits(self.bits[begin : begin - (-rows // 8)], count=rows).view(np.bool_)

    def place(self, group: int, row: int) -> int:
        """Return the place in its row group of a row that is left."""
        mask = self.mask(group)
        return row if mask is None else int(np.flatnonzero(mask)[row])


def bits_of(masks: Sequence[Array]) -> Array:
    """Return the bits of row groups of which some rows are left."""
    some = [np.packbits(mask) for mask in masks if 0 < mask.sum() < len(mask)]
    return np.concatenate(some) if some else np.empty(0, np.uint8)
