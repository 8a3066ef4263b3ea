"""The threads of a task, and the resource profile that tells Spark."""

from __future__ import annotations

from typing import Any

from sparkdl.access.base import Access
from sparkdl.session import Executors


def threads_per_task(executors: Executors, partitions: int) -> int:
    """Divide an executor's cores among the tasks that run on it at a time.

    One partition per executor gives one task with all cores; more partitions share them. Where
    ``spark.task.cpus`` gives a task several cores, it has at least those.
    """
    tasks = min(-(-partitions // executors.count), executors.tasks)
    return max(1, executors.cores // tasks)


def task_profile(access: Access, executors: Executors, partitions: int) -> Any:
    """Return the resource profile that gives a task its threads' cores, where Spark can."""
    return access.profile(threads_per_task(executors, partitions))
