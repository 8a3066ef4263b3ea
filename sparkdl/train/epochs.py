"""The rows of a run's epochs, over one layout of partitions or several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparkdl.access.base import Access, Published
from sparkdl.compute.worker import FitRef
from sparkdl.data import sampler
from sparkdl.data.dataset import Dataset
from sparkdl.data.sampler import Place
from sparkdl.data.store.built import PartitionStore
from sparkdl.exceptions import ConfigError
from sparkdl.train.cursor import Cursor, Unvisited
from sparkdl.train.passes.sweep import sweep
from sparkdl.train.state import TrainState
from sparkdl.wire.frame import Array


class Epochs:
    """Tells how many rows and iterations an epoch has, and moves its rows to other partitions.

    Args:
        access: the cluster.
        fit: how tasks find the fixed part of the fit.
        sent: the fixed part.
        data: the rows; their store is built.
        name: name of the run, for the Spark UI.

    Attributes:
        store: the partition store in use.
        cursor: the rows that remain in the current epoch, if rows have moved since it began.
    """

    def __init__(self, access: Access, fit: FitRef, sent: Published, data: Dataset, name: str) -> None:
        self._access = access
        self._fit = fit
        self._sent = sent
        self._data = data
        self._name = name
        self._cursors: list[Cursor] = []
        self._counts: Sequence[int] = data.store().rows
        self.store: PartitionStore = data.store()
        self.cursor: Cursor | None = None

    def steps(self, batch_size: int) -> int:
        """Return the iterations of a whole epoch."""
        return sampler.iterations_per_epoch(sum(self.store.rows), batch_size)

    def rows(self, state: TrainState, steps: int) -> int:
        """Return the rows of an iteration over all partitions; an epoch of many may have some of none."""
        first = self.cursor.first if self.cursor is not None else 0
        return sampler.global_rows(self._counts, steps - first, state.step - first)

    def begin(self) -> None:
        """Begin an epoch that visits all rows."""
        self.cursor, self._counts = None, self.store.rows

    def move(self, state: TrainState, steps: int, partitions: int) -> None:
        """Lay the rows out over another number of partitions; the epoch goes on with those it has left.

        Raises:
            TaskError: if it fails; nothing has changed then.
        """
        left = self._unvisited(state, steps) if state.step else None
        before = self.store, self.cursor, self._counts
        try:
            with self._data.repartitioned(partitions) as self.store:
                self._counts = self.store.rows
                if left is not None:
                    self.go_on(state.step, left)
        except BaseException:
            self.store, self.cursor, self._counts = before
            raise
        if left is None:
            self.begin()

    def go_on(self, first: int, positions: Array) -> None:
        """Let the rest of an epoch, from an iteration on, visit the rows at these positions.

        Raises:
            ConfigError: if the source has no such rows.
        """
        self.cursor = cursor = Cursor(self._access, first, positions)
        self._cursors.append(cursor)
        found = [len(p) for p in self._positions(Place(0, first, first + 1, cursor.ref))]
        if sum(found) != len(positions):
            raise ConfigError(
                f"of {len(positions)} rows that are left of the epoch, {sum(found)} are in the source: its "
                "rows or their order have changed"
            )
        self._counts = found

    def steps_left(self, state: TrainState, batch_size: int) -> int:
        """Return the iterations that the epoch has in all if it goes on with a batch size."""
        return state.step + max(1, sampler.iterations_per_epoch(sum(self._counts), batch_size))

    def recover(
        self, state: TrainState, steps: int, rows: Sequence[int], first: int, left: Array | None
    ) -> None:
        """Find out which rows a run with other partitions has left of its epoch, and go on with these.

        Args:
            state: where it was.
            steps: iterations of its epoch.
            rows: rows of each of its partitions.
            first: iteration from which on ``left`` counts.
            left: positions of the rows that the epoch had left then, if they had moved before.

        Raises:
            ConfigError: if the source no longer gives these partitions.
        """
        now = len(self.store.partitions)
        with self._data.repartitioned(len(rows)) as self.store:
            found = list(self.store.rows)
        if found != list(rows):
            with self._data.repartitioned(now) as self.store:
                pass
            raise ConfigError(
                f"resume: in the middle of an epoch the run had partitions of {list(rows)} rows; the source "
                f"gives {found} now, so which rows the epoch has left is unknown. Resume from a checkpoint "
                "at the end of an epoch, or with the same source"
            )
        if left is not None:
            self.go_on(first, left)
        self.move(state, steps, now)

    def release(self) -> None:
        """Delete all files on the executors, except the store."""
        # Not before: there are few, and what groups have left on the executors names them.
        for cursor in self._cursors:
            cursor.release()
        self.cursor, self._cursors = None, []

    def _unvisited(self, state: TrainState, steps: int) -> Array:
        cursor = self.cursor.ref if self.cursor is not None else None
        return np.concatenate(self._positions(Place(state.epoch, state.step, steps, cursor)))

    def _positions(self, place: Place) -> list[Array]:
        """Return the positions of the rows that are left from a place on, by partition."""
        cursor = self.cursor.broadcasts if self.cursor is not None else ()
        frames = sweep(
            self._access,
            self._data,
            Unvisited(self._fit, place),
            [*self._sent.broadcasts, *cursor],
            describe=f"sparkdl fit {self._name}: rows left of the epoch",
            doing="looking for the rows left of the epoch",
        )
        return [message.arrays["positions"] for message in frames]
