"""``python -m sparkdl doctor``: what is installed, what a session offers, and what to change.

Everything is checked where it is needed: versions on the driver, and Python, torch, sparkdl and
the local directories from inside real tasks on the executors.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sparkdl import redaction
from sparkdl.arguments import key_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REQUIRED = ("pyspark", "torch", "numpy", "pyarrow", "cloudpickle", "pandas")
_OPTIONAL = ("mkl",)
_NEEDED_IN_TASKS = ("torch", "sparkdl", "numpy", "pyarrow", "cloudpickle")
_JAVA = 17
_FREE_BYTES = 1 << 30
_BUSY = 1.5  # load per core

_EXAMPLES = """\
examples:
  python -m sparkdl doctor
  python -m sparkdl doctor --master 'local[4]'
  python -m sparkdl doctor --master spark://head:7077 --conf spark.executor.memory=4g
  python -m sparkdl doctor --plain --json     # what a session without sparkdl's confs lacks

The exit code is 0 if this setup can train, 1 if it cannot.
"""


@dataclass(slots=True)
class Report:
    """What was found.

    Attributes:
        versions: of Python, Java and the packages, by name; ``None`` if missing.
        compute: linear algebra and OpenMP of this process.
        spark: master, executors, threads per task.
        tasks: what tasks found on each executor.
        confs: per setting its name, what was found, what is wanted, and whether it will do.
        problems: what keeps this setup from training.
        advice: what would make it better.
    """

    versions: dict[str, str | None] = field(default_factory=dict)
    compute: dict[str, str] = field(default_factory=dict)
    spark: dict[str, Any] = field(default_factory=dict)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    confs: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    @property
    def can_train(self) -> bool:
        """Whether nothing keeps this setup from training."""
        return not self.problems


def register(subparsers: Any) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "doctor",
        help="say whether this setup can train, and what to change",
        description="Check this machine, a Spark session and its executors.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--master", help="Spark master (spark-submit's, else local[*])")
    parser.add_argument(
        "--conf",
        action="append",
        nargs="+",
        default=[],
        type=key_value,
        metavar="KEY=VALUE",
        help="Spark confs of the session; may be repeated",
    )
    parser.add_argument(
        "--plain", action="store_true", help="check a session without the confs of session.builder()"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    conf = dict(pair for pairs in args.conf for pair in pairs)
    report = examine(args.master, conf, plain=args.plain)
    found = json.dumps({"can_train": report.can_train, **asdict(report)}) if args.json else render(report)
    print(redaction.text(found))
    return 0 if report.can_train else 1


def examine(master: str | None = None, conf: dict[str, str] | None = None, *, plain: bool = False) -> Report:
    """Check this process, then a session of its own, then the executors.

    Args:
        master: Spark master; spark-submit's, else ``local[*]``.
        conf: Spark confs of the session.
        plain: leave out the confs that :func:`sparkdl.session.builder` sets.
    """
    report = Report()
    _check_driver(report)
    if report.can_train:
        _check_session(report, master, conf or {}, plain)
    return report


# -- this process -------------------------------------------------------------------------------


def _check_driver(report: Report) -> None:
    report.versions = {
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("sparkdl", *_REQUIRED, *_OPTIONAL)},
        "java": _java_version(),
    }
    for name in _REQUIRED:
        if report.versions[name] is None:
            report.problems.append(f"{name} is not installed: pip install {name}")
    java = report.versions["java"]
    if java is None:
        report.problems.append(
            f"no Java found: install a Java {_JAVA} runtime and set JAVA_HOME, or put java on the PATH"
        )
    elif int(java.split(".")[0]) < _JAVA:
        report.problems.append(f"Java {java} found: install Java {_JAVA} or later and set JAVA_HOME to it")
    if report.versions["torch"] is not None:
        report.compute = _compute(report)


def version_of(package: str) -> str | None:
    """Return the version of a package, ``None`` if it is not there. Runs in tasks, too."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        try:
            return str(import_module(package).__version__)  # on the path, but not installed by pip
        except (ImportError, AttributeError):
            return None


