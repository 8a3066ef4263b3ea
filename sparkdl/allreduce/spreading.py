"""Spreading of the same partitions over executors that have come, after a loss has crowded the others."""

from __future__ import annotations

from sparkdl.allreduce.cluster import Cluster
from sparkdl.allreduce.transport.base import Transport
from sparkdl.data.store.build import PartitionStore

_MOST_MOVES = 3  # so often partitions are moved after a loss: an executor may be there, and take no tasks


class Spreading:
    """Moves partitions to executors that have come back, so that ranks do not take turns for ever."""

    def __init__(self, cluster: Cluster, store: PartitionStore, transport: Transport) -> None:
        self._cluster = cluster
        self._store = store
        self._transport = transport
        self._moves_left = _MOST_MOVES if store.is_crowded else 0
        self._looked_at: int | None = None
        self._counted = store.executors.count

    def lost(self) -> None:
        """Note that an executor was lost, or that tasks went elsewhere."""
        self._moves_left, self._looked_at = _MOST_MOVES, None

    def move(self) -> bool:
        """Let partitions move, if executors have come since the last look; return whether any do."""
        # Between two groups a loss goes unnoticed: those that are left have the model and build the rows. Nor
        # does a task go to executors that come, while others have the rows.
        before, self._counted = self._counted, self._cluster.count_executors()
        if self._counted != before:
            self.lost()
        if self._transport.is_joining:
            self.lost()  # one may have come in place of another
            return False
        if not self._moves_left:
            return False
        count = self._cluster.count_executors(look=True)
        if count == self._looked_at:
            return False
        self._looked_at = count
        crowded = self._cluster.crowded(self._store)
        for partition in crowded:
            self._transport.forget(partition)
        if crowded:
            self._moves_left, self._looked_at = self._moves_left - 1, None
        elif count >= self._store.executors.count:
            self._moves_left = 0
        return bool(crowded)
