"""The Spark session: the confs this design needs, and what the cluster offers.

``builder`` sets them; ``check`` looks at a session made elsewhere and says what is missing and what
that costs. Nothing here is required for correctness.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkdl import daemon
from sparkdl._spark import logs
from sparkdl._spark.session import confs, is_alive, own_confs, task_slots
from sparkdl.exceptions import ConfigError, SparkdlWarning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Setting:
    """A Spark conf that this design wants.

    Attributes:
        name: conf key.
        value: wanted value.
        cost: what a session without it pays, for warnings and the doctor.
        since: first Spark version that has it.
    """

    name: str
    value: str
    cost: str
    since: tuple[int, int] = (3, 0)


SETTINGS = (
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "each task waits about 40 ms for a delayed TCP acknowledgement",
        since=(4, 1),
    ),
    Setting("spark.shuffle.compress", "false", "gradients are compressed for nothing: floats do not shrink"),
    Setting(
        "spark.shuffle.sort.bypassMergeThreshold",
        "0",
        "each task of a stage writes a file per partition and copies them into one, which takes a quarter of "
        "the time of a small model's iteration",
    ),
    Setting("spark.broadcast.compress", "false", "weights are compressed for nothing: floats do not shrink"),
    Setting(
        "spark.rdd.compress",
        "false",
        "the optimizer's state is compressed for nothing, which PySpark turns on by default",
    ),
    Setting(
        "spark.locality.wait",
        "300ms",
        "with the default of 3s every job stalls for seconds after an executor was lost",
    ),
    Setting(
        "spark.shuffle.io.retryWait",
        "1s",
        "with the default of 5s every job stalls for up to 15 s after an executor was lost",
    ),
    Setting(
        "spark.shuffle.reduceLocality.enabled",
        "false",
        "iterations run as two jobs each, through the driver, instead of many in one (exchange='driver')",
    ),
    Setting(
        "spark.storage.cachedPeersTtl",
        "1000",
        "a new executor holds no second copy of the optimizer's state for up to a minute, so that losing two "
        "executors within that minute ends the training",
    ),
    Setting(
        "spark.network.maxRemoteBlockSizeFetchToMem",
        "64m",
        "the optimizer's state of a large model goes to its second executor as one message of up to 200 MB, "
        "of which heaps of 1 GB hold too few copies",
    ),
    Setting("spark.driver.maxResultSize", "0", "models larger than the limit cannot return to the driver"),
)
"""Confs that change speed or limits. ``conf/*.conf`` holds the same for spark-submit."""

# Read by Arrow's Java library: else it checks its bounds, and who still uses the memory, for each number of
# each row on its way to Python. Spark makes room before it writes.
_ARROW_UNCHECKED = "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS"

_UNCHECKED = {
    "spark.ui.showConsoleProgress": "false",  # it would overwrite the training progress bar
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",  # of rows for Python; 64m overflow a core's cache
    # Spark 4.3 cannot hand tables with vectors to SQL functions by columns.
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
    f"spark.executorEnv.{_ARROW_UNCHECKED}": "true",
    # Large arrays of Python workers lie in huge pages, which the system has ready ten times sooner.
    "spark.executorEnv.GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    # SQL sets it for its own workers: where all have it, they are the same workers.
    "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK": "1",
    "spark.log.level": "WARN",  # executors write some fifteen lines for each task by default
}
"""Confs that the check does not report."""


def builder(
    master: str | None = None, app_name: str = "sparkdl", conf: Mapping[str, str] | None = None
) -> SparkSession.Builder:
    """Return a ``SparkSession`` builder with the confs that iterated short jobs need.

    Args:
        master: Spark master; left to spark-submit or the environment if ``None``.
        app_name: name in the Spark UI.
        conf: more confs; they win over sparkdl's own.

    The environment variable ``SPARKDL_LOG`` (debug, info, warn, error) says how much is logged.

    Returns:
        The builder; call ``getOrCreate()`` on it. In local mode that also begins this machine's Python
        workers, beside what the program does next.

    Raises:
        ConfigError: if ``SPARKDL_LOG`` is no level.
    """
    from pyspark.sql import SparkSession

    warm = False

    class Builder(SparkSession.Builder):
        def getOrCreate(self) -> SparkSession:  # noqa: N802 (PySpark's name)
            if SparkSession.getActiveSession() is not None:
                return super().getOrCreate()
            with _beside(_finish_torch):
                spark = super().getOrCreate()
            if warm:
                _begin_workers(spark.sparkContext)
            return spark

    chosen: SparkSession.Builder = Builder().appName(app_name)
    if master is not None:
        chosen = chosen.master(master)
        if master.startswith("local"):
            # Workers on this machine should run this interpreter, also when no virtual
            # environment is activated.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault(_ARROW_UNCHECKED, "true")  # for the JVM, which is the executor too
            warm = bool(_LOCAL.fullmatch(master)) and _workers_find(daemon.NAME)
            if warm:
                chosen = chosen.config("spark.python.daemon.module", daemon.NAME)
    level = logs.set_up()
    rich = {"spark.log.level": level} if level is not None else {}
    for name, value in {**recommended(), **rich, **(conf or {})}.items():
        chosen = chosen.config(name, value)
    return chosen


@contextmanager
def _beside(work: Callable[[], None]) -> Iterator[None]:
    """Do some work in a thread, and wait for it at the end."""
    thread = threading.Thread(target=work, name="sparkdl-session", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _finish_torch() -> None:
    """Import what torch does with the first optimizer, its compiler, if the program has torch: a second."""
    if "torch" in sys.modules:
        import_module("torch._dynamo")


def _begin_workers(sc: Any) -> None:
    """Have Spark start the process that workers are forked off, which first imports torch."""

    def begin() -> None:
        with suppress(Exception):  # the session has ended already
            sc.setJobDescription("sparkdl: start Python workers")
            sc.parallelize([0], 1).foreach(lambda _: None)

    # A program that ends meanwhile waits, or Spark would write that a task of its was killed.
    threading.Thread(target=begin, name="sparkdl-first-worker", daemon=False).start()


def _workers_find(module: str) -> bool:
    """Whether Python workers of this machine can import a module before Spark tells them of files to add."""
    command = [os.environ["PYSPARK_PYTHON"], "-c", f"import {module}"]
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False  # an interpreter that is not there: the first task says so


def recommended() -> dict[str, str]:
    """Return the confs that :func:`builder` sets.

    Examples:
        >>> recommended()["spark.locality.wait"]
        '300ms'
    """
    return {setting.name: setting.value for setting in SETTINGS} | _UNCHECKED


def missing(spark: SparkSession) -> list[Setting]:
    """List the settings that a session lacks, of those its Spark version has."""
    version = spark_version(spark)
    conf = confs(spark.sparkContext)
    return [s for s in SETTINGS if version >= s.since and not _satisfied(s, conf.get(s.name))]


def _satisfied(setting: Setting, found: str | None) -> bool:
    if setting.name == "spark.locality.wait":
        return found is not None and found != "3s"
    if setting.name == "spark.driver.maxResultSize":
        return True  # only matters for models over the limit, and then Spark names the conf
    return found == setting.value


_warned: set[str] = set()


def check_alive(spark: SparkSession) -> None:
    """Check that a Dataset's session can still run jobs."""
    if not is_alive(spark.sparkContext):
        raise ConfigError(
            "the SparkContext of this Dataset was stopped, and the rows on its executors went with it; make "
            "the Dataset again in the session that runs now",
            code="config-cluster",
        )


def check(spark: SparkSession) -> None:
    """Warn once per application about confs that a session lacks, and what that costs.

    Raises:
        ConfigError: if the session was stopped.
    """
    check_alive(spark)
    check_own(spark)
    application = spark.sparkContext.applicationId
    lacking = missing(spark)
    if lacking and application not in _warned:
        _warned.add(application)
        lines = "\n".join(f"  {s.name}={s.value}: without it {s.cost}" for s in lacking)
        warnings.warn(
            "this Spark session trains correctly but slower than it could; set before it starts "
            f"(sparkdl.session.builder and conf/*.conf do):\n{lines}",
            UserWarning,
            stacklevel=4,
        )


OWN = "spark.sparkdl."
"""So begin sparkdl's own confs. They may be set while a session runs, by ``spark.conf.set``."""

TRANSPORT = f"{OWN}transport"
"""What ``transport="auto"`` stands for in a session."""

WAIT, PATIENCE = f"{OWN}direct.wait", f"{OWN}direct.patience"
"""Seconds that a task waits for others to begin, and for a byte of theirs, at least."""

PLAIN_FILES = f"{OWN}plainFiles"
"""Conf by which a user of Spark's I/O encryption accepts that sparkdl's own files are not encrypted."""

_CONFS = (TRANSPORT, WAIT, PATIENCE, PLAIN_FILES)


def check_own(spark: SparkSession) -> None:
    """Warn once about confs that begin as sparkdl's own and are none: nothing would read them."""
    for name in own_confs(spark, OWN):
        if name not in _CONFS and name not in _warned:
            _warned.add(name)
            near = difflib.get_close_matches(name, _CONFS, 1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            message = f"{name} is no conf of sparkdl, and does nothing{meant}; there are {', '.join(_CONFS)}"
            warnings.warn(SparkdlWarning(message, code="config-cluster"), stacklevel=5)


def check_encryption(spark: SparkSession) -> None:
    """Check that Spark's I/O encryption is off, or that plain files are accepted beside it.

    Spark encrypts what it writes itself. sparkdl's files in the same folders are mapped into memory and read
    by row, which encryption of whole files does not allow, and Python workers have no access to Spark's key.
    """
    refuse_encryption(
        confs(spark.sparkContext).get("spark.io.encryption.enabled"), spark.conf.get(PLAIN_FILES, "false")
    )


def refuse_encryption(encrypted: str | None, plain: str | None) -> None:
    """Check that files need not be encrypted."""
    if _is_true(encrypted) and not _is_true(plain):
        raise ConfigError(
            "spark.io.encryption.enabled=true: sparkdl writes rows, gradients and weights to the executors' "
            f"local directories without encryption. Set {PLAIN_FILES}=true if modes 0700 and 0600, or an "
            "encrypted disk, protect them well enough",
            code="config-encryption",
        )


def _is_true(value: str | None) -> bool:
    return (value or "").strip().lower() == "true"


def spark_version(spark: SparkSession) -> tuple[int, int]:
    """Return (major, minor) of Spark."""
    major, minor = re.findall(r"\d+", spark.version)[:2]
    return int(major), int(minor)


@dataclass(frozen=True, slots=True)
class Executors:
    """What the cluster offers.

    Attributes:
        count: number of executors; 1 in local mode.
        cores: cores of the smallest one.
        tasks: that run on an executor at a time; fewer than its cores where ``spark.task.cpus`` or GPUs
            limit them. By default one for each core.
    """

    count: int
    cores: int
    tasks: int = 0

    def __post_init__(self) -> None:
        if not self.tasks:
            object.__setattr__(self, "tasks", self.cores)


_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")


def executors(spark: SparkSession, wait_seconds: float = 30.0) -> Executors:
    """Return the executors, after waiting for those that are still starting.

    Waits until the number that the confs promise is there (where they promise none, as in
    standalone mode without limits, until the number has been stable for a second) and until each
    has run a task: a registered executor takes tasks only some time later, and whatever is cached
    before that crowds on the others.

    Raises:
        ConfigError: if no executor comes.
    """
    sc = spark.sparkContext
    master = str(sc.master)
    local = _LOCAL.fullmatch(master)
    if local:
        given = local.group(1) or "1"
        cores = (os.cpu_count() or 1) if given == "*" else int(given)
        return Executors(1, cores, max(1, cores // int(confs(sc).get("spark.task.cpus", "1"))))
    promised = _promised(master, confs(sc))
    deadline = time.monotonic() + wait_seconds
    seen, since = -1, time.monotonic()
    while True:
        slots = task_slots(sc)
        now = time.monotonic()
        if len(slots) != seen:
            seen, since = len(slots), now
        settled = seen >= promised if promised else seen > 0 and now - since >= 1.0
        if settled or now >= deadline:
            break
        time.sleep(0.05)
    if not slots:
        raise ConfigError(
            f"no executor of {master} registered within {wait_seconds:.0f} s: "
            "check in the Spark UI that the cluster has free cores and memory",
            code="config-executors",
        )
    tasks = [each.tasks for each in slots]
    if not all(each.ready for each in slots):
        _wait_until_ready(sc, len(slots), sum(tasks), deadline)
    return Executors(len(slots), min(each.cores for each in slots), min(tasks))


def _wait_until_ready(sc: Any, count: int, slots: int, deadline: float) -> None:
    """Occupy all slots for a moment, until tasks have run on every executor.

    This also starts the executors' Python workers, so that the first real job need not.
    """

    def occupy_slot(_: Iterable[int]) -> list[str]:
        # Long enough for Spark to use every other slot. A nested function travels by value: this
        # job must not be the one to find that the executors lack sparkdl.
        time.sleep(0.1)
        return [os.environ.get("SPARK_LOCAL_DIRS", "")]

    sc.setLocalProperty("spark.job.description", "sparkdl: wait for executors")
    try:
        while True:
            seen = sc.parallelize(range(slots), slots).mapPartitions(occupy_slot).collect()
            if len(set(seen)) >= count or time.monotonic() >= deadline:
                return
    finally:
        sc.setLocalProperty("spark.job.description", None)


def _promised(master: str, conf: Any) -> int:
    """Return the number of executors that the confs promise, 0 if they do not say."""
    cluster = re.match(r"local-cluster\[\s*(\d+)", master)
    if cluster:
        return int(cluster.group(1))
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        names = ("spark.dynamicAllocation.initialExecutors", "spark.dynamicAllocation.minExecutors")
        return max(int(conf.get(name, "0")) for name in names)
    if conf.get("spark.executor.instances"):
        return int(conf.get("spark.executor.instances"))
    if conf.get("spark.cores.max") and conf.get("spark.executor.cores"):
        return int(conf.get("spark.cores.max")) // int(conf.get("spark.executor.cores"))
    return 0
