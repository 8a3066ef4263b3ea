"""Checks of a Spark session and its executors."""

from __future__ import annotations

import os
import platform
import re
from typing import TYPE_CHECKING, Any, cast

from sparkdl.cli.doctor import probe
from sparkdl.cli.doctor.probe import NEEDED_IN_TASKS
from sparkdl.cli.doctor.report import NO_BYTECODE, DoctorReport, size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FREE_BYTES = 1 << 30
_BUSY = 1.5  # load per core


def check_session(report: DoctorReport, master: str | None, conf: dict[str, str], plain: bool) -> None:
    """Report what a session of its own offers, and its executors."""
    try:
        spark = _start(master, conf, plain)
    except Exception as error:
        report.problems.append(f"the Spark session did not start: {_first_line(error)}")
        return
    try:
        spark.sparkContext.setLogLevel("ERROR")
        _check_confs(report, spark)
        _check_executors(report, spark)
    finally:
        spark.stop()


def _start(master: str | None, conf: dict[str, str], plain: bool) -> SparkSession:
    from pyspark.sql import SparkSession

    from sparkdl import session
    from sparkdl._spark import logs

    logs.set_up()
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit
        master = "local[*]"
    if not plain:
        return session.builder(master, "sparkdl-doctor", conf).getOrCreate()
    builder = SparkSession.builder.appName("sparkdl-doctor")
    if master is not None:
        builder = builder.master(master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _check_confs(report: DoctorReport, spark: SparkSession) -> None:
    from sparkdl import session
    from sparkdl.exceptions import ConfigError

    conf = spark.sparkContext.getConf()
    lacking = {setting.name for setting in session.missing(spark)}
    version = session.spark_version(spark)
    for setting in session.SETTINGS:
        if version >= setting.since:
            report.confs.append(
                {
                    "name": setting.name,
                    "found": conf.get(setting.name),
                    "wanted": setting.value,
                    "ok": setting.name not in lacking,
                }
            )
            if setting.name in lacking:
                report.advice.append(f"set {setting.name}={setting.value}: without it {setting.cost}")
    try:
        session.check_encryption(spark)
    except ConfigError as error:
        report.problems.append(str(error))
    for name, bad, value, cost in _WATCHED:
        if re.fullmatch(bad, conf.get(name) or ""):
            report.advice.append(f"set {name}={value}: with {conf.get(name)} {cost}")


_WATCHED = (
    (
        "spark.python.worker.reuse",
        "false",
        "true",
        "every task starts a Python process and imports torch, which takes seconds",
    ),
    (
        "spark.dynamicAllocation.enabled",
        "true",
        "false",
        "executors that come late get no rows, and rows of those that leave are built again",
    ),
    (
        "spark.executor.pyspark.memory",
        ".*[1-9].*",
        "0",
        "the address space of Python workers is limited, and mapped rows and torch's libraries count",
    ),
)
"""Confs that some clusters set to what hurts: name, pattern of bad values, better value, cost."""


def _check_executors(report: DoctorReport, spark: SparkSession) -> None:
    from sparkdl import session
    from sparkdl.exceptions import ConfigError
    from sparkdl.train.shipped import threads_per_task

    report.spark = {"master": str(spark.sparkContext.master), "version": spark.version}
    waiting_failed: Exception | None = None
    try:
        executors = session.executors(spark)
    except ConfigError as error:
        report.problems.append(str(error))
        return
    except Exception as error:  # a task of its own failed: the probe's answers say more
        waiting_failed = error
        executors = session.Executors(1, int(spark.sparkContext.defaultParallelism))
    else:
        report.spark |= {"executors": executors.count, "slots": executors.tasks}
    report.spark["threads_per_task"] = threads_per_task(executors, executors.count)
    try:
        report.tasks = _probe_executors(spark, executors.count * executors.tasks)
    except Exception as error:
        report.problems.append(_task_failure(error))
        return
    if len(report.tasks) < executors.count:
        report.advice.append(
            f"tasks reached {len(report.tasks)} of {executors.count} executors: is the cluster busy with "
            "other jobs?"
        )
    for task in report.tasks:
        _judge(report, task)
    # Executors of one host mostly lack the same.
    report.problems = list(dict.fromkeys(report.problems))
    report.advice = list(dict.fromkeys(report.advice))
    if waiting_failed is not None and report.can_train:
        report.problems.append(_task_failure(waiting_failed))


def _probe_executors(spark: SparkSession, slots: int) -> list[dict[str, Any]]:
    """Fill every slot with one task that looks around; returns one answer per executor."""
    from pyspark import cloudpickle

    # By value: whether sparkdl can be imported there is one of the questions.
    this, pickler = probe, cast("Any", cloudpickle)
    pickler.register_pickle_by_value(this)
    try:
        tasks = spark.sparkContext.parallelize(range(slots), slots).mapPartitions(probe.probe).collect()
    finally:
        pickler.unregister_pickle_by_value(this)
    return list({(task["host"], *task["local_dirs"]): task for task in tasks}.values())


def _judge(report: DoctorReport, task: dict[str, Any]) -> None:
    """Turn what a task found on an executor into problems and advice."""
    where = f"executor on {task['host']}"
    python = f"its Python is {task['executable']}"
    for name in NEEDED_IN_TASKS:
        found, here = task["packages"][name], report.versions[name]
        if name in task["failures"] or found is None:
            why = task["failures"].get(name, "not installed")
            report.problems.append(
                f"{where} cannot import {name} ({why}); {python}: install it there, point PYSPARK_PYTHON at "
                "an environment that has it, or ship one with spark.archives"
            )
        elif found != here and name == "sparkdl":
            report.problems.append(
                f"{where} has sparkdl {found}, this driver has {here}: tasks and driver must have one version"
            )
        elif found != here and name == "torch":
            report.advice.append(
                f"{where} has torch {found}, this driver has {here}: install one version everywhere, or "
                "modules may not load and results may differ in their last bits"
            )
    for folder in task["unwritable"]:
        report.problems.append(
            f"{where} cannot write to {folder}: set SPARK_LOCAL_DIRS (spark.local.dir) to a writable one"
        )
    if task["local_dirs"] and task["free_bytes"] < _FREE_BYTES:
        report.advice.append(
            f"{where} has {size(task['free_bytes'])} free in its local directories, where rows and shuffle "
            "files go: set SPARK_LOCAL_DIRS (spark.local.dir) to a larger disk"
        )
    if not task["has_bytecode"]:
        report.advice.append(f"{where} {NO_BYTECODE}")
    threads = report.spark["threads_per_task"]
    if task["cores"] < threads:
        report.advice.append(
            f"{where} may use {task['cores']} cores, but Spark gives its tasks {threads}: set "
            f"spark.executor.cores={task['cores']}, or threads wait for each other"
        )
    if threads > 1 and task["load"] > _BUSY and task["wait_policy"] != "passive":
        report.advice.append(
            f"{where}: its machine is busy (load {task['load']:.1f} per core). If that is other work, set "
            "spark.executorEnv.OMP_WAIT_POLICY=passive: torch's waiting threads otherwise spin, and steps "
            "take many times as long"
        )


def _task_failure(error: Exception) -> str:
    from sparkdl._spark.errors import task_error

    text = str(getattr(error, "java_exception", None) or error)
    mismatch = re.search(r"Python in worker has different version.*", text)
    if mismatch or "PYTHON_VERSION_MISMATCH" in text:
        return (
            f"executors run another Python than this driver ({platform.python_version()}): point "
            "PYSPARK_PYTHON at the same minor version, or ship an environment with spark.archives"
        )
    program = re.search(r'Cannot run program "([^"]+)"', text)
    if program:
        return (
            f"executors have no {program.group(1)!r} to run: point PYSPARK_PYTHON at a Python that exists "
            "there, or ship an environment with spark.archives"
        )
    return f"a small Python job failed on the executors: {_first_line(task_error(error, 'checking'))}"


def _first_line(error: Exception) -> str:
    text = str(getattr(error, "java_exception", None) or error)
    return next((line.strip() for line in text.splitlines() if line.strip()), repr(error))
