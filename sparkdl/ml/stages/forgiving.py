"""Scoring that goes on where a row cannot be scored: its outputs are null, and a field says why."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sparkdl.exceptions import DataError, ModelError, SparkdlError

logger = logging.getLogger("sparkdl")
ERROR = "error"
"""The field of the struct with the reason."""


class Scoring(Protocol):
    """What scores the rows of a task."""

    @property
    def arity(self) -> int:
        """Number of columns that are passed."""

    @property
    def names(self) -> tuple[str, ...]:
        """Fields of the struct that is returned."""

    def score(self, batches: Iterator[pa.Array | tuple[pa.Array, ...]], at: int = 0) -> Iterator[pa.Array]:
        """Return structs for batches of which the first begins at row ``at``."""

    def nulls(self, rows: int) -> pa.Array:
        """Return the structs of rows that have none."""


@dataclass(frozen=True, slots=True)
class ForgivingScorer:
    """Scores the rows of a task, also beside rows that cannot be scored.

    A batch that fails is cut in halves until the rows at fault are alone.
    """

    scorer: Scoring

    @property
    def arity(self) -> int:
        """Number of columns that are passed."""
        return self.scorer.arity

    @property
    def names(self) -> tuple[str, ...]:
        """Fields of the struct that is returned."""
        return (*self.scorer.names, ERROR)

    def __call__(self, batches: Iterator[pa.Array | tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """Score batches; errors as of :meth:`score`."""
        return self.score(batches)

    def score(self, batches: Iterator[pa.Array | tuple[pa.Array, ...]], at: int = 0) -> Iterator[pa.Array]:
        """Score batches of a task, of which the first begins at row ``at``.

        Raises ModelError if the module fails on each row of the first batch: then no row is to blame.
        """
        seen = failed = 0
        for batch in batches:
            arrays = batch if isinstance(batch, tuple) else (batch,)
            if not len(arrays[0]):
                continue
            parts, errors = self._answered(arrays, at + seen)
            wrong = [error for error in errors if error is not None]
            if (
                not at
                and failed == seen
                and len(wrong) == len(errors) > 1
                and isinstance(wrong[0], ModelError)
            ):
                raise wrong[0]
            seen, failed = seen + len(errors), failed + len(wrong)
            reasons = pa.array([None if error is None else str(error) for error in errors], pa.string())
            fields = [*pa.concat_arrays(parts).flatten(), reasons]
            yield pa.StructArray.from_arrays(fields, self.names)
        if failed:
            logger.warning("%d of %d rows could not be scored; the column of errors says why", failed, seen)

    def _answered(
        self, arrays: Sequence[pa.Array], at: int
    ) -> tuple[list[pa.Array], list[SparkdlError | None]]:
        """Return the structs of rows, and for each row the error or ``None``."""
        rows = len(arrays[0])
        try:
            return list(self.scorer.score(iter([tuple(arrays)]), at)), [None] * rows
        except (DataError, ModelError) as error:
            if rows == 1:
                return [self.scorer.nulls(1)], [error]
        half = rows // 2
        first, first_errors = self._answered([column.slice(0, half) for column in arrays], at)
        second, second_errors = self._answered([column.slice(half) for column in arrays], at + half)
        return first + second, first_errors + second_errors
