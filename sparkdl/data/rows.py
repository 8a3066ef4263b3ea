"""Rows of a partition, wherever they are: in the partition store, or in the files of a scan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sparkdl.data.columns import TablePlan
from sparkdl.data.scan.reader import reader_of
from sparkdl.data.store.partition import Token, read_positions, read_rows
from sparkdl.wire.frame import Array


class Rows(Protocol):
    """Some rows of a partition, in some order."""

    def __len__(self) -> int: ...

    @property
    def numbers(self) -> Array:
        """Their numbers: in the partition's files, or over all files of a scan."""
        ...

    def read(self, keys: Collection[str] | None = None) -> dict[str, Array]:
        """Gather them into fresh arrays by column key, of all columns or of some.

        Raises:
            PartitionMissingError: if the partition's files are not on this executor.
            DataError: if rows of a scan cannot be read, or cannot become tensors.
        """
        ...

    def positions(self) -> Array:
        """Return where they stand in the source: int64 numbers that grow in its order.

        Raises:
            PartitionMissingError: if the partition's files are not on this executor.
        """
        ...

    def name(self, plan: TablePlan, index: int) -> str:
        """Name one of them, for errors."""
        ...

    def file_bytes(self) -> int:
        """Return the bytes of a table's files that this process has begun to read since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of the partition store; see :class:`Rows`."""

    token: Token
    numbers: Array

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, keys: Collection[str] | None = None) -> dict[str, Array]:
        """See :class:`Rows`."""
        return read_rows(self.token, self.numbers, keys)

    def positions(self) -> Array:
        """See :class:`Rows`."""
        return read_positions(self.token, self.numbers)

    def name(self, plan: TablePlan, index: int) -> str:
        """See :class:`Rows`."""
        return plan.name_row(int(read_positions(self.token, self.numbers[index : index + 1])[0]))

    def file_bytes(self) -> int:
        """See :class:`Rows`; the store's own files do not count."""
        return 0


def in_order(token: Token, first: int = 0, size: int | None = None) -> Rows:
    """Return so many rows of a partition from a row on, of all of them by default; fewer at the end.

    Raises:
        PartitionMissingError: if it is a scan whose manifest is not on this executor.
    """
    stop = token.rows if size is None else min(first + size, token.rows)
    if token.scan:
        return reader_of(token).in_order(token.first + first, token.first + stop)
    return StoredRows(token, np.arange(first, stop))