def _java_version() -> str | None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?([^"]+)"', answer.stderr + answer.stdout)
    return found.group(1) if found else None


def _compute(report: Report) -> dict[str, str]:
    import torch

    config = torch.__config__.show()

    def first(pattern: str, default: str) -> str:
        found = re.search(pattern, config)
        return found.group(1) if found else default

    backends: Any = torch.backends
    mkl, mkldnn = backends.mkl.is_available(), backends.mkldnn.is_available()
    if platform.machine() in ("x86_64", "AMD64") and not mkl:
        report.advice.append(
            "this torch has no MKL: matrix products are several times slower; install torch's own wheels"
        )
    blas = first(r"BLAS_INFO=(\w+)", "unknown")
    return {
        "BLAS": "MKL " + first(r"Math Kernel Library Version (\S+?)-", "") if mkl else blas,
        "oneDNN": first(r"MKL-DNN v(\S+)", "yes") if mkldnn else "no",
        "CPU": first(r"CPU capability usage: (\S+)", "unknown"),
        "OpenMP": openmp_library(),
        "cores": str(_cores()),
    }


def openmp_library() -> str:
    """Return the library whose parallel regions torch enters; torch must be loaded.

    Runs in tasks, too.
    """
    import ctypes

    try:
        address = ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value or 0
        for line in Path("/proc/self/maps").read_text().splitlines():
            low, high = (int(bound, 16) for bound in line.split()[0].split("-"))
            if low <= address < high:
                return line.split()[-1]
    except (AttributeError, OSError):
        pass  # another platform or another runtime: it is only for information
    return "unknown"


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- the session and its executors --------------------------------------------------------------


def _check_session(report: Report, master: str | None, conf: dict[str, str], plain: bool) -> None:
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

    from sparkdl import logs, session

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


def _check_confs(report: Report, spark: SparkSession) -> None:
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


def _check_executors(report: Report, spark: SparkSession) -> None:
    from sparkdl import session
    from sparkdl.exceptions import ConfigError
    from sparkdl.train.resources import threads_per_task

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
        report.spark |= {"executors": executors.count, "slots": executors.cores}
    report.spark["threads_per_task"] = threads_per_task(executors, executors.count)
    try:
        report.tasks = _probe_executors(spark, executors.count * executors.cores)
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
    this, pickler = sys.modules[__name__], cast("Any", cloudpickle)
    pickler.register_pickle_by_value(this)
    try:
        tasks = spark.sparkContext.parallelize(range(slots), slots).mapPartitions(probe).collect()
    finally:
        pickler.unregister_pickle_by_value(this)
    return list({(task["host"], *task["local_dirs"]): task for task in tasks}.values())


def probe(rows: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Look around on an executor; the function of a task."""
    import socket
    import tempfile
    import time

    for _ in rows:
        time.sleep(0.5)  # hold the slot, so that the other tasks go elsewhere
    folders = [d for d in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if d]
    unwritable = []
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            unwritable.append(f"{folder}: {error.strerror}")
    packages = {name: version_of(name) for name in _NEEDED_IN_TASKS}
    failures = {}
    for name in ("torch", "sparkdl"):
        try:
            import_module(name)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    yield {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": packages,
        "failures": failures,
        "openmp": "none" if "torch" in failures else openmp_library(),
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "").lower(),
        "cores": _cores(),
        "load": os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0,
        "local_dirs": folders,
        "unwritable": unwritable,
        "free_bytes": min((shutil.disk_usage(d).free for d in folders if Path(d).is_dir()), default=0),
    }


def _judge(report: Report, task: dict[str, Any]) -> None:
    """Turn what a task found on an executor into problems and advice."""
    where = f"executor on {task['host']}"
    python = f"its Python is {task['executable']}"
    for name in _NEEDED_IN_TASKS:
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
            f"{where} has {_size(task['free_bytes'])} free in its local directories, where rows and shuffle "
            "files go: set SPARK_LOCAL_DIRS (spark.local.dir) to a larger disk"
        )
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
    from sparkdl._spark import task_error

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


# -- the printed form ---------------------------------------------------------------------------


def render(report: Report) -> str:
    """Lay a report out for people."""
    lines = ["versions", *_table({k: v or "missing" for k, v in report.versions.items()})]
    if report.compute:
        lines += ["compute", *_table(report.compute)]
    if report.spark:
        spark = {"Spark": f"{report.spark['version']}, {report.spark['master']}"}
        if "executors" in report.spark:
            spark["executors"] = f"{report.spark['executors']} with {report.spark['slots']} task slots each"
            spark["threads"] = (
                f"{report.spark['threads_per_task']} per task with one partition per executor (the default)"
            )
        lines += ["session", *_table(spark)]
    for task in report.tasks:
        packages = ", ".join(f"{k} {v or 'missing'}" for k, v in task["packages"].items())
        folders = ", ".join(task["local_dirs"]) or "no folder"
        lines += [
            f"executor on {task['host']}",
            *_table(
                {
                    "python": f"{task['python']}, {task['executable']}",
                    "packages": packages,
                    "OpenMP": task["openmp"],
                    "cores": str(task["cores"]),
                    "disk": f"{_size(task['free_bytes'])} free in {folders}",
                }
            ),
        ]
    if report.confs:
        lines.append("confs")
    for conf in report.confs:
        found = conf["found"] if conf["found"] is not None else "not set"
        lines.append(f"  {conf['name']} = {found}" + ("" if conf["ok"] else f", wanted {conf['wanted']}"))
    if report.problems:
        lines += ["what keeps this setup from training", *(f"  - {line}" for line in report.problems)]
    if report.advice:
        lines += ["what to change", *(f"  - {line}" for line in report.advice)]
    lines.append("This setup can train." if report.can_train else "This setup cannot train.")
    return "\n".join(lines)


def _table(rows: dict[str, str]) -> list[str]:
    width = max(map(len, rows))
    return [f"  {name:<{width}}  {value}" for name, value in rows.items()]


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
