"""Access to the cluster behind a Spark Connect server."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sparkdl import session
from sparkdl._spark.errors import is_job_failure
from sparkdl._spark.frames import Task
from sparkdl.access.base import Access, BytesRef, Published
from sparkdl.access.connect.chain import ConnectChain, OnDriver, OnExecutors
from sparkdl.access.connect.files import new_files, send_files
from sparkdl.access.connect.rows import ConnectFrames, Keeping, by_key, is_lost
from sparkdl.access.connect.tasks import ARROW_SCHEMA, SCHEMA, ArrowTask, TaskSpec, Written, in_batches
from sparkdl.exceptions import ConfigError
from sparkdl.session import Executors
from sparkdl.wire import frame
from sparkdl.wire.frame import Parts
from sparkdl.wire.pieces import HEAD, joined, pieces_of
from sparkdl.wire.private import local_folders

_log = logging.getLogger("sparkdl")

_INLINE_BYTES = 8 << 20
"""Weights and state of up to so many bytes travel inside of tasks. A plan may have 128 MB."""

_FIXED_BYTES = 1 << 20  # up to so many bytes that are sent with every job travel inside of tasks

_LINGER_SECONDS = 0.1  # a task that is to run once in each slot stays there for so long

_WAIT_SECONDS = 30.0  # so long executors are waited for

_LOOKS = 30
"""Looking for executors is a job. After one nobody looks again for so many times as long as it has taken."""

_TOLD = 500
"""So many released files jobs are told of, the last ones: they have been told of others often enough."""

_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"

_known: dict[str, ConnectAccess] = {}


def connect_access(spark: SparkSession) -> ConnectAccess:
    """Return the access to a session's cluster, which remembers what it has found out."""
    key = str(getattr(spark, "session_id", id(spark)))
    if key not in _known:
        for other in [name for name, access in _known.items() if not access.is_alive()]:
            del _known[other]
        _known[key] = ConnectAccess(spark)
    return _known[key]


