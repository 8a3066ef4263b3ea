"""Frames on their way between Python and the JVM: raw bytes, alone or after the key of their partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from pyspark.serializers import FramedSerializer, NoOpSerializer, pack_long, write_int

from sparkdl.wire.frame import Parts, size

JavaObject = Any
"""A py4j handle of a JVM object."""

Task = Callable[[int, Iterator[bytes]], Iterable[bytes | Parts]]
"""What runs in a task: (partition, frames in) -> frames out, whole or in parts."""


def java_class(jvm: Any, name: str) -> JavaObject:
    """Return a class of a gateway's JVM by its whole name.

    For each package on the way, ``jvm.java.util``, the JVM would look for a class in all its jars.
    """
    return getattr(jvm, name)


def do_once(work: Callable[[], None], _: int, frames: Iterator[bytes]) -> Iterator[bytes]:
    """Do some work and yield nothing: a task, once the work is given."""
    deque(frames, maxlen=0)
    work()
    yield from ()


# Keys above 32 bits reach the JVM as Long through py4j, which the key type of the frames needs;
# PythonPartitioner takes their low 32 bits.
KEY_BASE = 1 << 40


def key(n: int) -> bytes:
    """Return the frame that keys the frame after it with ``n``, in a stream of keyed frames."""
    packed: bytes = pack_long(KEY_BASE + n)  # type: ignore[no-untyped-call]
    return packed


def keyed_by(packed: bytes) -> int:
    """Return what :func:`key` was made of."""
    return int.from_bytes(packed, "big") - KEY_BASE


def pairs_of(frames: Iterable[bytes | Parts]) -> Iterator[tuple[int, bytes | Parts]]:
    """Pair frames up with their keys, after which they come in turn."""
    stream = iter(frames)
    for to in stream:
        assert isinstance(to, bytes)
        yield keyed_by(to), next(stream)


def frames_of(rdd: Any) -> JavaObject:
    """Return the JVM RDD of byte arrays behind a PySpark RDD of bytes, unpickled."""
    rdd._bypass_serializer = True
    return rdd._jrdd.rdd()


def only_column(df: Any) -> JavaObject:
    """Return the JVM RDD of the byte arrays in a DataFrame's only column.

    ``DataFrame.rdd`` would bring them through Python, in a second process for each task.
    """
    encoder = java_class(df.sparkSession._jvm, "org.apache.spark.sql.Encoders").BINARY()
    return getattr(df._jdf, "as")(encoder).rdd()


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


def read_all(connection: JavaObject) -> list[bytes]:
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
