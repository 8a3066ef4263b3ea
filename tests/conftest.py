"""One real Spark at a time, shared by the tests that ask for the same master."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from pyspark import cloudpickle as spark_cloudpickle
from pyspark.sql import SparkSession
from support import no_jvm

from sparkdl import session

LOCAL = "local[2]"
CLUSTER = "local-cluster[2,1,2048]"
# JVMs that live for a minute on few cores do nothing but compile, unless they are told to compile little. The
# tests' own driver lives longer.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ["SPARK_SUBMIT_OPTS"] = JVM_OPTIONS  # of drivers that tests start
os.environ["SPARK_DAEMON_JAVA_OPTS"] = JVM_OPTIONS  # of masters and workers
# For tasks, which run helpers of the tests, and the package of this folder, whatever is installed.
TASKS_PATH = os.pathsep.join(str(folder) for folder in Path(__file__).parents[:2])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--jvm", action="store_true", help="run all tests of training on a real Spark session")


def _wants_jvm(item: pytest.Item) -> bool:
    """Return whether a test of a folder whose tests may do without a JVM is to have one."""
    return bool(item.config.getoption("jvm")) or item.get_closest_marker("jvm") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests by the Spark they need: starting one takes seconds."""

    def order(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        if "cluster" in names:
            item.add_marker(pytest.mark.cluster)
            return 2
        if "real" in names or ("spark" in names and _wants_jvm(item)):
            return 1
        return 0 if not item.get_closest_marker("cluster") else 3

    items.sort(key=order)


class _Sessions:
    """Keeps the session of one master running until another is asked for."""

    def __init__(self) -> None:
        self.master: str | None = None
        self.spark: SparkSession | None = None

    def get(self, master: str) -> SparkSession:
        if self.master != master:
            self.stop()
            conf = {
                "spark.executorEnv.PYTHONPATH": TASKS_PATH,
                "spark.executor.extraJavaOptions": JVM_OPTIONS,
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.memory": "2g",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
            }
            # For the JVM, and not for what tests start later: machines of a cluster may have to be bare.
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("PYTHONPATH", TASKS_PATH)
                environment.delenv("SPARK_SUBMIT_OPTS", raising=False)
                self.spark = session.builder(master, "sparkdl-tests", conf).getOrCreate()
            self.spark.sparkContext.setLogLevel("OFF")
            self.master = master
        assert self.spark is not None
        return self.spark

    def stop(self) -> None:
        if self.spark is not None:
            self.spark.stop()
        self.spark = self.master = None


@pytest.fixture(scope="session")
def sessions() -> Iterator[_Sessions]:
    sessions = _Sessions()
    yield sessions
    sessions.stop()


@pytest.fixture
def real(sessions: _Sessions) -> Iterator[SparkSession]:
    """A local session, checked for leaks after the test."""
    with _no_leaks(sessions.get(LOCAL)) as spark:
        yield spark


@pytest.fixture
def spark(real: SparkSession) -> SparkSession:
    """A local session; in some folders one without a JVM, unless a test is marked ``jvm``."""
    return real


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
    """Checks that a test leaves no persisted RDD, store file, thread or session conf behind."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

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
        left = sc.parallelize(range(2), 2).flatMap(lambda _: store_files()).collect()
        assert not left, f"store files left: {left}"
        _check_threads(self._threads)


def _check_threads(before: set[threading.Thread]) -> None:
    threads = {t for t in set(threading.enumerate()) - before if not _is_harmless(t)}
    assert not threads, f"threads left: {threads}"


def _is_harmless(thread: threading.Thread) -> bool:
    """Py4J keeps a connection thread, tqdm a monitor; both serve the whole process."""
    return thread.daemon or "Monitor" in type(thread).__name__


def store_files() -> list[str]:
    """List files of partition stores in the executor that runs this."""
    found = []
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        found += [str(path) for path in Path(folder, "sparkdl").rglob("*.bin")]
        found += [str(path) for path in Path(folder, "sparkdl-fits").rglob("*") if path.is_file()]
    return found


@pytest.fixture(autouse=True)
def _ship_test_code(request: pytest.FixtureRequest) -> Iterator[None]:
    """Executors cannot import test modules, so their classes travel by value."""
    for pickler in (cloudpickle, spark_cloudpickle):
        pickler.register_pickle_by_value(request.module)
    yield
    for pickler in (cloudpickle, spark_cloudpickle):
        pickler.unregister_pickle_by_value(request.module)
