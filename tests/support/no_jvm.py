"""A Spark session without a JVM: jobs run in this process, one task after the other.

Everything above :class:`sparkdl._spark.jobs.FrameJobs` is the real thing: Dataset, Trainer, engine, plans,
both transports, what is persisted, checkpoints. Tasks, and what they read and return, are pickled or bytes,
as on executors, so that nothing is shared that would not be shared there. DataFrames need a real session.
"""

from __future__ import annotations

import random
import sys
import traceback
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, count
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pyspark.broadcast
import pytest
import torch
from pyspark.sql import SparkSession

from sparkdl import session
from sparkdl._spark.frames import Task, keyed_by
from sparkdl._spark.jobs import FrameJobs
from sparkdl.access import classic
from sparkdl.compute import worker
from sparkdl.wire import frame

Pair = tuple[int, bytes]


def with_jvm(table: Mapping[str, Any], *names: str) -> list[Any]:
    """Return a table as parameters of a test, which is to have a JVM for those that are named."""
    marks = {name: pytest.mark.jvm if name in names else () for name in table}
    return [pytest.param(value, id=name, marks=marks[name]) for name, value in table.items()]


class JobError(Exception):
    """A job that failed, told as Py4J tells it."""

    __module__ = "pyspark.no_jvm"


class Rdd:
    """Frames, or pairs of key and frame, of each partition; computed when they are read.

    Args:
        context: the context.
        partitions: how many.
        compute: returns a partition's.
        parents: what it reads.
    """

    def __init__(
        self, context: Context, partitions: int, compute: Callable[[int], Iterable[Any]], *parents: Rdd
    ) -> None:
        self.context, self.partitions, self._parents = context, partitions, parents
        self._compute = compute
        self._blocks: dict[int, list[Any]] = {}
        self._number = next(context.ids)

    def id(self) -> int:
        return self._number

    def unpersist(self, blocking: bool) -> None:
        self.context.persisted.pop(self._number, None)
        self._blocks.clear()
        if blocking:  # nobody needs it any more: Spark's driver forgets what led to it
            self.release_shuffles()

    def forget(self, partition: int) -> None:
        self._blocks.pop(partition, None)

    def line(self) -> list[Rdd]:
        """Return these and what stages have made them of."""
        return [self, *(self._parents[0].line() if len(self._parents) == 1 else [])]

    def release_shuffles(self) -> None:
        """Delete what it has shuffled, and what led to that and is not persisted."""
        self.context.shuffles.pop(self._number, None)
        for parent in self._parents:
            if parent.id() not in self.context.persisted:
                parent.release_shuffles()

    def read(self, partition: int) -> list[Any]:
        """Return a partition; tasks may overwrite what they get."""
        if self._number not in self.context.persisted:
            return list(self._compute(partition))
        if partition not in self._blocks:
            self._blocks[partition] = list(self._compute(partition))
        return [
            data if isinstance(data, tuple) else bytes(bytearray(data)) for data in self._blocks[partition]
        ]


