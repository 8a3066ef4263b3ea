"""One real Spark at a time, shared by the tests that ask for the same master."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import cloudpickle
import hypothesis
import pytest
from pyspark import cloudpickle as spark_cloudpickle
from pyspark.sql import SparkSession
from support import forking, no_jvm, on_connect
from support.stores import store_files

from sparkdl import daemon, session
from sparkdl._spark.session import confs
from sparkdl.compute.memory import exempt_objects

LOCAL = "local[2]"
CLUSTER = "local-cluster[2,1,2048]"
# JVMs that live for minutes on few cores do nothing but compile, unless they are told to compile little. Then
# they have room for 48 MB of compiled code, which Spark fills: what is thrown out runs interpreted.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
CLASSES = Path(sys.prefix, "spark.jsa")  # of scripts/setup: a JVM begins in half the time
if CLASSES.exists():
    JVM_OPTIONS += f" -XX:SharedArchiveFile={CLASSES} -Xlog:disable"
os.environ["SPARK_SUBMIT_OPTS"] = JVM_OPTIONS  # of drivers that tests start
os.environ["SPARK_DAEMON_JAVA_OPTS"] = JVM_OPTIONS  # of masters and workers
# Tests run many small queries, each once: the Java code that Spark writes for one costs more to compile
# than it saves. Programs that tests start have Spark's default.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
WITHOUT_JVM = {"distill", "hf", "nn", "online", "summary", "train", "tune"}
"""Folders whose tests do without a JVM if they are not marked ``jvm``."""
DIRECT = {"auto", "data", "distill", "ml", "train", "tune"}
DIRECT |= {f"test_{name}.py" for name in ("docs", "examples", "init", "mlflow_models")}
"""Folders and files whose fits on a local session exchange directly, as users' do; the others, by shuffles.

A step by shuffles is a stage of its own: ten epochs of 2,400 rows take 31 s more of processor time by them.
"""
# For tasks, which run helpers of the tests, and the package of this folder, whatever is installed.
TASKS_PATH = os.pathsep.join(str(folder) for folder in Path(__file__).parents[:2])

# A machine with JVMs that start is slow now and then, which is no failure.
hypothesis.settings.register_profile(
    "tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--jvm", action="store_true", help="run all tests of training on a real Spark session")
    parser.addoption("--connect", action="store_true", help="run tests on Spark Connect; see on_connect.py")


def _needs_jvm(item: pytest.Item) -> bool:
    """Return whether the fixture ``spark`` of a test is a real session."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    wanted = bool(item.config.getoption("jvm")) or item.get_closest_marker("jvm") is not None
    return folder not in WITHOUT_JVM or wanted


