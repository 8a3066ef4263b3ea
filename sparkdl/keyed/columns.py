"""The rows of a table and the optimizer's state of each, by place: 0, 1, and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.keyed.entries import ROW
from sparkdl.wire.arrays import InMemory
from sparkdl.wire.frame import Array

BLOCK = 1 << 17
"""What is done with all rows is done with so many at a time."""

Places = NDArray[np.int64]

FreshState = Callable[[Array], Mapping[str, Array]]
"""From new rows to the optimizer's state of each."""


class Held:
    """Columns in memory, an array for each."""

    def __init__(self, width: int, dtype: Any) -> None:
        self._width = width
        self._size = 0
        self._columns = {ROW: InMemory(dtype, width)}

    @property
    def names(self) -> Sequence[str]:
        """Names of the columns."""
        return list(self._columns)

    def __len__(self) -> int:
        """Return how many places there are."""
        return self._size

    def read(self, places: Places, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Return copies of columns, all by default."""
        # Twice as fast as an index, which takes any shape.
        return {name: self._columns[name].values.take(places, 0) for name in names or self._columns}

    def write(self, places: Places, columns: Mapping[str, Array]) -> None:
        """Write columns."""
        for name, values in columns.items():
            self._columns[name].values[places] = values

    def add(self, columns: Mapping[str, Array]) -> None:
        """Write columns at new places behind the others; other columns are zero there."""
        begin, self._size = self._size, self._size + len(columns[ROW])
        for name, values in columns.items():
            own = self._columns.setdefault(name, InMemory(values.dtype, self._width))
            own.grow(self._size)
            own.values[begin : self._size] = values
        for own in self._columns.values():
            own.grow(self._size)

    def extend(self, fresh: FreshState) -> None:
        """Have further columns, of which a function tells the values from the rows."""
        for places in blocks(self._size) if self._size else [np.arange(0)]:
            for name, values in fresh(self._columns[ROW].values[places]).items():
                own = self._columns.setdefault(name, InMemory(values.dtype, self._width))
                own.grow(self._size)
                own.values[places] = values

    def shorten(self, size: int) -> None:
        """Have no more places than these; memory that is mostly unused is given back."""
        self._size = size
        for own in self._columns.values():
            if 4 * size < len(own.values):
                own.values = own.values[: 2 * size].copy()


def blocks(size: int, at_once: int = 0) -> Iterator[Places]:
    """Yield all places, so many at a time."""
    step = at_once or BLOCK
    for begin in range(0, size, step):
        yield np.arange(begin, min(size, begin + step))
