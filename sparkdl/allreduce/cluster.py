"""The engine's view of a cluster: send bytes, keep the state of shards, clean up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparkdl._spark.errors import tolerated
from sparkdl._spark.processes import LINGER_SECONDS, EndSurplus
from sparkdl.access.base import Access, Persisted, Published, described
from sparkdl.allreduce.persisted import PersistedShards
from sparkdl.allreduce.transport.base import Transport
from sparkdl.data.store.build import PartitionStore
from sparkdl.data.store.partition import Token
from sparkdl.wire import frame
from sparkdl.wire.frame import Packed

_MOST_MOVES = 3  # so often partitions are moved after a loss: an executor may be there, and take no tasks


def in_excess(places: Sequence[str], executors: int) -> list[int]:
    """Return the partitions that executors hold beyond an even share."""
    share = -(-len(places) // max(executors, 1))
    held: Counter[str] = Counter()
    excess = []
    for partition, place in enumerate(places):
        held[place] += 1
        if held[place] > share:
            excess.append(partition)
    return excess


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the engine asks of a session's cluster."""

    access: Access
    profile: Any = None

    def publish(self, data: Packed, *, inline: bool = True) -> Published:
        """Make bytes available to all tasks; few ones inside the tasks themselves if ``inline``."""
        # As one piece of memory: what is inside a task is pickled with it.
        whole = data if isinstance(data, bytes | bytearray) else frame.join(data)
        return self.access.send(whole, inline=inline)

    def shards(self, count: int, shard_bytes: int) -> PersistedShards:
        """Return access to the state of so many shards, each of so many bytes of weights."""
        return PersistedShards(self.access, count, shard_bytes)

    def unpersist(self, persisted: Persisted) -> None:
        """Stop keeping the state of the shards."""
        self.access.unpersist(persisted)

    def one_process(self, slots: int) -> bool:
        """Return whether the same Python process runs all tasks of an executor of so many slots."""
        # Of two attempts of a task at a time one is killed, and its process with it.
        return slots == 1 and self._reuses and self.access.conf("spark.speculation", "false") == "false"

    def end_surplus_processes(self, slots: int, seen: int | None = None) -> None:
        """Let no executor have more Python processes than slots: each takes its turn, and knows little.

        What a process holds in memory is of no use to the next task then, each has a copy of the model, and
        those that were found to exchange directly are not the ones that run the ranks. ``seen`` are processes
        of the executor that has most; ``None`` looks, if that takes no time.
        """
        access = self.access
        if not self._reuses or (seen is None and not access.tells_executors):
            return
        doing = "sparkdl: look for surplus Python processes"
        with described(access, doing), tolerated("processes were not looked for"):
            run = partial(access.run_everywhere, profile=self.profile)
            if seen is None:
                seen = max(map(int, run(EndSurplus(slots))), default=1)
            if seen > slots:
                run(EndSurplus(slots, LINGER_SECONDS if slots > 1 else 0.0), times=seen)

    @property
    def _reuses(self) -> bool:
        return self.access.conf("spark.python.worker.reuse", "true") == "true"

    def count_executors(self, *, look: bool = False) -> int:
        """Return how many executors there are; ``look`` where that may cost a job."""
        return self.access.count_executors(look=look)

    def crowded(self, store: PartitionStore) -> list[int]:
        """Return the partitions that executors hold beyond an even share now."""
        with described(self.access, "sparkdl: see where partitions are"):
            tokens = [Token.from_frame(frame.unpack(data)) for data in self.access.collect(store.tokens)]
        return in_excess([token.executor for token in tokens], self.access.count_executors())

    def delete_files(self, fit_id: str, forget: Callable[[], None]) -> bool:
        """Let executors forget a fit; return whether they have. What those that fail keep goes with them."""
        doing, failed = "sparkdl: delete the run's files", f"files of fit {fit_id} were not deleted"
        deleted = False
        with described(self.access, doing), tolerated(failed):
            # On all of them: where tasks have run in the course of losses, no RDD knows any more.
            self.access.run_on_executors(forget, profile=self.profile)
            deleted = True
        return deleted  # noqa: RET504


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