def _has_jvm(item: pytest.Item) -> bool:
    """Return whether a test takes a real session."""
    names = getattr(item, "fixturenames", ())
    return "real" in names or ("spark" in names and "in_process" not in names and _needs_jvm(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With ``--connect``, skip what Spark Connect does not have."""
    report = yield
    if item.config.getoption("connect"):
        on_connect.refused(item, call, report)
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """With ``--connect``, tell what ran, and what did not."""
    if config.getoption("connect"):
        terminalreporter.section("Spark Connect")
        for line in on_connect.summary(terminalreporter.stats):
            terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Group tests by the Spark they need: starting one takes seconds."""
    if config.getoption("connect"):
        items[:], others = on_connect.choose(items, _has_jvm)
        config.hook.pytest_deselected(items=others)

    def group(item: pytest.Item) -> int:
        if _has_jvm(item):
            return 1
        if "sessions" in getattr(item, "fixturenames", ()):
            return 2
        return 3 if item.get_closest_marker("cluster") or item.get_closest_marker("whole") else 0

    groups: list[list[pytest.Item]] = [[], [], [], []]
    for item in items:
        if group(item) == 2:
            item.add_marker(pytest.mark.cluster)
    yield  # tests that are not asked for leave the list
    # Of the confs with which a JVM starts, Spark gives all later sessions there those that they do not set.
    items.sort(key=lambda item: "cluster" not in getattr(item, "fixturenames", ()))
    for item in items:
        groups[group(item)].append(item)
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = chain.from_iterable(groups) if processes == 1 else _dealt(groups, processes)


def pytest_collection_finish() -> None:
    """Exempt all objects so far from garbage collection, which takes a second to look at them."""
    exempt_objects()


def _dealt(groups: list[list[pytest.Item]], processes: int) -> list[pytest.Item]:
    """Return tests in an order of which xdist gives each process an equal part, with the long ones first.

    No process waits for another for long if the last tests, which they take from each other, are short.
    """
    plain, local, cluster, own = groups
    hands: list[list[pytest.Item]] = [[] for _ in range(processes)]
    hands[0] += cluster  # one is enough
    hands[-1] += own
    wanted, dealt = sum(map(len, groups)), 0
    for number, hand in enumerate(hands):
        left = processes - number
        hand += local[number * len(local) // processes : (number + 1) * len(local) // processes]
        size = max(0, (wanted - dealt) // left - len(hand)) if left > 1 else len(plain)
        hand += plain[:size]
        plain = plain[size:]
        dealt += len(hand)
    return [*chain.from_iterable(hands)]


class _Sessions:
    """Keeps the session of one master running until another is asked for, or other confs."""

    def __init__(self) -> None:
        self.wanted: Any = None
        self.spark: SparkSession | None = None
        self._folders: str | None = None

    def get(self, master: str, **more: str) -> SparkSession:
        if self.wanted != (master, more):
            self.stop()
            conf = {
                "spark.executorEnv.PYTHONPATH": TASKS_PATH,
                "spark.executor.extraJavaOptions": JVM_OPTIONS,
                **INTERPRETED,
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.memory": "2g",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                **more,
            }
            # As `sparkdl submit` has it for executors with an environment of its own: a worker replaces one
            # whose task has failed, or comes beside it, without importing torch for seconds.
            conf["spark.python.daemon.module"] = forking.NAME if master == LOCAL else daemon.NAME
            # For the JVM, and not for what tests start later: machines of a cluster may have to be bare.
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("PYTHONPATH", TASKS_PATH)
                self.spark = session.builder(master, "sparkdl-tests", conf).getOrCreate()
            self.spark.sparkContext.setLogLevel("OFF")
            self.wanted = master, more
        assert self.spark is not None
        return self.spark

    def folders(self, spark: SparkSession) -> str:
        """Return the local directories of a local session, which a job tells once."""
        if self._folders is None:
            tasks = spark.sparkContext.parallelize([0], 1)
            (self._folders,) = tasks.map(lambda _: os.environ["SPARK_LOCAL_DIRS"]).collect()
        return self._folders

    def stop(self) -> None:
        if self.spark is not None:
            self.spark.stop()
        self.spark = self.wanted = self._folders = None


@pytest.fixture(scope="session")
def sessions() -> Iterator[_Sessions]:
    sessions = _Sessions()
    yield sessions
    sessions.stop()


@pytest.fixture(scope="session")
def connect_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[on_connect.OnConnect]:
    """A session of a Spark Connect server, for ``--connect``."""
    with on_connect.on_connect(tmp_path_factory.mktemp("connect")) as found:
        yield found


@pytest.fixture
def real(request: pytest.FixtureRequest, sessions: _Sessions) -> Iterator[SparkSession]:
    """A local session, checked for leaks after the test; with ``--connect`` one of a server."""
    if request.config.getoption("connect"):
        found: on_connect.OnConnect = request.getfixturevalue("connect_session")
        threads = set(threading.enumerate())
        yield found.spark
        left, incomplete = found.left(), (on_connect.INCOMPLETE, "true") in request.node.user_properties
        assert incomplete or not left, f"store files left: {left}"
        # The client's own, which release what the server has sent, without names.
        _check_threads(
            threads | {t for t in threading.enumerate() if t.name.startswith("ThreadPoolExecutor-")}
        )
        return
    spark = sessions.get(LOCAL)
    place = request.node.path.relative_to(Path(__file__).parent).parts[0]
    transport = "direct" if place in DIRECT else "shuffle"
    confs(spark.sparkContext).set("spark.sparkdl.transport", transport)
    with _no_leaks(spark, sessions.folders(spark)):
        yield spark


@pytest.fixture
def spark(request: pytest.FixtureRequest) -> Any:
    """A local session; in some folders one without a JVM, but with the marker ``jvm`` or with ``--jvm``."""
    return request.getfixturevalue("real" if _needs_jvm(request.node) else "in_process")


@pytest.fixture
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[no_jvm.Session]:
    """A local session without a JVM, whose tasks run in this process, checked for leaks after the test."""
    threads = set(threading.enumerate())
    with no_jvm.no_jvm(str(tmp_path_factory.mktemp("executor"))) as session:
        yield session
        sc = session.sparkContext
        for left in (sc.persisted, sc.broadcasts, sc.shuffles, store_files()):
            assert not left, f"left behind: {left}"
        _check_threads(threads)


@pytest.fixture
def cluster(sessions: _Sessions) -> Iterator[SparkSession]:
    """A session with two executor JVMs of one core, checked for leaks after the test."""
    with _no_leaks(sessions.get(CLUSTER)) as spark:
        yield spark


class _no_leaks:  # noqa: N801
    """Checks that a test leaves no persisted RDD, store file, thread or session conf behind.

    Args:
        spark: the session.
        folders: the local directories of its only executor; by default tasks look at their own.
    """

    def __init__(self, spark: SparkSession, folders: str | None = None) -> None:
        self._spark, self._folders = spark, folders

    def __enter__(self) -> SparkSession:
        self._threads = set(threading.enumerate())
        return self._spark

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            return
        sc = self._spark.sparkContext
        persisted = dict(sc._jsc.getPersistentRDDs())
        for rdd in persisted.values():
            rdd.unpersist()
        assert not persisted, f"persisted RDDs left: {persisted}"
        if self._folders is None:
            left = sc.parallelize(range(2), 2).flatMap(lambda _: store_files()).collect()
        else:
            left = store_files(self._folders)
        assert not left, f"store files left: {left}"
        _check_threads(self._threads)


def _check_threads(before: set[threading.Thread]) -> None:
    threads = {t for t in set(threading.enumerate()) - before if not _is_harmless(t)}
    assert not threads, f"threads left: {threads}"


def _is_harmless(thread: threading.Thread) -> bool:
    """Py4J keeps a connection thread, tqdm a monitor, MLflow some for files; they serve the whole process."""
    return thread.daemon or "Monitor" in type(thread).__name__ or thread.name.startswith("Mlflow")


@pytest.fixture(autouse=True)
def _ship_test_code(request: pytest.FixtureRequest) -> Iterator[None]:
    """Executors cannot import test modules, so their classes travel by value."""
    for pickler in (cloudpickle, spark_cloudpickle):
        pickler.register_pickle_by_value(request.module)
    yield
    for pickler in (cloudpickle, spark_cloudpickle):
        pickler.unregister_pickle_by_value(request.module)
