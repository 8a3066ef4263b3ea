"""A Spark job as a chain of stages, with an exchange of all with all between them.

The driver schedules one job and hears of the iterations when it ends. Drizzle (Venkataraman et al., SOSP
2017, section 3.1) calls this group scheduling, and changes Spark's scheduler for it; where all stages of a
group can be told beforehand, a job of a stock Spark does the same. Where tasks exchange directly a chain has
one stage, whose tasks have a rank each, or several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl._spark.frames import JavaObject
from sparkdl._spark.jobs import FrameJobs
from sparkdl.access import in_pieces as pieces
from sparkdl.access.gathered import GatheredStages, collect
from sparkdl.access.in_pieces import FRAMES_PER_RANK, RESULT, STATE, ChainTask, InPieces
from sparkdl.wire.frame import Buffer


class StageChain:
    """Builds and runs chains over a partition store.

    Attributes:
        stays: tokens are zipped with what arrives, by which Spark runs tasks where the rows are.
        gathering: runs tasks of several ranks.
    """

    stays = True

    def __init__(
        self,
        jobs: FrameJobs,
        tokens: JavaObject,
        ranks: int,
        profile: JavaObject | None,
        *,
        gathers: bool,
    ) -> None:
        self.gathering = GatheredStages(jobs, tokens, ranks, profile, self.forget) if gathers else None
        self._jobs = jobs
        self._rows = tokens
        self._ranks = ranks
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
        """Run the stages; see :class:`sparkdl.access.stages.Chain`."""
        jobs, ranks = self._jobs, self._ranks
        cut, blocks = pieces.count(frame_bytes), pieces.blocks(frame_bytes)
        stage = shuffled = None
        for number, task in enumerate(tasks, start=1):
            arriving = self._rows
            if stage is not None:
                shuffled = jobs.shuffle(jobs.keyed(stage), ranks * blocks)
                values = jobs.values(shuffled)
                tokens = self._padded(cut + FRAMES_PER_RANK - 1)
                # Zipped with the tokens, by which Spark runs the tasks where the rows are.
                arriving = jobs.zip(tokens, jobs.coalesce(values, ranks) if blocks > 1 else values)
            last = number == len(tasks)
            run = InPieces(task) if last else InPieces(task, pieces=cut, blocks=blocks)
            stage = jobs.stage(arriving, run, broadcasts, profile=self._profile)
        return collect(jobs, stage, shuffled, name, kept_bytes)

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""
        for rdd in (self._rows, self._tokens):
            if rdd is not None:
                self._jobs.drop_block(rdd.id(), partition)

    def release(self) -> None:
        """Delete all files on the executors for the store."""
        if self._tokens is not None:
            self._jobs.unpersist(self._tokens)
            self._tokens = None

    def _padded(self, frames: int) -> JavaObject:
        """Return the tokens, each followed by as many empty frames as a stage is to read."""
        if self._tokens is None or self._frames != frames:
            self.release()
            pad = _Pad(frames * self._ranks)
            self._tokens = self._jobs.stage(self._rows, pad, profile=self._profile)
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


def staying(jobs: FrameJobs, keyed_frames: JavaObject) -> JavaObject:
    """Return the frames that an earlier job left for the shards."""
    return jobs.select(jobs.keyed(keyed_frames), STATE, drop=[RESULT])
