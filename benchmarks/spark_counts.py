"""What Spark itself counted: jobs, stages and tasks that ran, and shuffle bytes, from its status store."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from py4j.protocol import Py4JJavaError


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
    stages = sum(int(j.numCompletedStages()) for j in jobs)
    tasks = sum(int(j.numCompletedTasks()) for j in jobs)
    stage_ids: set[int] = set()
    for j in jobs:
        ids = j.stageIds()
        stage_ids |= {int(ids.apply(i)) for i in range(ids.size())}
    found = [stage for stage in (_stage(store, number) for number in stage_ids) if stage is not None]
    complete = [stage for stage in found if stage.status().toString() == "COMPLETE"]  # others are skipped
    if len(complete) < stages:
        raise RuntimeError(
            f"Spark's status store has forgotten {stages - len(complete)} of {stages} stages: count fewer "
            "iterations, or raise spark.ui.retainedStages"
        )
    read = sum(int(stage.shuffleReadBytes()) for stage in complete)
    written = sum(int(stage.shuffleWriteBytes()) for stage in complete)
    return Counts(len(jobs), stages, tasks, read, written)


def _stage(store: Any, number: int) -> Any:
    """Return what the store knows of a stage, ``None`` if it has forgotten it.

    It keeps ``spark.ui.retainedStages``, and of more than these forgets the skipped ones first, for they
    have no time at which they ended.
    """
    try:
        return store.lastStageAttempt(number)
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() != "NoSuchElementException":
            raise
        return None


def settle(sc: Any) -> None:
    """Wait until the status store has heard of everything that has happened."""
    sc._jsc.sc().listenerBus().waitUntilEmpty()
    time.sleep(0.2)  # it writes running totals with a delay
