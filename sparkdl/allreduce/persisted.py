"""The state of the shards between groups: persisted by Spark on two executors, fetched, given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from operator import eq, itemgetter

import numpy as np

from sparkdl import frame
from sparkdl._spark.errors import is_job_failure, task_error
from sparkdl._spark.frames import JavaObject, key
from sparkdl._spark.jobs import FrameJobs
from sparkdl.allreduce.in_pieces import MORE, ChainTask, InPieces, InRounds
from sparkdl.allreduce.kept import Kept
from sparkdl.allreduce.messages import Average, Master
from sparkdl.frame import Array, Buffer, Frame
from sparkdl.pieces import PIECE_BYTES, cut, joined, joined_by_source

RESULT = 0
"""Key of the frames that go to the driver."""
STATE = 1
"""Key of the frames that stay."""

_COLLECTED_BYTES = 256 << 20
"""One job sends the driver about so many bytes of the shards' state."""

_RESULT_BYTES = 64 << 20
"""One task sends at most so many bytes: the executor's heap holds a task's result up to three times."""


@dataclass(frozen=True, slots=True)
class PersistedShards:
    """Reads and makes the persisted RDDs of the shards' state.

    Attributes:
        jobs: Spark access.
        shards: number of shards.
        shard_bytes: how long a shard of the weights is, about.
    """

    jobs: FrameJobs
    shards: int
    shard_bytes: int

    def fetch(self, kept: JavaObject | None) -> Kept:
        """Copy the state of the shards, but for their weights, to the driver.

        Raises:
            TaskError: if it cannot be read.
        """
        if kept is None:
            return []
        found: Kept = [[] for _ in range(self.shards)]
        for index, data in self._collect(kept, _is_not_master, "fetch the optimizer's state"):
            found[index].append(bytes(data))
        return found

    def average(self, kept: JavaObject) -> Array | None:
        """Fetch the averaged weights; ``None`` if there are none yet.

        Raises:
            TaskError: if they cannot be read.
        """
        return self._vector(kept, Average.kind, "fetch the averaged weights")

    def weights(self, kept: JavaObject) -> Array:
        """Fetch the weights.

        Raises:
            TaskError: if they cannot be read.
        """
        found = self._vector(kept, Master.kind, "fetch the weights")
        assert found is not None
        return found

    def run(self, kept: JavaObject, task: ChainTask, doing: str) -> list[Frame]:
        """Run a task over the state of each shard, and return the frames that it yields.

        Raises:
            TaskError: if it fails.
        """
        jobs = self.jobs
        with self._reading(doing):
            stage = jobs.stage(self._staying(kept), InPieces(task, token=False, keyed=False))
            return [frame.unpack(data) for data in joined(jobs.collect(stage))]

    def restore(self, kept: Kept) -> JavaObject:
        """Let frames from :meth:`fetch` stay with the shards again.

        Raises:
            TaskError: if the job fails.
        """
        jobs = self.jobs
        pieces = ((n, piece) for n, frames in enumerate(kept) for piece in cut(n, frames))
        shuffled = jobs.shuffle(jobs.scattered(pieces), self.shards)
        restored = jobs.stage(jobs.values(shuffled), _keep, preserves_partitioning=True)
        jobs.persist_replicated(restored, self.shard_bytes)
        jobs.describe("sparkdl: restore the optimizer's state")
        try:
            jobs.collect(jobs.select(jobs.keyed(restored), RESULT, drop=[STATE]))
        except Exception as error:
            jobs.unpersist(restored)
            if is_job_failure(error):
                raise task_error(error, "restoring the optimizer's state") from None
            raise
        finally:
            jobs.describe(None)
            jobs.release_shuffle(shuffled)
        return restored

    def _vector(self, kept: JavaObject, kind: str, doing: str) -> Array | None:
        parts = [
            frame.unpack(data).arrays["params"] for _, data in self._collect(kept, partial(eq, kind), doing)
        ]
        return np.concatenate(parts) if parts else None

    def _staying(self, kept: JavaObject) -> JavaObject:
        return staying(self.jobs, kept)

    def _collect(
        self, kept: JavaObject, wanted: Callable[[str], bool], doing: str
    ) -> list[tuple[int, Buffer]]:
        """Return the frames of some kinds that stay with the shards, each after its shard, in their order."""
        jobs, most = self.jobs, min(_COLLECTED_BYTES // self.shards, _RESULT_BYTES)
        step = max(1, most // PIECE_BYTES)
        pieces: list[bytes] = []
        with self._reading(doing):
            for first in count(0, step):
                in_round = InRounds(wanted, first, first + step)
                received = jobs.collect(jobs.stage(self._staying(kept), in_round))
                pieces += [data for data in received if data != MORE]
                if MORE not in received:
                    break
        return sorted(joined_by_source(pieces), key=itemgetter(0))

    @contextmanager
    def _reading(self, doing: str) -> Iterator[None]:
        """Name a job that reads the state of the shards, and its failure."""
        self.jobs.describe(f"sparkdl: {doing}")
        try:
            yield
        except Exception as error:
            if is_job_failure(error):
                raise task_error(error, f"trying to {doing}") from None
            raise
        finally:
            self.jobs.describe(None)


def staying(jobs: FrameJobs, keyed_frames: JavaObject) -> JavaObject:
    """Return the frames that an earlier job left for the shards."""
    return jobs.select(jobs.keyed(keyed_frames), STATE, drop=[RESULT])


def _is_not_master(kind: str) -> bool:
    return kind != Master.kind


def _keep(_: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Let frames that arrive in pieces stay with their shard, in these."""
    for piece in pieces:
        yield key(STATE)
        yield piece
