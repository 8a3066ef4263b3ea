"""The engine's view of a cluster: send bytes, keep the state of shards, clean up."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from sparkdl import frame
from sparkdl._spark.errors import is_job_failure
from sparkdl._spark.frames import JavaObject
from sparkdl._spark.jobs import FrameJobs
from sparkdl._spark.tasks import broadcast_id
from sparkdl.allreduce.in_pieces import ChainTask
from sparkdl.allreduce.kept import Kept
from sparkdl.allreduce.persisted import PersistedShards
from sparkdl.compute.start import BytesRef
from sparkdl.compute.worker import forget_fit
from sparkdl.frame import Array, Frame, Packed

_INLINE_BYTES = 64 << 10
"""Up to this size bytes travel inside the stage's task binary, which Spark broadcasts anyway; a
broadcast of their own would cost more than it saves."""

_log = logging.getLogger("sparkdl")


@dataclass(frozen=True, slots=True)
class Published:
    """Bytes that tasks can read.

    Attributes:
        ref: by which a task finds them.
        broadcast: the PySpark broadcast behind it, if any.
    """

    ref: BytesRef
    broadcast: Any = None

    @property
    def broadcasts(self) -> list[Any]:
        """The broadcasts that a stage must name to use them."""
        return [] if self.broadcast is None else [self.broadcast]

    def release(self) -> None:
        """Delete them everywhere; only when no task can need them again."""
        if self.broadcast is not None:
            self.broadcast.destroy()


class Shards(Protocol):
    """The state of the shards between groups, on two executors each."""

    def fetch(self, kept: Any) -> Kept:
        """Copy the state of the shards, but for their weights, to the driver."""
        ...

    def average(self, kept: Any) -> Array | None:
        """Fetch the averaged weights; ``None`` if there are none yet."""
        ...

    def weights(self, kept: Any) -> Array:
        """Fetch the weights."""
        ...

    def run(self, kept: Any, task: ChainTask, doing: str) -> list[Frame]:
        """Run a task over the state of each shard, and return the frames that it yields."""
        ...

    def restore(self, kept: Kept) -> Any:
        """Let frames from :meth:`fetch` stay with the shards again."""
        ...


class Cluster(Protocol):
    """What the engine asks of a cluster."""

    def publish(self, data: Packed, *, inline: bool = True) -> Published:
        """Make bytes available to all tasks; few ones inside the tasks themselves if ``inline``."""
        ...

    def shards(self, count: int, shard_bytes: int) -> Shards:
        """Return access to the state of so many shards, each of so many bytes of weights."""
        ...

    def unpersist(self, kept: Any) -> None:
        """Stop keeping the state of the shards."""
        ...

    def one_process(self, slots: int) -> bool:
        """Return whether the same Python process runs all tasks of an executor of so many slots."""
        ...

    def delete_files(self, fit_id: str) -> None:
        """Delete a fit's files on the executors; persisted state stays."""
        ...


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A classic Spark session, whose executors are reached by RDDs.

    Attributes:
        jobs: Spark access.
        profile: resource profile of the tasks.
    """

    jobs: FrameJobs
    profile: JavaObject | None = None

    def publish(self, data: Packed, *, inline: bool = True) -> Published:
        """Make bytes available to all tasks, inside the tasks or as a broadcast."""
        # As one piece of memory: what is inside a task is pickled with it.
        whole = data if isinstance(data, bytes | bytearray) else frame.join(frame.parts(data))
        if inline and len(whole) <= _INLINE_BYTES:
            return Published(BytesRef(whole))
        broadcast = self.jobs.sc.broadcast(whole)
        return Published(BytesRef(None, broadcast_id(broadcast)), broadcast)

    def shards(self, count: int, shard_bytes: int) -> PersistedShards:
        """Return access to the state of so many shards."""
        return PersistedShards(self.jobs, count, shard_bytes)

    def unpersist(self, kept: JavaObject) -> None:
        """Stop keeping the state of the shards."""
        self.jobs.unpersist(kept)

    def one_process(self, slots: int) -> bool:
        """Return whether the same Python process runs all tasks of an executor of so many slots."""
        get = self.jobs.sc.getConf().get
        reused = get("spark.python.worker.reuse", "true") == "true"
        # Of two attempts of a task at a time one is killed, and its process with it.
        return slots == 1 and reused and get("spark.speculation", "false") == "false"

    def delete_files(self, fit_id: str) -> None:
        """Delete a fit's files; what executors that fail keep goes with them."""
        jobs = self.jobs
        jobs.describe("sparkdl: delete the run's files")
        try:
            # On all of them: where tasks have run in the course of losses, no RDD knows any more.
            jobs.run_on_executors(partial(forget_fit, fit_id), profile=self.profile)
        except Exception as error:
            if not is_job_failure(error):
                raise
            _log.debug("files of fit %s were not deleted: %s", fit_id, error)
        finally:
            jobs.describe(None)
