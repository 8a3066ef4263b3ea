"""Tasks over frames as functions for ``mapInArrow``; what runs in the executors' Python processes.

A DataFrame of frames has a row for each *piece* of a frame, after a key that says where the frame goes.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import cloudpickle
import pyarrow as pa

from sparkdl._spark.frames import Task, pairs_of
from sparkdl._spark.processes import is_ending
from sparkdl._spark.tasks import partition_id
from sparkdl.access.connect.files import KeptFile, sent_file
from sparkdl.access.in_pieces import RESULT
from sparkdl.wire import frame
from sparkdl.wire.frame import Buffer, Parts
from sparkdl.wire.pieces import PIECE_BYTES, joined, pieces_of

SCHEMA = "key int, frame binary"
"""Columns of a DataFrame of frames."""

ARROW_SCHEMA = pa.schema([("key", pa.int32()), ("frame", pa.binary())])

LOST = b"\0sparkdl: this executor does not have it"
"""What a task yields in place of what it was to read."""

_BATCH_BYTES = 1 << 20  # about so many bytes are one Arrow batch

Row = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What a task does."""

    task: Task  # gets whole frames
    reads: bool = True  # whether it reads frames: otherwise its input has other columns
    keyed: bool = False  # whether it yields keys and frames in turn
    first: Sequence[bytes] = ()  # frames that it gets before all others, by partition
    unlink: Sequence[str] = ()  # names of files of :class:`FileRef` that nobody needs any more


class ArrowTask:
    """A :class:`TaskSpec` as a function from Arrow batches to Arrow batches.

    The job is pickled once: Spark recognises a cached DataFrame by the bytes of its functions.
    """

    def __init__(self, job: TaskSpec) -> None:
        self._job: bytes = cloudpickle.dumps(job)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task of a partition."""
        partition = partition_id()
        job: TaskSpec = cloudpickle.loads(self._job)
        for name in job.unlink:
            with suppress(OSError):
                os.unlink(sent_file(name))
        arriving = iter(batches)
        frames: Iterator[Any] = _frames(arriving) if job.reads else iter(())
        found = job.task(partition, chain(job.first[partition : partition + 1], frames))
        yield from in_batches(_rows(partition, pairs_of(found) if job.keyed else _for_driver(found)))
        if not is_ending():  # a task that leaves input unread loses its Python process
            deque(arriving, maxlen=0)


@dataclass(frozen=True, slots=True)
class Written:
    """A ``mapInArrow`` function that yields frames as column ``token``, as one that yields pieces of them."""

    write: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the function over a partition."""
        tokens = (token for batch in self.write(batches) for token in batch.column("token").to_pylist())
        yield from in_batches(_rows(partition_id(), _for_driver(tokens)))


@dataclass(frozen=True, slots=True)
class Round:
    """A ``mapInArrow`` function that passes some rows of each partition on."""

    first: int  # number of the first of these rows in its partition
    stop: int  # one past the last one

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass rows of a partition on."""
        begin = 0
        # To the end in any case: a task that leaves input unread loses its Python worker.
        for batch in batches:
            end = begin + len(batch)
            low, high = max(self.first, begin), min(self.stop, end)
            if low < high:
                yield batch.slice(low - begin, high - low)
            begin = end


def _frames(batches: Iterator[pa.RecordBatch]) -> Iterator[Buffer]:
    return joined(piece for batch in batches for piece in batch.column("frame").to_pylist())


def _for_driver(frames: Iterable[bytes | Parts]) -> Iterator[tuple[int, bytes | Parts]]:
    return zip(repeat(RESULT), frames, strict=False)


def _rows(source: int, frames: Iterable[tuple[int, bytes | Parts]]) -> Iterator[Row]:
    """Yield the pieces of frames, each after its frame's key."""
    numbers: Counter[int] = Counter()
    for to, data in frames:
        number = numbers[to]
        numbers[to] += 1
        for piece in pieces_of(source, number, data, PIECE_BYTES):
            yield to, frame.join(piece)


def in_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow batches that are not too large."""
    keys: list[int] = []
    pieces: list[bytes] = []
    size = 0
    for key, piece in rows:
        keys.append(key)
        pieces.append(piece)
        size += len(piece)
        if size >= _BATCH_BYTES:
            yield _batch(keys, pieces)
            keys, pieces, size = [], [], 0
    if keys:
        yield _batch(keys, pieces)


def _batch(keys: list[int], pieces: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(keys, pa.int32()), pa.array(pieces, pa.binary())], ARROW_SCHEMA)


# -- what stays ---------------------------------------------------------------------------------


def leaving(
    task: Task, file: KeptFile | None, partition: int, frames: Iterator[Any]
) -> Iterator[bytes | Parts]:
    """Run the task of a chain's only stage: frames for the driver are sent, the others stay in the file."""
    if file is None:
        yield from (data for to, data in pairs_of(task(partition, frames)) if to == RESULT)
        return
    with file.writing(partition) as write:
        number = 0
        for to, data in pairs_of(task(partition, frames)):
            if to == RESULT:
                yield data
                continue
            for piece in pieces_of(partition, number, data, PIECE_BYTES):
                write(piece)
            number += 1


def over_kept(task: Task, file: KeptFile, partition: int, frames: Iterator[Any]) -> Iterator[bytes | Parts]:
    """Run a task over the pieces that have stayed in a file, or say that there is no such file here."""
    deque(frames, maxlen=0)
    pieces = file.read(partition)
    if pieces is None:
        yield LOST
    else:
        yield from task(partition, pieces)