@dataclass(eq=False, slots=True)
class ConnectAccess(Access):
    """See :class:`sparkdl.access.base.Access`."""

    spark: SparkSession  # the session
    moves_tasks: bool = False  # stages after the first one run anywhere, of which :class:`ConnectChain` tells
    longest_chain: int = 1  # what leaves a chain passes through the driver
    _offered: Executors | None = None
    _next_look: float = -float("inf")
    _keeping: Keeping = field(default_factory=Keeping)
    _refused: bool = False
    _released: deque[str] = field(default_factory=partial(deque, maxlen=_TOLD))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # -- the session ----------------------------------------------------------------------------

    def check(self) -> None:
        """Warn once about confs that nothing reads."""
        self.check_alive()
        session.check_own(self.spark)

    def check_alive(self) -> None:
        """Check that the session can still run jobs."""
        if not self.is_alive():
            raise ConfigError(
                "the Spark Connect session of this Dataset was stopped, and the rows on its executors went "
                "with it; make the Dataset again in the session that runs now",
                code="config-cluster",
            )

    def check_files(self) -> None:
        """Check that sparkdl's own files on the executors need not be encrypted."""
        session.refuse_encryption(self.conf("spark.io.encryption.enabled"), self.conf(session.PLAIN_FILES))

    def is_alive(self) -> bool:
        """Return whether the session can run jobs."""
        return not getattr(self.spark, "is_stopped", False)

    def conf(self, name: str, default: str = "") -> str:
        """Return a conf of the session; the default if the server does not tell it."""
        try:
            found: str | None = self.spark.conf.get(name, None)
        except Exception:  # confs that this server does not know, or hides
            return default
        return default if found is None else found

    def executors(self) -> Executors:
        """Return what the cluster offers, after waiting for executors that are still starting."""
        deadline = time.monotonic() + _WAIT_SECONDS
        before = None
        while True:
            found = self._probe()
            if found == before or time.monotonic() >= deadline:
                break
            before = found
        self._offered = found
        return found

    def count_executors(self, *, look: bool = False) -> int:
        """Return how many executors there were when they were last looked for; ``look`` may find others."""
        if self._offered is None:
            return self.executors().count
        if look and time.monotonic() >= self._next_look:
            self._offered = self._probe()
        return self._offered.count

    def _probe(self) -> Executors:
        """Occupy all slots for a moment, and ask who runs there."""
        begin = time.monotonic()
        # As many tasks as Spark thinks that the cluster has cores: nothing else tells their number.
        df = self.spark.range(1 << 16).mapInArrow(ArrowTask(TaskSpec(_occupy, reads=False)), SCHEMA)
        processes = {bytes(data) for data in joined(self._pieces(df))}
        self._next_look = time.monotonic() + _LOOKS * (time.monotonic() - begin)
        slots: dict[bytes, int] = {}
        for process in processes:
            executor = process.rpartition(b" ")[0]
            slots[executor] = slots.get(executor, 0) + 1
        return Executors(max(1, len(slots)), min(slots.values(), default=1))

    # -- sending --------------------------------------------------------------------------------

    @property
    def outdated(self) -> Sequence[str]:
        """Files that executors may delete; the next jobs tell them."""
        return tuple(self._released)

    def send(self, data: bytes | bytearray, *, inline: bool = False) -> Published:
        """Make bytes available to all tasks: inside of the tasks, or as files."""
        if len(data) <= (_INLINE_BYTES if inline else _FIXED_BYTES):
            return Published(BytesRef(bytes(data)))
        ref = new_files(len(data))
        sent = Published(ref, delete=partial(self._released.extend, ref.names))
        try:
            send_files(self.spark, ref, data)
        except BaseException:
            sent.release()
            raise
        return sent

    # -- rows -----------------------------------------------------------------------------------

    def planned_once(self, df: DataFrame) -> DataFrame:
        """Return the DataFrame: what is cached of it keeps its plan."""
        return df

    def written(self, df: DataFrame, write: Any, rows_per_batch: int) -> ConnectFrames:
        """Return the frames that a function makes of a DataFrame's rows."""
        return ConnectFrames(lambda: df.mapInArrow(Written(write), SCHEMA), rows_per_batch)

    def scattered(self, pieces: Iterable[tuple[int, bytes | Parts]], partitions: int) -> ConnectFrames:
        """Return frames of the driver in so many partitions."""
        rows = [
            (to, frame.join(piece))
            for number, (to, data) in enumerate(pieces)
            for piece in pieces_of(number, 0, data, 1 << 30)
        ]
        table = pa.Table.from_batches(in_batches(rows), ARROW_SCHEMA)

        def make() -> DataFrame:
            return self._keeping.sent(by_key(self.spark.createDataFrame(table), partitions))

        return ConnectFrames(make)

    # -- tasks ----------------------------------------------------------------------------------

    def stage(
        self, parent: ConnectFrames, task: Task, broadcasts: Sequence[Any] = (), *, profile: Any = None
    ) -> ConnectFrames:
        """Return the frames that a task makes of each partition."""
        function = ArrowTask(TaskSpec(task, unlink=self.outdated))
        return ConnectFrames(lambda: parent.df.mapInArrow(function, SCHEMA, profile=profile), parent=parent)

    def collect(self, frames: ConnectFrames) -> list[bytes]:
        """Run a job and return its frames."""
        found = list(map(frame.join, joined(piece for _, _, piece in self.rows_of(frames))))
        frames.collected = found
        return found

    def rows_of(self, frames: ConnectFrames) -> list[tuple[int, int, bytes]]:
        """Run a job and return the key, the source and the piece of each row."""
        with self._batches_of(frames):
            try:
                table = self._run(frames.df)
            except Exception as error:
                if not is_lost(error):
                    raise
                _log.warning("an executor has taken rows along that it alone had; they are made again")
                self._keeping.renew(frames)
                table = self._run(frames.df)
        keys = table.column("key").to_pylist()
        pieces = table.column("frame").to_pylist()
        return [(key, HEAD.unpack_from(piece)[0], piece) for key, piece in zip(keys, pieces, strict=True)]

    def run_everywhere(
        self, task: Task, broadcasts: Sequence[Any] = (), *, times: int = 1, profile: Any = None
    ) -> list[bytes]:
        """Run a task in each slot, and on each executor so many times, if Spark spreads tasks evenly."""
        offered = self._offered or self.executors()
        tasks = offered.count * max(times, offered.tasks)
        job = ArrowTask(TaskSpec(partial(_linger, task), reads=False, unlink=self.outdated))
        df = self.spark.range(0, tasks, 1, tasks).mapInArrow(job, SCHEMA)
        return list(map(frame.join, joined(self._pieces(df))))

    def chain(self, tokens: ConnectFrames, ranks: int, profile: Any) -> ConnectChain:
        """Return what runs groups over a partition store."""
        return ConnectChain(self, tokens, ranks, profile)

    def _pieces(self, df: DataFrame) -> Iterator[bytes]:
        """Run a job that reads no frames, and yield the piece of each row."""
        return (piece for _, _, piece in self.rows_of(ConnectFrames(lambda: df)))

    def _run(self, df: DataFrame) -> pa.Table:
        """Run a job, which Ctrl-C ends on the server, too."""
        tag = f"sparkdl-{uuid.uuid4().hex}"
        self.spark.addTag(tag)
        try:
            return df.toArrow()
        except KeyboardInterrupt:
            with suppress(Exception):
                self.spark.interruptTag(tag)
            raise
        finally:
            self.spark.removeTag(tag)

    # -- keeping --------------------------------------------------------------------------------

    def persist(self, frames: ConnectFrames) -> None:
        """Keep frames on the executors that compute them."""
        with self._batches_of(frames):
            self._keeping.keep(frames)

    def unpersist(self, frames: ConnectFrames | OnExecutors | OnDriver, *, wait: bool = False) -> None:
        """Stop keeping frames."""
        if isinstance(frames, ConnectFrames):
            self._keeping.let_go(frames, wait=wait)
        else:
            frames.release()

    def forget(self, frames: ConnectFrames, partition: int) -> None:
        """Let the next job compute the frames again: all of them, for Spark Connect knows no partitions."""
        for rows in reversed([rows for rows in frames.line if rows.persisted]):
            self.unpersist(rows, wait=True)
            rows.replace(None)
            self.persist(rows)

    def run_on_persisted(self, persisted: OnExecutors | OnDriver, task: Task) -> list[bytes]:
        """Run a task over the pieces that a chain has left."""
        return persisted.run(task)

    def keep(self, pieces: Iterable[tuple[int, bytes | Parts]], shards: int, shard_bytes: int) -> OnDriver:
        """Keep pieces on the driver until the next group takes them along."""
        found: list[list[bytes]] = [[] for _ in range(shards)]
        for shard, piece in pieces:
            found[shard].append(frame.join(piece))
        return OnDriver(found)

    @contextmanager
    def _batches_of(self, frames: ConnectFrames) -> Iterator[None]:
        """Let tasks get as many rows of the source at a time as frames say; one thread at a time."""
        wanted = frames.batch
        if wanted is None:
            yield
            return
        with self._lock:
            before = self.spark.conf.get(_BATCH_ROWS, None)
            self._set_batch_rows(str(wanted))
            try:
                yield
            finally:
                self._set_batch_rows(before)

    def _set_batch_rows(self, rows: str | None) -> None:
        """Set a conf; where a session refuses that, tasks get as many rows at a time as it says."""
        if self._refused:
            return
        try:
            if rows is None:
                self.spark.conf.unset(_BATCH_ROWS)
            else:
                self.spark.conf.set(_BATCH_ROWS, rows)
        except Exception as error:
            if not is_job_failure(error):
                raise
            self._refused = True
            _log.info(
                "this session lets nobody set %s (%s): tasks that build the partition store get as many rows "
                "at a time as it says, which takes more memory if rows are large",
                _BATCH_ROWS,
                str(error).strip().split("\n")[0],
            )


def _linger(task: Task, partition: int, frames: Iterator[Any]) -> Iterator[bytes | Parts]:
    """Run a task and stay for a moment, so that others get the other slots."""
    yield from task(partition, frames)
    time.sleep(_LINGER_SECONDS)


def _occupy(_: int, frames: Iterator[Any]) -> Iterator[bytes]:
    """Say which executor and process this is, after a moment in which Spark has used every other slot."""
    deque(frames, maxlen=0)
    time.sleep(2 * _LINGER_SECONDS)
    yield f"{local_folders()[0]} {os.getpid()}".encode()
