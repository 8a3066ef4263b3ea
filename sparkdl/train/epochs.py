"""The rows of a run's epochs, over one layout of partitions or several."""

from __future__ import annotations

from sparkdl.data import sampler
from sparkdl.data.dataset import Dataset
from sparkdl.data.sampler import Place
from sparkdl.data.store.build import PartitionStore
from sparkdl.data.streams import FROM_THE_BEGINNING, Since
from sparkdl.train.state import TrainState


class Epochs:
    """Tells how many rows and iterations an epoch has, and moves its rows to other partitions.

    Where rows were dealt, batches do not depend on the partitions: a move changes nothing but these.

    Args:
        data: the rows; their store is built.

    Attributes:
        store: the partition store in use.
        since: from where on the current epoch has its number of iterations.
    """

    def __init__(self, data: Dataset) -> None:
        self._data = data
        self.store: PartitionStore = data.store()
        self.since = FROM_THE_BEGINNING

    def steps(self, batch_size: int) -> int:
        """Return the iterations of a whole epoch."""
        return sampler.iterations_per_epoch(self._total, batch_size)

    def place(self, state: TrainState, steps: int) -> Place:
        """Return the place of the iteration after a state."""
        return Place(state.epoch, state.step, steps, self._total, self.since)

    def rows(self, state: TrainState, steps: int) -> int:
        """Return the rows of an iteration over all partitions; an epoch of many may have some of none."""
        if not self.store.is_dealt:
            return sampler.global_rows(self.store.rows, steps, state.step)
        first, end = self.since.slots(self._total, steps, state.step)
        return end - first

    def begin(self) -> None:
        """Begin an epoch that visits all rows."""
        self.since = FROM_THE_BEGINNING

    def go_on(self, since: Since) -> None:
        """Go on with an epoch that has its number of iterations from some place on."""
        self.since = since

    def may_move(self, state: TrainState) -> bool:
        """Return whether rows can move now: those that were not dealt can between two epochs only."""
        return self.store.is_dealt or not state.step

    def move(self, partitions: int) -> None:
        """Lay the rows out over another number of partitions.

        Raises:
            DataError: if they are others than before; nothing has changed then.
            TaskError: if it fails; likewise.
        """
        with self._data.repartitioned(partitions) as store:
            pass
        self.store = store

    def rebatch(self, state: TrainState, steps: int, batch_size: int) -> int:
        """Return the iterations that the epoch has in all if it goes on with another batch size."""
        slot, _ = self.since.slots(self._total, steps, state.step)
        self.since = Since(state.step, slot)
        return state.step + max(1, sampler.iterations_per_epoch(self._total - slot, batch_size))

    @property
    def _total(self) -> int:
        return sum(self.store.rows)
