"""Where an epoch is, also after its rows have moved to other partitions.

An iteration's rows follow from the partition's number of rows and the position in the epoch alone. When
the partitions change in the middle of an epoch, that no longer tells which rows were visited. The rows
that were not are then named by their positions in the source, which no move changes: a *cursor*. The
rest of the epoch visits these rows, each once, and the next epoch is an ordinary one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sparkdl.access.base import BytesRef
from sparkdl.compute.spec import FitSpec
from sparkdl.data import sampler, store
from sparkdl.data.store import Token
from sparkdl.frame import Array


@dataclass(frozen=True, slots=True)
class CursorRef:
    """What a task needs to find the rows that are left of an epoch.

    Attributes:
        first: iteration of the epoch from which on it counts.
        left: the positions of the rows that are left.
    """

    first: int
    left: BytesRef

    def rows(self, token: Token) -> Array:
        """Return the numbers of a partition's rows that are left, ascending.

        Raises:
            PartitionMissingError: if the partition's files are not on this executor.
        """
        return _rows_among(self.left, token)


@lru_cache(maxsize=4)
def _rows_among(sent: BytesRef, token: Token) -> Array:
    left = np.frombuffer(sent.read(), np.int64)
    found = store.read_positions(token, np.arange(token.rows))
    return np.flatnonzero(np.isin(found, left, assume_unique=True))


@dataclass(frozen=True, slots=True)
class Place:
    """An iteration's place in its epoch.

    Attributes:
        epoch: completed epochs.
        step: completed iterations of the epoch.
        steps: iterations of the epoch.
        cursor: the rows that remain in the epoch, if rows have moved.
    """

    epoch: int
    step: int
    steps: int
    cursor: CursorRef | None = None

    def rows(self, token: Token, spec: FitSpec) -> Array:
        """Return the row numbers that a partition contributes to this iteration."""
        return self._pick(sampler.rows_of, token, spec)

    def rows_left(self, token: Token, spec: FitSpec) -> Array:
        """Return the row numbers that it contributes to this iteration and those after it."""
        return self._pick(sampler.rows_left, token, spec)

    def _pick(self, which: Any, token: Token, spec: FitSpec) -> Array:
        first = self.cursor.first if self.cursor is not None else 0
        among = self.cursor.rows(token) if self.cursor is not None else None
        rows: Array = which(
            token.rows if among is None else len(among),
            self.steps - first,
            self.step - first,
            seed=spec.seed,
            epoch=self.epoch,
            partition=token.partition,
            shuffle=spec.shuffle,
        )
        return rows if among is None else among[rows]
