"""A group of iterations as one Spark job, a chain of stages with an exchange of all with all between them.

The driver schedules one job and hears of the iterations when it ends. Drizzle (Venkataraman et al., SOSP
2017, section 3.1) calls this group scheduling, and changes Spark's scheduler for it; where all stages of a
group can be told beforehand, a job of a stock Spark does the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl import frame
from sparkdl._spark import FrameJobs, JavaObject
from sparkdl.allreduce import update
from sparkdl.data.dataset import Store
from sparkdl.frame import Frame
from sparkdl.pieces import joined
from sparkdl.train import pieces
from sparkdl.train.pieces import ChainTask, InPieces


@dataclass(slots=True)
class Chained:
    """What a chain's job sent to the driver and left on the executors.

    Attributes:
        messages: frames for the driver.
        kept: persisted RDD of what stays.
        started: when the job began, in seconds since 1970.
        seconds: how long it took.
    """

    messages: list[Frame]
    kept: JavaObject | None
    started: float
    seconds: float


class Chain:
    """Builds and runs chains.

    Args:
        jobs: Spark access.
        keeps: whether anything stays on the executors when the last stage has run.
        profile: resource profile of the tasks.
    """

    def __init__(self, jobs: FrameJobs, keeps: bool, profile: JavaObject | None) -> None:
        self._jobs = jobs
        self._keeps = keeps
        self._profile = profile
        self._store: Store | None = None
        self._frames = 0
        self._tokens: JavaObject | None = None

    def run(
        self,
        store: Store,
        tasks: Sequence[ChainTask],
        broadcasts: Sequence[Any],
        describe: str,
        frame_bytes: int,
    ) -> Chained:
        """Run the stages.

        Args:
            store: the partition store.
            tasks: the task of each stage. All but the last yield two keyed frames for each partition, in the
                order of the partitions; the last one's go to the driver and stay, by their keys. The first
                one gets a partition's token, the others what has arrived for it too.
            broadcasts: broadcasts that the tasks read.
            describe: the job's name.
            frame_bytes: bytes of the first frame that a task sends to a partition, about; the second one is
                small.
        """
        jobs, partitions = self._jobs, len(store.partitions)
        started, begin = time.time(), time.perf_counter()
        cut, blocks = pieces.count(frame_bytes), pieces.blocks(frame_bytes)
        tokens = self._padded(store, cut + 1)
        stage = shuffled = None
        for number, task in enumerate(tasks, start=1):
            arriving = store.tokens
            if stage is not None:
                shuffled = jobs.shuffle(jobs.keyed(stage), partitions * blocks)
                values = jobs.values(shuffled)
                arriving = jobs.zip(tokens, jobs.coalesce(values, partitions) if blocks > 1 else values)
            run = InPieces(task) if number == len(tasks) else InPieces(task, pieces=cut, blocks=blocks)
            stage = jobs.stage(arriving, run, broadcasts, profile=self._profile)
        kept = stage if self._keeps else None
        if kept is not None:
            jobs.persist_replicated(kept, frame_bytes)
        drop = [update.STATE] if self._keeps else []
        jobs.describe(describe)
        try:
            received = jobs.collect(jobs.select(jobs.keyed(stage), update.RESULT, drop=drop))
        except BaseException:
            if kept is not None:
                jobs.unpersist(kept)
            raise
        finally:
            jobs.describe(None)
            jobs.release_shuffle(shuffled)
        messages = [frame.unpack(data) for data in joined(received)]
        return Chained(messages, kept, started, time.perf_counter() - begin)

    def forget(self, store: Store, partition: int) -> None:
        """Forget where a partition is, since its files are not there."""
        for rdd in (store.tokens, self._tokens):
            if rdd is not None:
                self._jobs.drop_block(rdd.id(), partition)

    def _padded(self, store: Store, frames: int) -> JavaObject:
        """Return the tokens, each followed by as many empty frames as a chain's stage is to read.

        What arrives at a stage is zipped with them, by which its tasks run where their rows are.

        Args:
            store: the partition store.
            frames: number of frames that a partition gets from each.
        """
        if self._store is not store or self._frames != frames:
            self.release()
            pad = _Pad(frames * len(store.partitions))
            self._tokens = self._jobs.stage(store.tokens, pad, profile=self._profile)
            self._jobs.persist(self._tokens)
            self._store, self._frames = store, frames
        return self._tokens

    def release(self) -> None:
        """Delete what is on the executors for the store."""
        if self._tokens is not None:
            self._jobs.unpersist(self._tokens)
            self._store = self._tokens = None


@dataclass(frozen=True, slots=True)
class _Pad:
    """Task that appends empty frames to a token."""

    frames: int

    def __call__(self, _: int, tokens: Iterator[bytes]) -> Iterator[bytes]:
        """Yield them."""
        yield from tokens
        yield from [b""] * (self.frames - 1)
