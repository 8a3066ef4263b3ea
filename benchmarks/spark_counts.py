"""What Spark itself counted: jobs, stages and tasks that ran, and shuffle bytes, from its status store."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals over a group of jobs; skipped stages and tasks are not in them."""

    jobs: int = 0
    stages: int = 0
    tasks: int = 0
    shuffle_read: int = 0
    shuffle_write: int = 0

    def __sub__(self, other: Counts) -> Counts:
        mine, theirs = asdict(self), asdict(other)
        return Counts(**{name: mine[name] - theirs[name] for name in mine})


def last_job(sc: Any) -> int:
    """Return the id of the newest job the store knows, -1 if there is none.

    The store keeps the newest jobs only (``spark.ui.retainedJobs``): count with few jobs between.
    """
    settle(sc)
    jobs = sc._jsc.sc().statusStore().jobsList(None)
    return int(max((jobs.apply(i).jobId() for i in range(jobs.size())), default=-1))


def counts_after(sc: Any, job: int) -> Counts:
    """Add up the jobs with an id above ``job``."""
    settle(sc)
    store = sc._jsc.sc().statusStore()
    listed = store.jobsList(None)
    jobs = [listed.apply(i) for i in range(listed.size())]
    jobs = [j for j in jobs if j.jobId() > job]
    stage_ids: set[int] = set()
    for j in jobs:
        ids = j.stageIds()
        stage_ids |= {int(ids.apply(i)) for i in range(ids.size())}
    stages = tasks = read = written = 0
    for stage_id in stage_ids:
        stage = store.lastStageAttempt(stage_id)
        if stage.status().toString() != "COMPLETE":
            continue  # skipped: its shuffle files were there already
        stages += 1
        tasks += stage.numCompleteTasks()
        read += stage.shuffleReadBytes()
        written += stage.shuffleWriteBytes()
    return Counts(len(jobs), stages, tasks, read, written)


def settle(sc: Any) -> None:
    """Wait until the status store has heard of everything that has happened."""
    sc._jsc.sc().listenerBus().waitUntilEmpty()
    time.sleep(0.2)  # it writes running totals with a delay
