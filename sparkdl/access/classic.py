"""Access to the cluster of a classic session: RDDs of raw frames."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

from sparkdl import session
from sparkdl._spark import session as private
from sparkdl._spark.frames import JavaObject, Task, key, only_column
from sparkdl._spark.jobs import FrameJobs, SubmittedJob
from sparkdl._spark.tasks import broadcast_id
from sparkdl.access.base import DYNAMIC, LOCALITY, Access, BytesRef, Published
from sparkdl.access.in_pieces import RESULT, STATE, ChainTask, InPieces
from sparkdl.access.stages import ShuffledSync, StageChain, staying
from sparkdl.session import Executors
from sparkdl.wire.frame import Parts

T = TypeVar("T")

_INLINE_BYTES = 64 << 10
"""Up to this size bytes travel inside the stage's task binary, which Spark broadcasts anyway; a
broadcast of their own would cost more than it saves."""

_confs = threading.Lock()
_ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_POOL = "spark.scheduler.pool"


@dataclass(frozen=True, slots=True)
class ClassicAccess(Access):
    """See :class:`sparkdl.access.base.Access`."""

    jobs: FrameJobs  # over RDDs of frames
    spark: SparkSession  # the session, where something needs one
    longest_chain: int = 50  # a job of more stages saves nothing more, and takes longer to undo
    has_sync: ClassVar[bool] = True  # an iteration may be the two sides of a shuffle
    tells_executors: ClassVar[bool] = True  # Spark's driver knows them

    @classmethod
    def of(cls, spark: SparkSession) -> ClassicAccess:
        """Return the access to a session's cluster."""
        session.check_alive(spark)
        return cls(FrameJobs(spark.sparkContext), spark)

    @property
    def moves_tasks(self) -> bool:
        """Whether Spark places tasks by the bytes that they fetch."""
        return self.conf(LOCALITY, "true") == "true" and not self.jobs.sc.master.startswith("local[")

    # -- the session ----------------------------------------------------------------------------

    def check(self) -> None:
        """Warn once about confs that the session lacks."""
        session.check(self.spark)

    def check_alive(self) -> None:
        """Check that the session can still run jobs."""
        session.check_alive(self.spark)

    def check_files(self) -> None:
        """Check that sparkdl's own files on the executors need not be encrypted."""
        session.check_encryption(self.spark)

    def is_alive(self) -> bool:
        """Return whether the session can run jobs."""
        return private.is_alive(self.jobs.sc)

    def conf(self, name: str, default: str = "") -> str:
        """Return a conf of the session; sparkdl's own as they are now, for others count when Spark starts."""
        found: str | None = self.spark.conf.get(name, None) if name.startswith(session.OWN) else None
        if found is None:
            found = private.confs(self.jobs.sc).get(name, default)
        return found

    def executors(self) -> Executors:
        """Return what the cluster offers, after waiting for executors that are still starting."""
        return session.executors(self.spark)

    def count_executors(self, *, look: bool = False) -> int:
        """Return how many executors there are now."""
        return self.jobs.count_executors()

    def ask_for_executors(self, total: int) -> bool:
        """Ask the cluster for so many executors; return whether it takes such wishes."""
        return self.jobs.ask_for_executors(total)

    def profile(self, threads: int) -> JavaObject | None:
        """Return the resource profile that gives a task its threads' cores, where Spark can.

        It keeps Spark from putting two multi-threaded tasks on one executor. ``None`` in local mode,
        with dynamic allocation (a profile would ask for executors of its own, away from the data), and
        where the cluster manager does not support task profiles.
        """
        sc = self.jobs.sc
        conf = private.confs(sc)
        master = str(sc.master)
        local = master.startswith("local") and not master.startswith("local-cluster")
        if threads == 1 or local or conf.get(DYNAMIC, "false") == "true":
            return None
        # A profile does not inherit what the confs ask for.
        return private.task_profile(sc, threads, task_resource_amounts(dict(conf.getAll())))

    # -- sending --------------------------------------------------------------------------------

    def send(self, data: bytes | bytearray, *, inline: bool = False) -> Published:
        """Make bytes available to all tasks, inside the tasks or as a broadcast."""
        if inline and len(data) <= _INLINE_BYTES:
            return Published(BytesRef(data))
        broadcast = self.jobs.sc.broadcast(data)
        return Published(BytesRef(None, broadcast_id(broadcast)), broadcast)

    # -- rows -----------------------------------------------------------------------------------

    def planned_once(self, df: DataFrame) -> DataFrame:
        """Return a DataFrame whose plan is made now and for all jobs that come."""
        return private.planned_once(self.spark, df)

    def written(self, df: DataFrame, write: Any, rows_per_batch: int) -> JavaObject:
        """Return the frames that a ``mapInArrow`` function makes of a DataFrame's rows."""
        made = df.mapInArrow(write, "token binary")
        with _rows_per_batch(self.spark, rows_per_batch):
            return only_column(made)

    def scattered(self, pieces: Iterable[tuple[int, bytes | Parts]], partitions: int) -> JavaObject:
        """Return frames of the driver in so many partitions."""
        # Through a shuffle: what the driver holds travels with every task that descends from it, which
        # would be each task of each iteration.
        jobs = self.jobs
        return jobs.values(jobs.shuffle(jobs.scattered(pieces), partitions))

    def one_task(self, data: bytes | Parts) -> JavaObject:
        """Return a frame of the driver's, for a job of one task."""
        return self.jobs.values(self.jobs.scattered([(0, data)]))

    # -- tasks ----------------------------------------------------------------------------------

    def inherited(self, run: Callable[..., T]) -> Callable[..., T]:
        """Return a function that runs in another thread with the confs of jobs of this one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it would say that tags are not among them
            found: Callable[..., T] = inheritable_thread_target(run)
            return found

    @contextmanager
    def in_pool(self, name: str) -> Iterator[None]:
        """Let the jobs of this thread run in a pool of a fair scheduler."""
        sc = self.jobs.sc
        sc.setLocalProperty(_POOL, name)
        try:
            yield
        finally:
            sc.setLocalProperty(_POOL, None)  # which unsets it

    def describe(self, description: str | None) -> None:
        """Name the jobs that follow in the Spark UI."""
        self.jobs.describe(description)

    def stage(
        self, parent: JavaObject, task: Task, broadcasts: Sequence[Any] = (), *, profile: Any = None
    ) -> JavaObject:
        """Return the frames that a task makes of each partition."""
        return self.jobs.stage(parent, task, broadcasts, profile=profile)

    def collect(self, frames: JavaObject) -> list[bytes]:
        """Run a job and return its frames."""
        return self.jobs.collect(frames)

    def run_everywhere(
        self, task: Task, broadcasts: Sequence[Any] = (), *, times: int = 1, profile: Any = None
    ) -> list[bytes]:
        """Run a task on each executor, and return its frames."""
        return self.jobs.run_everywhere(task, broadcasts, times=times, profile=profile)

    def begin_everywhere(self, task: Task, *, times: int = 1, profile: Any = None) -> SubmittedJob:
        """Begin to run a task on each executor."""
        return self.jobs.begin_everywhere(task, times=times, profile=profile)

    def chain(self, tokens: JavaObject, ranks: int, profile: Any) -> StageChain:
        """Return what runs chains of stages over a partition store."""
        gathers = self.conf(DYNAMIC, "false") != "true"  # else Spark asks for executors only while tasks wait
        return StageChain(self.jobs, tokens, ranks, profile, gathers=gathers)

    def sync(
        self,
        tokens: JavaObject,
        task: ChainTask,
        shards: int,
        state: JavaObject | None,
        broadcasts: Sequence[Any],
        profile: Any,
    ) -> ShuffledSync:
        """Return what runs an iteration as jobs of its own."""
        scattered = self.jobs.stage(tokens, InPieces(task), broadcasts, profile=profile)
        return ShuffledSync(self.jobs, scattered, shards, state, broadcasts)

    # -- keeping --------------------------------------------------------------------------------

    def persist(self, frames: JavaObject) -> None:
        """Keep frames on the executors that compute them."""
        self.jobs.persist(frames)

    def unpersist(self, frames: JavaObject, *, wait: bool = False) -> None:
        """Stop keeping frames."""
        self.jobs.unpersist(frames, wait=wait)

    def forget(self, frames: JavaObject, partition: int) -> None:
        """Let the next job compute a partition again."""
        self.jobs.forget(frames, partition)

    def run_on_persisted(self, persisted: JavaObject, task: Task) -> list[bytes]:
        """Run a task over the pieces that a chain has left."""
        return self.jobs.collect(self.jobs.stage(staying(self.jobs, persisted), task))

    def keep(self, pieces: Iterable[tuple[int, bytes | Parts]], shards: int, shard_bytes: int) -> JavaObject:
        """Let pieces of the driver's stay as if a chain had left them."""
        jobs = self.jobs
        shuffled = jobs.shuffle(jobs.scattered(pieces), shards)
        persisted = jobs.stage(jobs.values(shuffled), _keep, preserves_partitioning=True)
        jobs.persist_replicated(persisted, shard_bytes)
        try:
            jobs.collect(jobs.select(jobs.keyed(persisted), RESULT, drop=[STATE]))
        except BaseException:
            jobs.unpersist(persisted)
            raise
        finally:
            jobs.release_shuffle(shuffled)
        return persisted


def task_resource_amounts(conf: Mapping[str, str]) -> dict[str, float]:
    """Return the amount of each resource, such as ``gpu``, that ``spark.task.resource.*`` asks for."""
    found = {_AMOUNT.fullmatch(name): value for name, value in conf.items()}
    return {match[1]: float(value) for match, value in found.items() if match is not None}


_AMOUNT = re.compile(r"spark\.task\.resource\.(.+)\.amount")


def _keep(_: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Let frames that arrive in pieces stay with their shard, in these."""
    for piece in pieces:
        yield key(STATE)
        yield piece


@contextmanager
def _rows_per_batch(spark: SparkSession, rows: int) -> Iterator[None]:
    """Bound Arrow batches while a plan is made; one thread at a time, for the session's confs are shared."""
    with _confs:
        before = spark.conf.get(_ROWS_PER_BATCH, None)
        spark.conf.set(_ROWS_PER_BATCH, str(rows))
        try:
            yield
        finally:
            if before is None:
                spark.conf.unset(_ROWS_PER_BATCH)
            else:
                spark.conf.set(_ROWS_PER_BATCH, before)
