"""The only place that touches PySpark's private JVM API.

Everything that moves during training is an RDD of raw byte arrays. PySpark's public RDD API would
pickle each record, build every RDD with a dozen round trips to the JVM and add a Python stage per
shuffle; these few functions build the same Spark RDDs (``PythonRDD``, ``PairwiseRDD``,
``ShuffledRDD``) directly.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import cloudpickle
from pyspark.serializers import FramedSerializer, NoOpSerializer, pack_long, write_int

from sparkdl import exceptions
from sparkdl.exceptions import SparkdlError, TaskError
from sparkdl.frame import Parts, size

JavaObject = Any
"""A py4j handle of a JVM object."""

Task = Callable[[int, Iterator[bytes]], Iterable[bytes | Parts]]
"""What runs in a task: (partition, frames in) -> frames out, whole or in parts."""

# Keys above 32 bits reach the JVM as Long through py4j, which the key type of the frames needs;
# PythonPartitioner takes their low 32 bits.
_KEY = 1 << 40

_LARGE_FRAME = 32 << 20
"""Frames from this size on are kept on disk alone: heaps are small beside what is kept of a large model."""


def key(n: int) -> bytes:
    """Return the frame that keys the frame after it with ``n``, in a stream of keyed frames."""
    packed: bytes = pack_long(_KEY + n)  # type: ignore[no-untyped-call]
    return packed


def keyed_by(packed: bytes) -> int:
    """Return what :func:`key` was made of."""
    return int.from_bytes(packed, "big") - _KEY


def broadcast_id(broadcast: Any) -> int:
    """Return the id by which a task finds a broadcast; called on the driver."""
    number: int = broadcast._jbroadcast.id()
    return number


def broadcast_value(number: int, *, once: bool = False) -> Any:
    """Return the value of a broadcast that the stage of this task names; called in tasks.

    Capturing the ``Broadcast`` object itself would register it with the next job that any thread
    of the application pickles.

    Args:
        number: the broadcast's id.
        once: whether this process is not to keep the value, bytes or a ``bytearray`` that the caller may
            overwrite: it can be read again from the executor's disk.
    """
    from pyspark import broadcast

    found = broadcast._from_id(number)
    value = found.value
    if not once:
        return value
    if getattr(found, "_path", None) is None:  # with encryption there is no file: this is the only copy
        return bytes(value)
    vars(found).pop("_value", None)
    return value


def task_resources() -> dict[str, list[str]]:
    """Return the addresses of the resources, such as GPUs, that Spark gave this task, by name."""
    from pyspark import TaskContext

    context = TaskContext.get()
    resources = context.resources() if context is not None else {}
    return {name: list(resource.addresses) for name, resource in resources.items()}


def frames_of(rdd: Any) -> JavaObject:
    """Return the JVM RDD of byte arrays behind a PySpark RDD of bytes, unpickled."""
    rdd._bypass_serializer = True
    return rdd._jrdd.rdd()


class FrameSerializer(FramedSerializer):
    """Writes a frame that lies in several buffers without joining them first."""

    def dump_stream(self, iterator: Iterable[bytes | Parts], stream: BinaryIO) -> None:
        """Write frames, each as its length and its parts."""
        for parts in iterator:
            if isinstance(parts, bytes):
                write_int(len(parts), stream)  # type: ignore[no-untyped-call]
                stream.write(parts)
            else:
                write_int(size(parts), stream)  # type: ignore[no-untyped-call]
                for part in parts:
                    stream.write(part)

    def loads(self, obj: bytes) -> bytes:
        """Return the frame as it is."""
        return obj


class FrameJobs:
    """Builds and runs Spark jobs over RDDs of byte frames.

    One instance serves one fit: it keeps the JVM handles that every stage needs, so that an
    iteration costs few py4j round trips.
    """

    def __init__(self, sc: Any) -> None:
        self.sc: Any = sc
        self._jvm: Any = sc._jvm
        self._jsc: Any = sc._jsc
        # Looking a class up costs several round trips to the JVM, so each is looked up once.
        self._context = self._jsc.sc()
        self._hash_map = self._jvm.java.util.HashMap
        self._array_list = self._jvm.java.util.ArrayList
        self._python_function = self._jvm.SimplePythonFunction
        self._python_rdd = self._jvm.PythonRDD
        self._pairwise_rdd = self._jvm.PairwiseRDD
        self._zipped_rdd = self._jvm.org.apache.spark.rdd.ZippedPartitionsRDD2
        self._env: JavaObject = self._hash_map()
        for name, value in sc.environment.items():
            self._env.put(name, value)
        self._includes = self._array_list()
        for include in sc._python_includes or ():
            self._includes.add(include)
        levels = self._jvm.org.apache.spark.storage.StorageLevel
        self._one_copy, self._two_copies = levels.MEMORY_AND_DISK(), levels.MEMORY_AND_DISK_SER_2()
        self._two_on_disk = levels.DISK_ONLY_2()
        if re.match(
            r"local(\[|$)", sc.master
        ):  # one process: Spark would log twice per block that it has no peer
            self._two_copies, self._two_on_disk = self._one_copy, levels.DISK_ONLY()
        self._java_serializer = self._jvm.org.apache.spark.serializer.JavaSerializer(self._context.conf())
        self._bytes_tag = self._jvm.scala.reflect.ClassTag.apply(self._jvm.java.lang.Class.forName("[B"))
        self._any_tag = self._jvm.scala.reflect.ClassTag.Any()
        self._zip_function: JavaObject | None = None
        self._partitioners: dict[int, JavaObject] = {}
        self._rates: dict[tuple[int, ...], JavaObject] = {}

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
        """Return the RDD of frames that ``task`` makes of each partition of ``parent``.

        Args:
            parent: RDD of byte arrays.
            task: pure function of (partition, frames).
            broadcasts: PySpark broadcasts that the task reads.
            preserves_partitioning: whether the result keeps the parent's partitioner.
            profile: JVM resource profile of the stage.
        """
        command = cloudpickle.dumps((task, None, NoOpSerializer(), FrameSerializer()))
        variables = self._array_list()
        for broadcast in broadcasts:
            variables.add(broadcast._jbroadcast)
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

        Args:
            frames: key and frame of each.
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
            rates.put(_KEY + keep, 1.0)
            for name in drop:
                rates.put(_KEY + name, 0.0)
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
        """Concatenate two RDDs partition by partition; no data moves.

        Raises:
            RuntimeError: if Spark would append partitions instead, because the two RDDs do not
                share a partitioner.
        """
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
            self._partitioners[partitions] = self._jvm.PythonPartitioner(partitions, _KEY)
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
        return _read_all(self._python_rdd.collectAndServe(frames))

    def run_on_executors(self, work: Callable[[], None], *, profile: JavaObject | None = None) -> None:
        """Do some work once on each executor that there is now.

        One that is busy for longer than Spark waits for it (``spark.locality.wait``) is left out: another
        executor does it once more.
        """
        places = self._array_list()
        for location in self._executors() or [""]:
            preferred = self._array_list()
            if location:
                preferred.add(location)
            places.add(self._jvm.scala.Tuple2(bytearray(), self._jvm.PythonUtils.toSeq(preferred)))
        tokens = self._context.makeRDD(self._jvm.PythonUtils.toSeq(places), self._bytes_tag)
        self.collect(self.stage(tokens, _Once(work), profile=profile))

    def _executors(self) -> list[str]:
        """Return the executors besides the driver, as an RDD names the places where it prefers to run."""
        blocks = self._block_manager_master().getMemoryStatus().keysIterator()
        found = []
        while blocks.hasNext():
            block_manager = blocks.next()
            if not block_manager.isDriver():
                found.append(f"executor_{block_manager.host()}_{block_manager.executorId()}")
        return found

    # -- keeping and releasing ------------------------------------------------------------------

    def persist_replicated(self, frames: JavaObject, frame_bytes: int) -> None:
        """Keep an RDD on two executors and cut its lineage when it is next computed.

        Only a ``PythonRDD`` lets go of its parents: a ``PairwiseRDD`` would keep every iteration
        before it in the task binary, until the JVM's stack overflows.

        Args:
            frames: the RDD.
            frame_bytes: length of a frame, about.
        """
        frames.persist(self._two_copies if frame_bytes < _LARGE_FRAME else self._two_on_disk)
        frames.localCheckpoint()

    def persist(self, frames: JavaObject) -> None:
        """Keep an RDD on the executors that compute it; lineage rebuilds what is lost."""
        frames.persist(self._one_copy)

    def unpersist(self, frames: JavaObject) -> None:
        """Stop keeping an RDD; returns before its blocks are deleted.

        ``RDD.unpersist`` does the same and warns each time that a locally checkpointed RDD cannot
        be recomputed, which here is the intention.
        """
        self._context.unpersistRDD(frames.id(), False)

    def release_shuffle(self, shuffled: JavaObject) -> None:
        """Delete a shuffle's files; without this they stay until the driver's next full GC."""
        shuffled.rdd().cleanShuffleDependencies(False)

    def drop_block(self, rdd_id: int, partition: int, timeout: float = 10.0) -> None:
        """Forget a cached block wherever it is: the next job computes it again."""
        master = self._block_manager_master()
        block = self._jvm.org.apache.spark.storage.RDDBlockId(rdd_id, partition)
        master.removeBlock(block)
        deadline = time.monotonic() + timeout
        while master.getLocations(block).size() and time.monotonic() < deadline:
            time.sleep(0.01)  # executors delete the block in their own time

    def _block_manager_master(self) -> JavaObject:
        storage = "org.apache.spark.storage"
        environment = self._context.env()
        manager = self._getter(
            environment, "org.apache.spark.SparkEnv", "blockManager", f"{storage}.BlockManager"
        )
        return self._getter(manager, f"{storage}.BlockManager", "master", f"{storage}.BlockManagerMaster")

    def _getter(self, obj: JavaObject, owner: str, method: str, returns: str) -> JavaObject:
        """Call a method without arguments by its exact signature.

        Py4J would list all methods of the class first, which fails for these two: some name types
        that are not on the class path of every Spark distribution.
        """
        invoke = self._jvm.java.lang.invoke
        class_of = self._jvm.java.lang.Class.forName
        handle = invoke.MethodHandles.publicLookup().findVirtual(
            class_of(owner), method, invoke.MethodType.methodType(class_of(returns))
        )
        arguments = self._array_list()
        arguments.add(obj)
        return handle.invokeWithArguments(arguments)


@dataclass(frozen=True, slots=True)
class _Once:
    """Task that does some work and yields nothing."""

    work: Callable[[], None]

    def __call__(self, _: int, frames: Iterator[bytes]) -> Iterator[bytes]:
        deque(frames, maxlen=0)
        self.work()
        yield from ()


def _read_all(connection: JavaObject) -> list[bytes]:
    """Read all frames from a socket that the JVM serves."""
    try:
        from pyspark.util import _load_from_socket
    except ImportError:  # Spark 3.5, where it is a plain generator
        from pyspark import rdd

        module: Any = rdd
        frames: Any = module._load_from_socket(connection, NoOpSerializer())
        return list(frames)
    with _load_from_socket(connection, NoOpSerializer()) as stream:
        return list(stream)


_CHAIN = "\n\nThe above exception was the direct cause of the following exception:\n\n"
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?\Z", re.MULTILINE | re.DOTALL)
_ENVIRONMENT = "task-environment"
_SHIP = (
    "Their Python environment needs what the driver's has: set PYSPARK_PYTHON to an environment that all "
    "machines share, or ship one with spark.archives (sparkdl submit --env)"
)
_FRAME_OF_SPARK = re.compile(r'  File "[^"]*/pyspark[^"]*", line .*\n(?:    .*\n)*')


def is_job_failure(error: BaseException) -> bool:
    """Return whether an exception is Spark's or Py4J's report of a failed job."""
    return type(error).__module__.startswith(("py4j.", "pyspark."))


def task_error(error: BaseException, doing: str) -> SparkdlError:
    """Turn py4j's report of a failed job into an error without py4j and JVM stacks.

    An error of sparkdl keeps its type; the user's own traceback follows the message.

    Args:
        error: what py4j raised.
        doing: what was being done, for the message.
    """
    text = str(error)
    begin = text.find("Traceback (most recent call last):")
    if begin < 0:
        java = str(getattr(error, "java_exception", "") or text).strip()
        first = java.splitlines()[0] if java else repr(error)
        if "Cannot run program" in first:  # the JVM's words for an interpreter that is not there
            return TaskError(f"Python did not start on the executors: {first}. {_SHIP}", code=_ENVIRONMENT)
        absent = re.search(r"No module named .*", java)  # daemon.py, or what it needs
        if absent is not None:
            return TaskError(
                f"Python did not start on the executors: {absent[0]}. {_SHIP}", code=_ENVIRONMENT
            )
        return TaskError(f"a Spark job failed while {doing}: {first}")
    remote = re.sub(r"\s*SQLSTATE: \w+\s*\Z", "", text[begin:].split("\n\tat ")[0].rstrip())
    root = _FRAME_OF_SPARK.sub("", remote.split(_CHAIN)[0])
    kind, message = _raised(remote)
    shown = f"{message}\n\nTraceback of the task that failed while {doing}:\n\n{root}"
    own = getattr(exceptions, kind.removeprefix("sparkdl.exceptions."), None)
    if kind == "ModuleNotFoundError":
        shown = f"{message} on the executors. {_SHIP}\n\n{root}"
        return TaskError(f"{kind}: {shown}", root, code=_ENVIRONMENT)
    if own is not None and own is not TaskError:
        typed: SparkdlError = own(shown)
        return typed
    return TaskError(f"{kind}: {shown}", root, code="task-python")


def _raised(traceback: str) -> tuple[str, str]:
    """Return type and message of the exception at the end of a traceback."""
    last = traceback.rsplit("Traceback (most recent call last):\n", 1)[-1]
    # The frames are indented; the exception is the first line that is not.
    lines = last.splitlines()
    start = next((i for i, line in enumerate(lines) if line[:1].strip()), len(lines) - 1)
    match = _RAISED.match("\n".join(lines[start:]))
    return (match["type"], match["message"] or "") if match else ("Exception", last)
