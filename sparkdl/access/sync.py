"""The parameter sync of a classic session: the map side of a shuffle, and the jobs that read it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from sparkdl._spark.frames import JavaObject
from sparkdl._spark.jobs import FrameJobs
from sparkdl.access.chain import staying
from sparkdl.access.in_pieces import RESULT, STATE, ChainTask, InPieces
from sparkdl.wire.frame import Buffer
from sparkdl.wire.pieces import joined


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
        self._kept: JavaObject | None = None

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release what was shuffled."""
        jobs = self._jobs
        try:
            if error is not None and self._kept is not None:
                jobs.unpersist(self._kept)
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

        Args:
            task: yields frames for the driver; if ``leaves``, keyed ones as the last stage of a chain.
            name: names the job in the Spark UI.
            leaves: whether later jobs get what stays in place of what was scattered.
        """
        results = self._stage(task, keyed=leaves)
        if leaves:
            self._left = results
            self._jobs.persist(results)
        return self._collect(results, name, keyed=leaves)

    def finish(
        self, task: ChainTask, name: str, *, kept_bytes: int | None
    ) -> tuple[list[Buffer], JavaObject | None]:
        """Run the last job, which keeps frames of about so many bytes, if any."""
        keyed = kept_bytes is not None
        results = self._stage(task, keyed=keyed)
        if kept_bytes is not None:
            self._kept = results
            self._jobs.persist_replicated(results, kept_bytes)
        return self._collect(results, name, keyed=keyed), self._kept

    def _stage(self, task: ChainTask, *, keyed: bool) -> JavaObject:
        """Return the stage in which the frames of a shard meet its state."""
        jobs = self._jobs
        arriving = jobs.values(self._shuffled) if self._left is None else staying(jobs, self._left)
        if self._state is not None:
            arriving = jobs.union(staying(jobs, self._state), arriving)
        run = InPieces(task, token=False, keyed=keyed)
        return jobs.stage(arriving, run, self._broadcasts, preserves_partitioning=True)

    def _collect(self, results: JavaObject, name: str, *, keyed: bool) -> list[Buffer]:
        """Run a job, and return its frames for the driver."""
        jobs = self._jobs
        if keyed:
            results = jobs.select(jobs.keyed(results), RESULT, drop=[STATE])
        jobs.describe(name)
        return list(joined(jobs.collect(results)))
