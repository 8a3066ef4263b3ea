"""Jobs of one stage whose tasks have several ranks each, on RDDs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl._spark.frames import JavaObject
from sparkdl._spark.jobs import FrameJobs
from sparkdl.access.base import Host
from sparkdl.access.collecting import collect
from sparkdl.access.gathered import LACKING, AtHome, Gathered, by_executor
from sparkdl.access.in_pieces import ChainTask
from sparkdl.frame import Buffer


@dataclass(frozen=True, slots=True)
class GatheredStages:
    """Runs such stages over a partition store; see :class:`sparkdl.access.base.Gathering`.

    Attributes:
        jobs: Spark access.
        rows: tokens of the partition store.
        ranks: how many there are.
        profile: resource profile of the tasks.
        forget: forgets where a partition's rows are.
    """

    jobs: FrameJobs
    rows: JavaObject
    ranks: int
    profile: JavaObject | None
    forget: Callable[[int], None]

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
        jobs, profile, homes = self.jobs, self.profile, kept_bytes is not None
        shuffled = None
        run = Gathered(task, [host.tokens for host in hosts], homes)
        stage = jobs.stage(jobs.located([host.executor for host in hosts]), run, broadcasts, profile=profile)
        if homes:  # a partition for each shard
            shuffled = jobs.shuffle(jobs.keyed(stage), self.ranks)
            stage = jobs.stage(jobs.values(shuffled), AtHome(), profile=profile)
        results, kept = collect(jobs, stage, shuffled, name, kept_bytes)
        found = [data for data in results if data != LACKING]
        if len(found) < len(results):
            jobs.unpersist(kept)
            kept = None
        return found, kept
