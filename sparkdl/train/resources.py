"""The threads of a task, and the resource profile that tells Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparkdl._spark import session
from sparkdl._spark.frames import JavaObject
from sparkdl.session import Executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def threads_per_task(executors: Executors, partitions: int) -> int:
    """Divide an executor's cores among the tasks that run on it at a time.

    One partition per executor gives one task with all cores; more partitions share them.
    """
    tasks = min(-(-partitions // executors.count), executors.cores)
    return max(1, executors.cores // tasks)


def task_resource_amounts(conf: Mapping[str, str]) -> dict[str, float]:
    """Return the amount of each resource, such as ``gpu``, that ``spark.task.resource.*`` asks for."""
    found = {_AMOUNT.fullmatch(name): value for name, value in conf.items()}
    return {match[1]: float(value) for match, value in found.items() if match is not None}


_AMOUNT = re.compile(r"spark\.task\.resource\.(.+)\.amount")


def task_profile(spark: SparkSession, executors: Executors, partitions: int) -> JavaObject | None:
    """Return the resource profile that gives a task its threads' cores, where Spark can.

    It keeps Spark from putting two multi-threaded tasks on one executor. ``None`` in local mode,
    with dynamic allocation (a profile would ask for executors of its own, away from the data), and
    where the cluster manager does not support task profiles.
    """
    threads = threads_per_task(executors, partitions)
    conf = spark.sparkContext.getConf()
    master = str(spark.sparkContext.master)
    local = master.startswith("local") and not master.startswith("local-cluster")
    if threads == 1 or local or conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return None
    # A profile does not inherit what the confs ask for.
    return session.task_profile(spark.sparkContext, threads, task_resource_amounts(dict(conf.getAll())))
