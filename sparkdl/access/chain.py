"""A Spark job as a chain of stages, with an exchange of all with all between them.

The driver schedules one job and hears of the iterations when it ends. Drizzle (Venkataraman et al., SOSP
2017, section 3.1) calls this group scheduling, and changes Spark's scheduler for it; where all stages of a
group can be told beforehand, a job of a stock Spark does the same. Where tasks exchange directly a chain has
one stage, whose tasks have a rank each, or several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl._spark.frames import JavaObject
from sparkdl._spark.jobs import FrameJobs
from sparkdl.access import in_pieces as pieces
from sparkdl.access.gathered import LACKING, AtHome, Gathered, by_executor
from sparkdl.access.in_pieces import ChainTask, InPieces
from sparkdl.access.stages import FRAMES_PER_RANK, RESULT, STATE, Host
from sparkdl.wire.frame import Buffer
from sparkdl.wire.pieces import joined


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


@dataclass(frozen=True, slots=True)
class GatheredStages:
    """Runs such stages over a partition store; see :class:`sparkdl.access.stages.Gathering`."""

    jobs: FrameJobs
    rows: JavaObject
    ranks: int
    profile: JavaObject | None
    forget: Callable[[int], None]

    def executors(self) -> set[str]:
        """Return the ids of the executors that take tasks now."""
        return self.jobs.executors()

    def hosts(self, slots: int) -> list[Host]:
        """Return the tasks of which each has several ranks."""
        jobs = self.jobs
        for partition, place in enumerate(jobs.places(self.rows)):
            if not place:  # lost, or where no task runs any more
                self.forget(partition)
        jobs.describe("sparkdl: see where partitions are")
        try:
            tokens = jobs.collect(self.rows)
        finally:
            jobs.describe(None)
        places = jobs.places(self.rows)
        groups = by_executor(places, slots)
        return [Host(places[own[0]], [tokens[partition] for partition in own]) for own in groups]

    def run(
        self,
        task: ChainTask,
        hosts: Sequence[Host],
        broadcasts: Sequence[Any],
        name: str,
        *,
        kept_bytes: int | None = None,
    ) -> tuple[list[Buffer], JavaObject | None]:
        """Run one stage."""
        jobs, profile, by_rank = self.jobs, self.profile, kept_bytes is not None
        shuffled = None
        run = Gathered(task, [host.tokens for host in hosts], by_rank)
        stage = jobs.stage(jobs.located([host.executor for host in hosts]), run, broadcasts, profile=profile)
        if by_rank:  # a partition for each shard
            shuffled = jobs.shuffle(jobs.keyed(stage), self.ranks)
            stage = jobs.stage(jobs.values(shuffled), AtHome(), profile=profile)
        results, kept = collect(jobs, stage, shuffled, name, kept_bytes)
        found = [data for data in results if data != LACKING]
        if len(found) < len(results):
            jobs.unpersist(kept)
            kept = None
        return found, kept


def collect(
    jobs: FrameJobs, stage: JavaObject, shuffled: JavaObject | None, name: str, kept_bytes: int | None
) -> tuple[list[Buffer], JavaObject | None]:
    """Run the job whose last stage this is.

    Args:
        jobs: Spark access.
        stage: yields keyed frames.
        shuffled: what it reads, which nobody needs afterwards.
        name: names the job in the Spark UI.
        kept_bytes: length of a frame that stays, about; ``None`` if none does.
    """
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


def staying(jobs: FrameJobs, keyed_frames: JavaObject) -> JavaObject:
    """Return the frames that an earlier job left for the shards."""
    return jobs.select(jobs.keyed(keyed_frames), STATE, drop=[RESULT])
