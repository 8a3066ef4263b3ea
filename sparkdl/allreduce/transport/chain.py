"""A Spark job as a chain of stages, with an exchange of all with all between them.

The driver schedules one job and hears of the iterations when it ends. Drizzle (Venkataraman et al., SOSP
2017, section 3.1) calls this group scheduling, and changes Spark's scheduler for it; where all stages of a
group can be told beforehand, a job of a stock Spark does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl._spark.frames import JavaObject
from sparkdl._spark.jobs import FrameJobs
from sparkdl.allreduce import in_pieces as pieces
from sparkdl.allreduce.in_pieces import ChainTask, InPieces
from sparkdl.allreduce.persisted import RESULT, STATE
from sparkdl.data.built import Store
from sparkdl.frame import Buffer
from sparkdl.pieces import joined

FRAMES_PER_RANK = 2
"""Each task sends each partition so many frames, some of them empty: of the first one the length is known."""


class Chain:
    """Builds and runs chains over a partition store.

    Args:
        jobs: Spark access.
        store: the partition store.
        profile: resource profile of the tasks.
    """

    def __init__(self, jobs: FrameJobs, store: Store, profile: JavaObject | None) -> None:
        self._jobs = jobs
        self._store = store
        self._profile = profile
        self._frames = 0
        self._tokens: JavaObject | None = None

    def run(
        self,
        tasks: Sequence[ChainTask],
        broadcasts: Sequence[Any],
        name: str,
        frame_bytes: int,
        *,
        kept_bytes: int | None = None,
    ) -> tuple[list[Buffer], JavaObject | None]:
        """Run the stages.

        Args:
            tasks: the task of each stage. All but the last yield two keyed frames for each partition; its
                frames go to the driver and stay, by their keys. The first one gets a partition's token,
                the others what has arrived for it too.
            broadcasts: broadcasts that the tasks read.
            name: names the job in the Spark UI.
            frame_bytes: bytes of the first frame that a task sends to a partition, about; the second one is
                small.
            kept_bytes: length of a frame that stays after the last stage, about; ``None`` if none does.

        Returns:
            Frames for the driver, and the persisted RDD of the shards' state.
        """
        jobs, store, ranks = self._jobs, self._store, len(self._store.partitions)
        cut, blocks = pieces.count(frame_bytes), pieces.blocks(frame_bytes)
        tokens = self._padded(cut + FRAMES_PER_RANK - 1)
        stage = shuffled = None
        for number, task in enumerate(tasks, start=1):
            arriving = store.tokens
            if stage is not None:
                shuffled = jobs.shuffle(jobs.keyed(stage), ranks * blocks)
                values = jobs.values(shuffled)
                # Zipped with the tokens, by which Spark runs the tasks where the rows are.
                arriving = jobs.zip(tokens, jobs.coalesce(values, ranks) if blocks > 1 else values)
            last = number == len(tasks)
            run = InPieces(task) if last else InPieces(task, pieces=cut, blocks=blocks)
            stage = jobs.stage(arriving, run, broadcasts, profile=self._profile)
        kept = None
        if kept_bytes is not None:
            kept = stage
            jobs.persist_replicated(kept, kept_bytes)
        jobs.describe(name)
        try:
            results = jobs.select(jobs.keyed(stage), RESULT, drop=[] if kept is None else [STATE])
            return list(joined(jobs.collect(results))), kept
        except BaseException:
            if kept is not None:
                jobs.unpersist(kept)
            raise
        finally:
            jobs.describe(None)
            if shuffled is not None:
                jobs.release_shuffle(shuffled)

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""
        for rdd in (self._store.tokens, self._tokens):
            if rdd is not None:
                self._jobs.drop_block(rdd.id(), partition)

    def release(self) -> None:
        """Delete all files on the executors for the store."""
        if self._tokens is not None:
            self._jobs.unpersist(self._tokens)
            self._tokens = None

    def _padded(self, frames: int) -> JavaObject:
        """Return the tokens, each followed by as many empty frames as a stage is to read.

        Args:
            frames: number of frames that a rank gets from each.
        """
        if self._tokens is None or self._frames != frames:
            self.release()
            pad = _Pad(frames * len(self._store.partitions))
            self._tokens = self._jobs.stage(self._store.tokens, pad, profile=self._profile)
            self._jobs.persist(self._tokens)
            self._frames = frames
        return self._tokens


@dataclass(frozen=True, slots=True)
class _Pad:
    """Task that appends empty frames to a token."""

    frames: int

    def __call__(self, _: int, tokens: Iterator[bytes]) -> Iterator[bytes]:
        """Yield them."""
        yield from tokens
        yield from [b""] * (self.frames - 1)