class Jobs:
    """Stands in for :class:`sparkdl._spark.jobs.FrameJobs`."""

    def __init__(self, sc: Context) -> None:
        self.sc = sc

    def executors(self) -> set[str]:
        """Return that there is one."""
        return {"driver"}

    def count_executors(self) -> int:
        """Return that there is one."""
        return 1

    # -- building -----------------------------------------------------------------------------

    def stage(
        self,
        parent: Rdd,
        task: Task,
        broadcasts: Sequence[Any] = (),
        *,
        preserves_partitioning: bool = False,
        profile: Any = None,
    ) -> Rdd:
        command, named = cloudpickle.dumps(task), {found.number: found for found in broadcasts}

        def compute(partition: int) -> list[bytes]:
            arrived = parent.read(partition)
            with self.sc.task(named):
                made = cloudpickle.loads(command)(partition, iter(arrived))
                return [data if isinstance(data, bytes) else frame.join(data) for data in made]

        return Rdd(self.sc, parent.partitions, compute, parent)

    def keyed(self, frames: Rdd) -> Rdd:
        def compute(partition: int) -> Iterator[Pair]:
            found = frames.read(partition)
            return ((keyed_by(name), data) for name, data in zip(found[::2], found[1::2], strict=True))

        return Rdd(self.sc, frames.partitions, compute, frames)

    def scattered(self, frames: Iterable[tuple[int, Any]]) -> Rdd:
        sent = [(n, data if isinstance(data, bytes) else frame.join(data)) for n, data in frames]
        return Rdd(self.sc, max(1, len(sent)), lambda partition: sent[partition : partition + 1])

    def select(self, pairs: Rdd, keep: int, drop: Sequence[int]) -> Rdd:
        def compute(partition: int) -> list[bytes]:
            found = pairs.read(partition)
            assert {name for name, _ in found} <= {keep, *drop}
            return [data for name, data in found if name == keep]

        return Rdd(self.sc, pairs.partitions, compute, pairs)

    def shuffle(self, pairs: Rdd, partitions: int) -> Rdd:
        """Return what arrives: from the last task first, for Spark promises no order."""
        shuffled = Rdd(self.sc, partitions, lambda n: self.sc.shuffles[shuffled.id()](n), pairs)

        def arriving(partition: int) -> list[Pair]:
            found: defaultdict[int, list[Pair]] = defaultdict(list)
            for source in reversed(range(pairs.partitions)):
                for name, data in pairs.read(source):
                    found[name % partitions].append((name, data))
            self.sc.shuffles[shuffled.id()] = lambda n: found[n]
            return found[partition]

        self.sc.shuffles[shuffled.id()] = arriving
        return shuffled

    def coalesce(self, frames: Rdd, partitions: int) -> Rdd:
        ends = [n * frames.partitions // partitions for n in range(partitions + 1)]
        return Rdd(
            self.sc,
            partitions,
            lambda partition: chain.from_iterable(map(frames.read, range(*ends[partition : partition + 2]))),
            frames,
        )

    def values(self, pairs: Rdd) -> Rdd:
        return Rdd(
            self.sc, pairs.partitions, lambda partition: [data for _, data in pairs.read(partition)], pairs
        )

    def union(self, first: Rdd, second: Rdd) -> Rdd:
        assert first.partitions == second.partitions
        return Rdd(self.sc, first.partitions, lambda n: first.read(n) + second.read(n), first, second)

    def zip(self, first: Rdd, second: Rdd) -> Rdd:
        def compute(partition: int) -> Iterator[bytes]:
            return chain.from_iterable(zip(first.read(partition), second.read(partition), strict=True))

        return Rdd(self.sc, first.partitions, compute, first, second)

    # -- running ------------------------------------------------------------------------------

    def describe(self, description: str | None) -> None:
        self.sc.description = description

    def run_map_side(self, shuffled: Rdd) -> None:
        self.sc.begin_job()
        with self.sc.own_numbers():
            shuffled.read(0)

    def collect(self, frames: Rdd) -> list[bytes]:
        self.sc.begin_job()
        with self.sc.own_numbers():
            return [data for partition in range(frames.partitions) for data in frames.read(partition)]

    def run_everywhere(
        self, task: Task, broadcasts: Sequence[Any] = (), *, times: int = 1, profile: Any = None
    ) -> list[bytes]:
        one = Rdd(self.sc, times, lambda _: [b""])
        return self.collect(self.stage(one, task, broadcasts, profile=profile))

    # -- keeping and releasing ------------------------------------------------------------------

    def persist_replicated(self, frames: Rdd, frame_bytes: int) -> None:
        self.persist(frames)

    def persist(self, frames: Rdd) -> None:
        self.sc.persisted[frames.id()] = frames

    def unpersist(self, frames: Rdd, *, wait: bool = False) -> None:
        frames.unpersist(wait)

    def release_shuffle(self, shuffled: Rdd | None) -> None:
        if shuffled is not None:
            shuffled.release_shuffles()

    def forget(self, frames: Rdd, partition: int) -> None:
        for rdd in frames.line():
            self.drop_block(rdd.id(), partition)

    def drop_block(self, rdd_id: int, partition: int) -> None:
        if rdd_id in self.sc.persisted:
            self.sc.persisted[rdd_id].forget(partition)


class Broadcast:
    """Stands in for PySpark's."""

    def __init__(self, context: Context, value: Any) -> None:
        self.context, self.value = context, value
        self.number = next(context.ids)
        self._jbroadcast = SimpleNamespace(id=lambda: self.number)
        context.broadcasts[self.number] = self

    def destroy(self) -> None:
        self.context.broadcasts.pop(self.number, None)


class Rows:
    """A few of the operations of PySpark's RDDs."""

    def __init__(self, context: Context, partitions: int, compute: Callable[[int], Iterable[Any]]) -> None:
        self.context, self.partitions = context, partitions
        self._compute = compute
        self._jrdd = SimpleNamespace(rdd=lambda: Rdd(context, partitions, self.read))

    def read(self, partition: int) -> list[Any]:
        with self.context.task({}):
            return list(self._compute(partition))

    def map(self, work: Callable[[Any], Any]) -> Rows:
        return self.mapPartitionsWithIndex(lambda _, rows: map(work, rows))

    def flatMap(self, work: Callable[[Any], Iterable[Any]]) -> Rows:  # noqa: N802
        return self.mapPartitionsWithIndex(lambda _, rows: chain.from_iterable(map(work, rows)))

    def mapPartitions(self, work: Callable[[Any], Iterable[Any]]) -> Rows:  # noqa: N802
        return self.mapPartitionsWithIndex(lambda _, rows: work(rows))

    def mapPartitionsWithIndex(self, work: Callable[[int, Any], Iterable[Any]]) -> Rows:  # noqa: N802
        return Rows(self.context, self.partitions, lambda n: work(n, iter(self.read(n))))

    def repartitionAndSortWithinPartitions(  # noqa: N802
        self,
        partitions: int,
        partitionFunc: Callable[[Any], int],  # noqa: N803
    ) -> Rows:
        def compute(partition: int) -> list[Any]:
            pairs = (pair for pair in self.collect() if partitionFunc(pair[0]) % partitions == partition)
            return sorted(pairs, key=lambda pair: pair[0])

        return Rows(self.context, partitions, compute)

    def take(self, rows: int) -> list[Any]:
        return self.collect()[:rows]

    def collect(self) -> list[Any]:
        return [row for partition in range(self.partitions) for row in self.read(partition)]


class Context:
    """Stands in for a SparkContext.

    Attributes:
        jobs: descriptions of the jobs so far.
        persisted: what is persisted.
        broadcasts: what was broadcast and not destroyed.
        shuffles: shuffles that are not released.
    """

    version = pyspark.__version__
    applicationId = "no-jvm"  # noqa: N815

    def __init__(self, master: str) -> None:
        self.master = master
        self.ids = count()
        self.jobs: list[str | None] = []
        self.description: str | None = None
        self.persisted: dict[int, Rdd] = {}
        self.broadcasts: dict[int, Broadcast] = {}
        self.shuffles: dict[int, Callable[[int], list[Pair]]] = {}
        self._has_own_numbers = False
        self._jsc: Any = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: self._jsc is None))

    def getConf(self) -> Any:  # noqa: N802
        # Tasks run one after the other here, so they cannot exchange among themselves.
        confs = session.recommended() | {"spark.sparkdl.transport": "shuffle"}
        return SimpleNamespace(get=confs.get, getAll=lambda: [*confs.items()])

    def broadcast(self, value: Any) -> Broadcast:
        return Broadcast(self, value)

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802
        """Do nothing."""

    def parallelize(self, rows: Iterable[Any], partitions: int) -> Rows:
        every = list(rows)
        ends = [n * len(every) // partitions for n in range(partitions + 1)]
        return Rows(self, partitions, lambda n: every[ends[n] : ends[n + 1]])

    def stop(self) -> None:
        self._jsc = None

    def begin_job(self) -> None:
        if self._jsc is None:
            raise JobError("the context was stopped")
        self.jobs.append(self.description)

    @contextmanager
    def task(self, broadcasts: dict[int, Broadcast]) -> Iterator[None]:
        """Run a block as a task: warnings and broadcasts are its own, random numbers and errors a job's."""
        registry: dict[int, Any] = pyspark.broadcast._broadcastRegistry
        before = dict(registry)
        registry.clear()
        registry.update({number: found for number, found in broadcasts.items() if number in self.broadcasts})
        try:
            with self.own_numbers(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except JobError:
            raise
        except Exception:
            raise JobError(f"Job aborted: {traceback.format_exc()}\n\tat org.apache.spark") from None
        finally:
            registry.clear()
            registry.update(before)

    @contextmanager
    def own_numbers(self) -> Iterator[None]:
        """Leave the driver's random numbers as they are: once for a job, as numpy takes its time."""
        if self._has_own_numbers:
            yield
            return
        states = random.getstate(), np.random.get_state()  # noqa: NPY002
        self._has_own_numbers = True
        try:
            with torch.random.fork_rng(devices=[]):
                yield
        finally:
            self._has_own_numbers = False
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


class Session:
    """Stands in for a SparkSession.

    Args:
        master: as Spark's; what begins with ``local``.
    """

    version = pyspark.__version__

    def __init__(self, master: str) -> None:
        self.sparkContext = Context(master)
        self.conf = SimpleNamespace(get=lambda _, default=None: default)


@contextmanager
def no_jvm(folder: str, master: str = "local[2]") -> Iterator[Session]:
    """Let sparkdl run on a session without a JVM.

    Args:
        folder: the executor's local directory.
        master: as Spark's; what begins with ``local``.
    """
    made, threads, real = Session(master), torch.get_num_threads(), FrameJobs
    with pytest.MonkeyPatch.context() as patch:
        assert classic.FrameJobs is real  # a module that is imported from here on would keep the stand-in
        patch.setenv("SPARK_LOCAL_DIRS", folder)
        for name, module in [*sys.modules.items()]:
            if name.startswith("sparkdl") and getattr(module, "FrameJobs", None) is real:
                patch.setattr(module, "FrameJobs", Jobs)
        patch.setattr(SparkSession.Builder, "getOrCreate", lambda _: made)
        # An executor's process may turn memory management round; this one goes on.
        patch.setattr(worker, "exempt_objects", lambda: None)
        patch.setattr(worker, "keep_freed_memory", lambda: None)
        for name in ("_workers", "_files"):
            patch.setattr(worker, name, OrderedDict())
        try:
            yield made
        finally:
            torch.set_num_threads(threads)
