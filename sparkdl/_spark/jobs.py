"""Spark jobs over RDDs of byte frames, built on the JVM's own objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle
from pyspark.serializers import NoOpSerializer

from sparkdl._spark.blocks import DRIVER, BlockManager
from sparkdl._spark.frames import KEY_BASE, FrameSerializer, JavaObject, Task, java_class, key, read_all
from sparkdl._spark.session import live_executors
from sparkdl.wire.frame import Parts

_PERSISTED = "sparkdl frames"  # name, in Spark's UI, of RDDs whose lineage rebuilds lost blocks

_LARGE_FRAME = 32 << 20
"""Frames from this size on are kept on disk only: a large model's state exceeds the heaps."""


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job that has begun."""

    action: JavaObject

    def is_done(self) -> bool:
        """Return whether it has ended, well or not."""
        return bool(self.action.isDone())

    def cancel(self) -> None:
        """End it, if it has not ended."""
        self.action.cancel(True)


class FrameJobs:
    """Builds and runs Spark jobs over RDDs of byte frames.

    One instance serves one fit: it keeps the JVM handles that every stage needs, so that an
    iteration costs few py4j round trips.
    """

    def __init__(self, sc: Any) -> None:
        self.sc: Any = sc
        self._jvm: Any = sc._jvm
        self._jsc: Any = sc._jsc
        find = partial(java_class, self._jvm)  # each once: it costs round trips to the JVM
        self._context = self._jsc.sc()
        self._hash_map = find("java.util.HashMap")
        self._array_list = find("java.util.ArrayList")
        self._python_function = self._jvm.SimplePythonFunction
        self._python_rdd = self._jvm.PythonRDD
        self._pairwise_rdd = self._jvm.PairwiseRDD
        self._zipped_rdd = find("org.apache.spark.rdd.ZippedPartitionsRDD2")
        self._env: JavaObject = self._hash_map()
        for name, value in sc.environment.items():
            self._env.put(name, value)
        self._includes = self._listed(sc._python_includes or ())
        levels = find("org.apache.spark.storage.StorageLevel")
        self._one_copy, self._two_copies = levels.MEMORY_AND_DISK(), levels.MEMORY_AND_DISK_SER_2()
        self._two_on_disk = levels.DISK_ONLY_2()
        if re.match(
            r"local(\[|$)", sc.master
        ):  # one process: Spark would log twice per block that it has no peer
            self._two_copies, self._two_on_disk = self._one_copy, levels.DISK_ONLY()
        self._java_serializer = find("org.apache.spark.serializer.JavaSerializer")(self._context.conf())
        tags = find("scala.reflect.ClassTag")
        self._bytes_tag = tags.apply(find("java.lang.Class").forName("[B"))
        self._any_tag = tags.Any()
        self._zip_function: JavaObject | None = None
        self._partitioners: dict[int, JavaObject] = {}
        self._rates: dict[tuple[int, ...], JavaObject] = {}
        self._blocks = BlockManager(self._jvm, self._context)

    # -- building -----------------------------------------------------------------------------

    def stage(
        self,
        parent: JavaObject,
        task: Task,
        broadcasts: Sequence[Any] = (),
        *,
        preserves_partitioning: bool = False,
        profile: JavaObject | None = None,
    ) -> JavaObject:
        """Return the RDD of frames that ``task`` makes of each partition of ``parent``."""
        command = cloudpickle.dumps((task, None, NoOpSerializer(), FrameSerializer()))
        variables = self._listed(broadcast._jbroadcast for broadcast in broadcasts)
        sc = self.sc
        function = self._python_function(
            bytearray(command),
            self._env,
            self._includes,
            sc.pythonExec,
            sc.pythonVer,
            variables,
            sc._javaAccumulator,
        )
        rdd = self._python_rdd(parent, function, preserves_partitioning, False)
        return rdd.withResources(profile) if profile is not None else rdd

    def keyed(self, frames: JavaObject) -> JavaObject:
        """Pair an RDD of alternating keys and frames up, inside the JVM."""
        return self._pairwise_rdd(frames).asJavaPairRDD()

    def scattered(self, frames: Iterable[tuple[int, bytes | Parts]]) -> JavaObject:
        """Return frames of the driver as keyed frames, each in a task of its own.

        What the driver holds travels inside of tasks. Spark warns of tasks above 1,000 KiB and refuses those
        above ``spark.rpc.message.maxSize``, so frames must be small.
        """
        tasks = 0

        def alternating() -> Iterator[bytes | Parts]:
            nonlocal tasks
            for n, data in frames:
                tasks += 1
                yield key(n)
                yield data

        def read(file: str) -> JavaObject:
            return self._python_rdd.readRDDFromFile(self._jsc, file, max(1, tasks))

        def serve() -> JavaObject:  # with I/O encryption, before anything is written
            nonlocal frames
            frames = list(frames)
            return self._jvm.PythonParallelizeServer(self._context, max(1, len(frames)))

        sent = self.sc._serialize_to_jvm(alternating(), FrameSerializer(), read, serve)
        return self.keyed(sent.rdd())

    def select(self, pairs: JavaObject, keep: int, drop: Sequence[int]) -> JavaObject:
        """Return the frames of ``pairs`` with key ``keep``, without leaving the JVM.

        A filter written in Python would need another Python stage. Stratified sampling at rates
        one and zero is a filter that the JVM already has.
        """
        rates = self._rates.get((keep, *drop))
        if rates is None:
            rates = self._rates[(keep, *drop)] = self._hash_map()
            rates.put(KEY_BASE + keep, 1.0)
            for name in drop:
                rates.put(KEY_BASE + name, 0.0)
        return self.values(pairs.sampleByKey(False, rates, 0))

    def shuffle(self, pairs: JavaObject, partitions: int) -> JavaObject:
        """Return the pair RDD in which frames with key n are in partition n.

        A hundred frames may wait in an executor's heap, so they should be small.
        """
        shuffled = pairs.partitionBy(self._partitioner(partitions))
        # Spark would take Kryo for these pairs, of which each task makes a new one per partition, for
        # milliseconds. Java's own serializer is there at once, but holds on to the last hundred objects.
        shuffled.rdd().setSerializer(self._java_serializer)
        return shuffled

    def coalesce(self, frames: JavaObject, partitions: int) -> JavaObject:
        """Make so many partitions of neighbouring ones; no data moves.

        Only where Spark knows no place at which it prefers to run them: else it goes by places.
        """
        return frames.toJavaRDD().coalesce(partitions).rdd()

    def values(self, pairs: JavaObject) -> JavaObject:
        """Return the frames of a pair RDD, in its partitions."""
        return self._python_rdd.valueOfPair(pairs).rdd()

    def union(self, first: JavaObject, second: JavaObject) -> JavaObject:
        """Concatenate two RDDs partition by partition; no data moves."""
        union = first.toJavaRDD().union(second.toJavaRDD()).rdd()
        if union.getNumPartitions() != first.getNumPartitions():
            raise RuntimeError("state and shards do not share a partitioner")
        return union

    def zip(self, first: JavaObject, second: JavaObject) -> JavaObject:
        """Pair the frames of two RDDs up, partition by partition, where both have equally many.

        A stage reads frame by frame in turn, and runs where the first RDD's block is.
        """
        # ``zip`` has Spark read the byte code of its own function each time, which takes longer than all else
        # that makes a stage. So it is called once, for the function.
        if self._zip_function is None:
            self._zip_function = first.toJavaRDD().zip(second.toJavaRDD()).rdd().f()
        tag = self._any_tag
        return self._zipped_rdd(self._context, self._zip_function, first, second, False, tag, tag, tag)

    def _partitioner(self, partitions: int) -> JavaObject:
        # Equal (number, id) means equal partitioner to Spark: the id only has to be constant.
        if partitions not in self._partitioners:
            self._partitioners[partitions] = self._jvm.PythonPartitioner(partitions, KEY_BASE)
        return self._partitioners[partitions]

    # -- running ------------------------------------------------------------------------------

    def describe(self, description: str | None) -> None:
        """Name the jobs that follow in the Spark UI."""
        self._jsc.setLocalProperty("spark.job.description", description)

    def run_map_side(self, shuffled: JavaObject) -> None:
        """Run the map side of a shuffle as a job of its own: all shards are written after it."""
        dependency = shuffled.rdd().dependencies().head()
        self._context.submitMapStage(dependency).get()

    def collect(self, frames: JavaObject) -> list[bytes]:
        """Run a job and return its frames, partition by partition."""
        return read_all(self._python_rdd.collectAndServe(frames))

    def run_everywhere(
        self,
        task: Task,
        broadcasts: Sequence[Any] = (),
        *,
        times: int = 1,
        profile: JavaObject | None = None,
    ) -> list[bytes]:
        """Run a task on each executor that there is now, and return its frames.

        One that is busy for longer than Spark waits for it (``spark.locality.wait``) is left out: another
        executor does it once more.
        """
        return self.collect(self._everywhere(task, broadcasts, times, profile))

    def begin_everywhere(
        self, task: Task, *, times: int = 1, profile: JavaObject | None = None
    ) -> SubmittedJob:
        """Begin to run a task on each executor that there is now; see :meth:`run_everywhere`."""
        return SubmittedJob(self._everywhere(task, (), times, profile).toJavaRDD().collectAsync())

    def _everywhere(
        self, task: Task, broadcasts: Sequence[Any], times: int, profile: JavaObject | None
    ) -> JavaObject:
        each = [found for found in self._blocks.executors().values() or [""] for _ in range(times)]
        return self.stage(self._empty_at(each), task, broadcasts, profile=profile)

    def located(self, executors: Sequence[str]) -> JavaObject:
        """Return an RDD with a partition at each of some executors, or anywhere if one is gone."""
        known = self._blocks.executors()
        return self._empty_at([known.get(name, "") for name in executors])

    def places(self, frames: JavaObject) -> list[str]:
        """Return the id of an executor that holds each partition of an RDD; see :class:`BlockManager`."""
        return self._blocks.places(frames)

    def _empty_at(self, locations: Iterable[str]) -> JavaObject:
        to_seq, pair = self._jvm.PythonUtils.toSeq, java_class(self._jvm, "scala.Tuple2")
        places = self._listed(
            pair(bytearray(), to_seq(self._listed([location] if location else []))) for location in locations
        )
        return self._context.makeRDD(to_seq(places), self._bytes_tag)

    def ask_for_executors(self, total: int) -> bool:
        """Ask the cluster for so many executors; return whether it takes such wishes.

        The newest ones are given back if there are more.
        """
        staying = self._blocks.executors()
        names = [name for name in live_executors(self.sc) if name in staying]
        if names[total:]:
            self._context.killExecutors(self._jvm.PythonUtils.toSeq(self._listed(names[total:])))
        nothing = self._jvm.PythonUtils.toScalaMap(self._hash_map())
        return bool(self._context.requestTotalExecutors(total, 0, nothing))

    def _listed(self, values: Iterable[Any]) -> JavaObject:
        found = self._array_list()
        for value in values:
            found.add(value)
        return found

    def executors(self) -> set[str]:
        """Return the ids of the executors that take tasks now; in local mode the driver is one."""
        return {*self._blocks.executors()} or {DRIVER}

    def count_executors(self) -> int:
        """Return how many executors take tasks now."""
        return len(self.executors())

    # -- keeping and releasing ------------------------------------------------------------------

    def persist_replicated(self, frames: JavaObject, frame_bytes: int) -> None:
        """Keep an RDD on two executors and cut its lineage when it is next computed.

        Only a ``PythonRDD`` lets go of its parents: a ``PairwiseRDD`` would keep every iteration
        before it in the task binary, until the JVM's stack overflows.
        """
        frames.persist(self._two_copies if frame_bytes < _LARGE_FRAME else self._two_on_disk)
        frames.localCheckpoint()

    def persist(self, frames: JavaObject) -> None:
        """Keep an RDD on the executors that compute it; lineage rebuilds lost blocks."""
        frames.persist(self._one_copy)
        frames.setName(_PERSISTED)

    def unpersist(self, frames: JavaObject, *, wait: bool = False) -> None:
        """Stop keeping an RDD.

        ``RDD.unpersist`` does the same and warns each time that a locally checkpointed RDD cannot
        be recomputed, which here is the intention.
        """
        self._context.unpersistRDD(frames.id(), wait)

    def release_shuffle(self, shuffled: JavaObject) -> None:
        """Delete a shuffle's files; without this they stay until the driver's next full GC."""
        shuffled.rdd().cleanShuffleDependencies(False)

    def forget(self, frames: JavaObject, partition: int) -> None:
        """Let the next job compute a partition again, and what stages have made it of."""
        while True:
            if frames.name() == _PERSISTED:  # and nobody else's
                self.drop_block(frames.id(), partition)
            before = frames.dependencies()
            if before.isEmpty() or before.head().getClass().getSimpleName() != "OneToOneDependency":
                return
            frames = before.head().rdd()

    def drop_block(self, rdd_id: int, partition: int) -> None:
        """Forget a cached block wherever it is: the next job computes it again."""
        self._blocks.drop(rdd_id, partition)
