"""Stages of a classic session's jobs over a partition store: chains with exchanges, and the parameter sync.

A chain is a job whose stages have an exchange of all with all between them. The driver schedules one job,
and hears of the iterations when it ends. Drizzle (Venkataraman et al., SOSP 2017, section 3.1) calls this
group scheduling, and changes Spark's scheduler for it; where all stages of a group can be told beforehand, a
job of a stock Spark does the same. Where tasks exchange directly a chain has one stage, whose tasks have a
rank each, or several if fewer tasks run than there are partitions. Tokens come with a task of several ranks,
not from the store's RDD: a partition that is built again inside of another one's task would take that one's
number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from sparkdl._spark.frames import JavaObject, key, pairs_of
from sparkdl._spark.jobs import FrameJobs
from sparkdl.access import in_pieces as pieces
from sparkdl.access.in_pieces import FRAMES_PER_RANK, RESULT, STATE, ChainTask, InPieces, cut_keyed
from sparkdl.wire.frame import Buffer, Parts
from sparkdl.wire.pieces import joined


class StageChain:
    """Builds and runs chains over a partition store; ``gathering`` runs tasks of several ranks."""

    stays = True  # tokens are zipped with what arrives, by which Spark runs tasks where the rows are

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
        persisted_bytes: int | None = None,
    ) -> tuple[list[Buffer], JavaObject | None]:
        """Run the stages; see :class:`sparkdl.access.base.Chain`."""
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
        return _collect(jobs, stage, shuffled, name, persisted_bytes)

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""
        self._jobs.forget(self._rows if self._tokens is None else self._tokens, partition)

    def release(self) -> None:
        """Delete all files on the executors for the store."""
        if self._tokens is not None:
            self._jobs.unpersist(self._tokens)
            self._tokens = None

    def _padded(self, frames: int) -> JavaObject:
        """Return the tokens, each followed by empty frames: so many for each rank, the token among them."""
        if self._tokens is None or self._frames != frames:
            self.release()
            pad = partial(_pad, frames * self._ranks)
            self._tokens = self._jobs.stage(self._rows, pad, profile=self._profile)
            self._jobs.persist(self._tokens)
            self._frames = frames
        return self._tokens


def _pad(frames: int, _: int, tokens: Iterator[bytes]) -> Iterator[bytes]:
    """Append empty frames to a token, so that there are so many."""
    yield from tokens
    yield from [b""] * (frames - 1)


@dataclass(frozen=True, slots=True)
class Host:
    """A task that has several ranks."""

    executor: str  # id of the executor where it is to run, if that is there
    tokens: Sequence[bytes]  # the tokens of their partitions


@dataclass(frozen=True, slots=True)
class Gathered:
    """A task over the tokens of several ranks, whose frames leave in pieces."""

    task: ChainTask
    tokens: Sequence[Sequence[bytes]]  # what each task gets, in place of frames
    # whether what leaves goes to the partition of its rank, for :func:`at_home`; frames for the driver go
    # along with the first one's
    by_rank: bool

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterable[bytes | Parts]:
        """Run the task."""
        deque(frames, maxlen=0)
        leaving = self.task(partition, iter(self.tokens[partition]))
        return cut_keyed(partition, self._addressed(leaving) if self.by_rank else leaving)

    def _addressed(self, leaving: Iterable[bytes | Parts]) -> Iterator[bytes | Parts]:
        """Yield each frame after a frame with its key, both after the key of the partition that gets them."""
        for to, data in pairs_of(leaving):
            stays = to >= STATE
            home = key(to - STATE if stays else 0)
            yield from (home, key(STATE if stays else RESULT), home, data)


LACKING = b"lacking"
"""What a partition sends the driver to which nothing has come.

