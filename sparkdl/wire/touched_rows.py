"""Flat vectors without the rows of embedding tables that a batch has not touched.

A *packed* vector holds the covered elements one after the other: all of a module's parameters, but only some
rows of its tables. Its layout is that of the same module with smaller tables, so all code for flat vectors
also works on packed vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkdl.wire.frame import Array, under
from sparkdl.wire.layout import ParamLayout, TensorPlace, lay_out

Indices = NDArray[np.integer]
_PREFIX = "rows."


class _Piece(NamedTuple):
    """A stretch of a vector, and which of its rows, of ``width`` elements, are covered: ``None`` for all."""

    window: slice
    rows: Indices | None
    width: int


@dataclass(frozen=True, eq=False)
class TouchedRows:
    """The elements of a flat vector that are covered."""

    layout: ParamLayout  # layout of the whole vector
    # of each table, by its index in the layout, the rows that are covered, ascending. All other parameters
    # are covered as a whole.
    tables: Mapping[int, Indices]

    @classmethod
    def read(cls, layout: ParamLayout, arrays: Mapping[str, Array]) -> TouchedRows:
        """Read what :attr:`arrays` has put among the arrays of a frame."""
        return cls(layout, {int(index): rows for index, rows in under(_PREFIX, arrays).items()})

    @staticmethod
    def names(name: str) -> bool:
        """Return whether an array of a frame is one of :attr:`arrays`."""
        return name.startswith(_PREFIX)

    @property
    def arrays(self) -> dict[str, Indices]:
        """The rows by name, to travel in a frame."""
        return {f"{_PREFIX}{index}": _narrow(rows) for index, rows in self.tables.items()}

    @property
    def is_whole(self) -> bool:
        """Whether all elements are covered."""
        return not self.tables

    @cached_property
    def packed(self) -> ParamLayout:
        """Layout of the packed vector."""
        if self.is_whole:
            return self.layout
        entries = [
            (
                spec.name,
                (len(self.tables[i]), *spec.shape[1:]) if i in self.tables else spec.shape,
                spec.group,
            )
            for i, spec in enumerate(self.layout.params)
        ]
        return replace(self.layout, params=lay_out(entries))

    def take(self, values: Array, start: int = 0) -> Array:
        """Return the covered elements of a vector, or of a stretch of one."""
        if self.is_whole:
            return values
        parts = []
        for window, rows, width in self._pieces(start, start + len(values)):
            part = values[window]
            parts.append(part if rows is None else part.reshape(-1, width)[rows].reshape(-1))
        return np.concatenate(parts) if parts else values[:0]

    def put(self, packed: Array, values: Array, start: int = 0) -> None:
        """Write covered elements, as from :meth:`take`, into a vector, or into a stretch of one.

        ``values`` are its elements from ``start`` on; those that are not covered do not change.
        """
        if self.is_whole:
            np.copyto(values, packed)
            return
        position = 0
        for window, rows, width in self._pieces(start, start + len(values)):
            part = values[window]
            count = len(part) if rows is None else len(rows) * width
            new = packed[position : position + count]
            if rows is None:
                part[:] = new
            else:
                part.reshape(-1, width)[rows] = new.reshape(-1, width)
            position += count

    def _pieces(self, start: int, stop: int) -> Iterator[_Piece]:
        """Cut a stretch at the tables in it."""
        begin = start
        for index in sorted(self.tables):
            spec = self.layout.params[index]
            first, last = max(spec.offset, start), min(spec.end, stop)
            if first >= last:
                continue
            if begin < first:
                yield _Piece(slice(begin - start, first - start), None, 1)
            rows, width = self.tables[index], row_width(spec)
            window = slice(first - start, last - start)
            if (first, last) == (spec.offset, spec.end):
                yield _Piece(window, rows, width)
            else:  # rows may be cut in two
                local = np.array([first, last]) - spec.offset
                near = rows[slice(*np.searchsorted(rows, [local[0] // width, -(-local[1] // width)]))]
                elements = (near.astype(np.int64)[:, None] * width + np.arange(width)).reshape(-1)
                inside = elements[slice(*np.searchsorted(elements, local))]
                yield _Piece(window, inside - local[0], 1)
            begin = last
        if begin < stop:
            yield _Piece(slice(begin - start, stop - start), None, 1)


def _narrow(rows: Indices) -> Indices:
    small = not len(rows) or int(rows[-1]) <= np.iinfo(np.uint32).max
    return rows.astype(np.uint32) if small else rows


def row_width(spec: TensorPlace) -> int:
    """Return the elements of a row."""
    return spec.numel // max(1, spec.shape[0])


def nonzero_rows(table: Array) -> Indices:
    """Return the rows of a floating-point table, shape (rows, width), that have anything but zeros."""
    # As integers, by one operation per row: comparing each element takes several times as long.
    bits = np.bitwise_or.reduce(table.view(f"u{table.itemsize}"), axis=1)
    return np.flatnonzero(bits << 1)  # without the sign of a negative zero


def union(layout: ParamLayout, given: Sequence[TouchedRows]) -> TouchedRows:
    """Return all elements that any of some sets of rows covers."""
    common = set.intersection(*(set(rows.tables) for rows in given)) if given else set()
    tables: dict[int, Indices] = {}
    for index in common:
        mask = np.zeros(layout.params[index].shape[0], np.bool_)
        for rows in given:
            mask[rows.tables[index]] = True
        tables[index] = np.flatnonzero(mask)
    return TouchedRows(layout, tables)
