"""The state of the shards between groups, which the cluster keeps: fetched, given back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from operator import eq, itemgetter, ne

import numpy as np

from sparkdl._spark.errors import explained
from sparkdl.access.base import Access, Persisted, described
from sparkdl.access.in_pieces import MORE, ChainTask, InPieces, InRounds, heap_of, made_in_rounds, per_round
from sparkdl.allreduce.messages import Average, Master, OwnedRows
from sparkdl.allreduce.shard_states import ShardStates
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Buffer, Frame
from sparkdl.wire.pieces import cut, joined, joined_by_source


@dataclass(frozen=True, slots=True)
class PersistedShards:
    """Reads the shards' state, and gives it back."""

    access: Access  # the cluster
    shards: int  # how many
    shard_bytes: int  # how long a shard of the weights is, about

    def fetch(self, persisted: Persisted | None, *, rows: bool = True) -> ShardStates:
        """Copy the state of the shards, but for their weights, to the driver."""
        if persisted is None:
            return []
        found: ShardStates = [[] for _ in range(self.shards)]
        wanted = partial(ne, Master.kind) if rows else _is_state
        for index, data in self._collect(persisted, wanted, "fetch the optimizer's state"):
            found[index].append(bytes(data))
        return found

    def average(self, persisted: Persisted) -> Array | None:
        """Fetch the averaged weights; ``None`` if there are none yet."""
        return self._vector(persisted, Average.kind, "fetch the averaged weights")

    def weights(self, persisted: Persisted) -> Array:
        """Fetch the weights."""
        found = self._vector(persisted, Master.kind, "fetch the weights")
        assert found is not None
        return found

    def rows(self, persisted: Persisted, changed: ChainTask | None = None) -> list[Frame]:
        """Fetch the rows of embedding variables, shard by shard."""
        doing = "fetch the rows of embedding variables"
        found = self._collect(persisted, partial(eq, OwnedRows.kind), doing, changed)
        return [frame.unpack(data) for _, data in found]

    def run(self, persisted: Persisted, task: ChainTask, doing: str) -> list[Frame]:
        """Run a task over the state of each shard, and return the frames that it yields."""
        with described(self.access, f"sparkdl: {doing}"), explained(f"trying to {doing}"):
            found = self.access.run_on_persisted(
                persisted, InPieces(task, token=False, keyed=False, in_files=True)
            )
            return [frame.unpack(data) for data in joined(found)]

    def restore(self, states: ShardStates) -> Persisted:
        """Let frames from :meth:`fetch` stay with the shards again."""
        pieces = ((n, piece) for n, frames in enumerate(states) for piece in cut(n, frames))
        doing = "sparkdl: restore the optimizer's state"
        with described(self.access, doing), explained("restoring the optimizer's state"):
            return self.access.keep(pieces, self.shards, self.shard_bytes)

    def _vector(self, persisted: Persisted, kind: str, doing: str) -> Array | None:
        parts = [
            frame.unpack(data).arrays["params"]
            for _, data in self._collect(persisted, partial(eq, kind), doing)
        ]
        return np.concatenate(parts) if parts else None

    def _collect(
        self, persisted: Persisted, wanted: Callable[[str], bool], doing: str, made: ChainTask | None = None
    ) -> list[tuple[int, Buffer]]:
        """Return the frames of some kinds that stay with the shards, each after its shard, in their order."""
        local = self.access.conf("spark.master").startswith("local[")
        heap = self.access.conf(f"spark.{'driver' if local else 'executor'}.memory", "1g")
        step = per_round(self.shards, heap_of(heap))
        pieces: list[bytes] = []
        with described(self.access, f"sparkdl: {doing}"), explained(f"trying to {doing}"):
            for first in count(0, step):
                in_round = InRounds(wanted, first, first + step)
                task = in_round if made is None else partial(made_in_rounds, made, in_round)
                received = self.access.run_on_persisted(persisted, task)
                pieces += [data for data in received if data != MORE]
                if MORE not in received:
                    break
        return sorted(joined_by_source(pieces), key=itemgetter(0))


def _is_state(kind: str) -> bool:
    return kind not in (Master.kind, OwnedRows.kind)