If what a task has sent is lost, Spark runs it again, alone: it finds no other ranks then.
"""


def at_home(partition: int, pieces: Iterator[bytes]) -> Iterator[bytes | Parts]:
    """Keep what :class:`Gathered` has sent to a partition there: yield keys and pieces."""
    return cut_keyed(partition, _pairs(joined(pieces)))


def _pairs(frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
    """Yield keys and frames in turn."""
    stays = False
    for found in frames:
        to = bytes(found)
        stays = stays or to == key(STATE)
        yield to
        yield [next(frames)]
    if not stays:
        yield key(RESULT)
        yield LACKING


def by_executor(places: Sequence[str], slots: int) -> list[list[int]]:
    """Return partitions in groups, each on one executor, of which none has more groups than task slots."""
    found: dict[str, list[int]] = {}
    for partition, place in enumerate(places):
        found.setdefault(place, []).append(partition)
    return [own[n::slots] for own in found.values() for n in range(min(slots, len(own)))]


@dataclass(frozen=True, slots=True)
class GatheredStages:
    """Runs stages of fewer tasks than ranks over a partition store."""

    jobs: FrameJobs
    rows: JavaObject
    ranks: int
    profile: JavaObject | None
    forget: Callable[[int], None]

    def executors(self) -> set[str]:
        """Return the ids of the executors that take tasks now."""
        return self.jobs.executors()

    def hosts(self, slots: int) -> list[Host]:
        """Return the tasks of which each has all ranks whose rows are on its executor, or some of them.

        An executor has no more tasks than slots. Builds partitions again that are lost, or whose executor
        takes no more tasks.
        """
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
        persisted_bytes: int | None = None,
    ) -> tuple[list[Buffer], JavaObject | None]:
        """Run one stage; return the frames for the driver, and what stays, if that is complete.

        ``task`` gets the tokens of several partitions, those of a host. The key of what stays is ``STATE``
        and the number of the rank for which it does; ``persisted_bytes`` is about its length, ``None`` if
        nothing stays.
        """
        jobs, profile, by_rank = self.jobs, self.profile, persisted_bytes is not None
        shuffled = None
        run = Gathered(task, [host.tokens for host in hosts], by_rank)
        stage = jobs.stage(jobs.located([host.executor for host in hosts]), run, broadcasts, profile=profile)
        if by_rank:  # a partition for each shard
            shuffled = jobs.shuffle(jobs.keyed(stage), self.ranks)
            stage = jobs.stage(jobs.values(shuffled), at_home, profile=profile)
        results, persisted = _collect(jobs, stage, shuffled, name, persisted_bytes)
        found = [data for data in results if data != LACKING]
        if len(found) < len(results):
            jobs.unpersist(persisted)
            persisted = None
        return found, persisted


def _collect(
    jobs: FrameJobs, stage: JavaObject, shuffled: JavaObject | None, name: str, persisted_bytes: int | None
) -> tuple[list[Buffer], JavaObject | None]:
    """Run the job whose last stage this is, and let go of ``shuffled``, which it reads.

    Frames of about ``persisted_bytes`` stay; none do if that is ``None``.
    """
    persisted = None
    if persisted_bytes is not None:
        persisted = stage
        jobs.persist_replicated(persisted, persisted_bytes)
    jobs.describe(name)
    try:
        results = jobs.select(jobs.keyed(stage), RESULT, drop=[] if persisted is None else [STATE])
        return list(joined(jobs.collect(results))), persisted
    except BaseException:
        if persisted is not None:
            jobs.unpersist(persisted)
        raise
    finally:
        jobs.describe(None)
        if shuffled is not None:
            jobs.release_shuffle(shuffled)


def staying(jobs: FrameJobs, keyed_frames: JavaObject) -> JavaObject:
    """Return the frames that an earlier job left for the shards."""
    return jobs.select(jobs.keyed(keyed_frames), STATE, drop=[RESULT])


class ShuffledSync:
    """Runs an iteration as jobs of its own: one that scatters frames to shards, and those that reduce them.

    It is a context, at whose end everything is released but what stays; after an error, that too.
    """

    def __init__(
        self,
        jobs: FrameJobs,
        scattered: JavaObject,
        shards: int,
        state: JavaObject | None,
        broadcasts: Sequence[Any],
    ) -> None:
        self._jobs = jobs
        self._shuffled = jobs.shuffle(jobs.keyed(scattered), shards)
        self._state = state
        self._broadcasts = broadcasts
        self._left: JavaObject | None = None  # in place of what was shuffled
        self._persisted: JavaObject | None = None

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release what was shuffled."""
        jobs = self._jobs
        try:
            if error is not None and self._persisted is not None:
                jobs.unpersist(self._persisted)
        finally:
            jobs.describe(None)
            if self._left is not None:
                jobs.unpersist(self._left)
            jobs.release_shuffle(self._shuffled)

    def scatter(self, name: str) -> None:
        """Run the map side of the shuffle."""
        self._jobs.describe(name)
        self._jobs.run_map_side(self._shuffled)

    def reduce(self, task: ChainTask, name: str, *, leaves: bool) -> list[Buffer]:
        """Run a job over the frames of each shard: its state, and what was scattered to it.

        If it ``leaves`` what stays, in place of what was scattered, for later jobs, the task yields keyed
        frames as the last stage of a chain does.
        """
        results = self._stage(task, keyed=leaves)
        if leaves:
            self._left = results
            self._jobs.persist(results)
        return self._collect(results, name, keyed=leaves)

    def finish(
        self, task: ChainTask, name: str, *, persisted_bytes: int | None
    ) -> tuple[list[Buffer], JavaObject | None]:
        """Run the last job, which keeps frames of about so many bytes, if any."""
        keyed = persisted_bytes is not None
        results = self._stage(task, keyed=keyed)
        if persisted_bytes is not None:
            self._persisted = results
            self._jobs.persist_replicated(results, persisted_bytes)
        return self._collect(results, name, keyed=keyed), self._persisted

    def _stage(self, task: ChainTask, *, keyed: bool) -> JavaObject:
        """Return the stage in which the frames of a shard meet its state."""
        jobs = self._jobs
        arriving = jobs.values(self._shuffled) if self._left is None else staying(jobs, self._left)
        if self._state is not None:
            arriving = jobs.union(staying(jobs, self._state), arriving)
        run = InPieces(task, token=False, keyed=keyed)
        return jobs.stage(arriving, run, self._broadcasts, preserves_partitioning=True)

    def _collect(self, results: JavaObject, name: str, *, keyed: bool) -> list[Buffer]:
        jobs = self._jobs
        if keyed:
            results = jobs.select(jobs.keyed(results), RESULT, drop=[STATE])
        jobs.describe(name)
        return list(joined(jobs.collect(results)))
