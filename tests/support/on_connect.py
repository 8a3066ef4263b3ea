"""Tests of other folders on Spark Connect: ``scripts/test-connect``, or ``pytest --connect``.

The fixture ``spark`` is then a session of a server that the tests start. Tests that take a real session run,
but for those that :data:`LEFT_OUT` names. A test that ``left_out_on_connect.txt`` lists counts as left out if
it is refused what Spark Connect does not have. Any other that is refused something fails, so that no fault
looks left out. At the end the numbers are told, by reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sparkdl.exceptions import SparkdlError
from support.connect import server

INCOMPLETE = "incomplete"
"""Property of a test that ended in its middle, and may have left files."""

FOLDERS = ("tests/data/", "tests/ml/", "tests/train/")
"""Folders whose tests run."""

CONNECT = "config-connect"
"""Code of errors that name what Spark Connect does not have. docs/connect.md lists it."""

JVM_CONDITIONS = frozenset(["JVM_ATTRIBUTE_NOT_SUPPORTED"])
"""Conditions of PySpark's errors if a test asks the JVM itself: RDDs, counts of jobs, Hadoop's confs."""

JVM_NAMES = frozenset(["_jsc", "_jvm", "_jdf", "_jsparkSession"])
"""What such a test asks for; some objects of a client have no error of their own for them."""

LISTED = frozenset(
    line.strip()
    for line in Path(__file__).with_name("left_out_on_connect.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
)
"""Tests, without their parameters, that may be refused something."""

NOT_HERE = "not on Spark Connect: "
"""What reasons begin with."""

LEFT_OUT: Mapping[str, str] = {
    "tests/train/test_train_lifecycle.py::test_a_foreign_session_warns_once_and_trains": "a client warns "
    "of no confs, which are the server's matter",
    "tests/ml/test_ml_persistence.py::test_a_crash_between_two_renames_leaves_the_previous_one": "there are "
    "no renames between which it could crash",
}
"""Why other tests do not run, by the beginning of their ids."""


@dataclass(frozen=True)
class OnConnect:
    """A session, and its server's folder.

    Attributes:
        spark: the session.
        folder: where the server's executor has its files.
    """

    spark: Any
    folder: Path

    def left(self) -> list[str]:
        """Delete files of stores, fits and groups that nobody has deleted, and return their paths."""
        kept = ("sparkdl", "sparkdl-fits", "sparkdl-kept")
        found = [path for name in kept for path in self.folder.rglob(f"{name}/**/*") if path.is_file()]
        for path in found:
            path.unlink()
        return [str(path) for path in found]


@contextmanager
def on_connect(folder: Path) -> Iterator[OnConnect]:
    """Start a server, and let all sessions of this process be of it."""
    from pyspark.sql import SparkSession

    local = folder / "local"
    local.mkdir()
    with server(folder, conf={"spark.local.dir": str(local)}) as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_REMOTE", found.url)
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        spark = SparkSession.builder.getOrCreate()
        yield OnConnect(spark, local)
        spark.stop()


def choose(items: Sequence[pytest.Item], has_jvm: Any) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that run, and the others.

    Args:
        items: all tests.
        has_jvm: returns whether a test takes a real session.
    """
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (chosen if has_jvm(item) and item.nodeid.startswith(FOLDERS) else others).append(item)
    for item in chosen:
        for prefix, reason in LEFT_OUT.items():
            if item.nodeid.startswith(prefix):
                item.add_marker(pytest.mark.skip(reason=NOT_HERE + reason))
    return chosen, others


def refused(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Let a test that has failed because Spark Connect does not have something count as skipped.

    Args:
        item: the test.
        call: how it went.
        report: is changed.
    """
    if call.when == "teardown" or not report.failed or call.excinfo is None:
        return
    reason = next(filter(None, map(reason_of, chain_of(call.excinfo.value))), None)
    if reason is None:
        return
    item.user_properties.append((INCOMPLETE, "true"))
    if not is_listed(item.nodeid):
        report.sections.append((NOT_HERE + reason, f"If that is right, list {name_of(item.nodeid)}."))
        return
    path, line, _ = item.location
    report.outcome, report.longrepr = "skipped", (path, line or 0, NOT_HERE + reason)


def is_listed(nodeid: str) -> bool:
    """Return whether a test may be refused something."""
    return name_of(nodeid) in LISTED


def name_of(nodeid: str) -> str:
    """Return the name of a test without its parameters."""
    return nodeid.partition("[")[0]


def summary(stats: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return how many tests ran, and how many were left out for which reason.

    Args:
        stats: pytest's reports, by outcome.
    """
    skipped = [report for report in stats.get("skipped", ()) if isinstance(report.longrepr, tuple)]
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    left = sum(count for reason, count in reasons.items() if reason.startswith(NOT_HERE))
    numbers = {word: len(stats.get(word, ())) for word in ("passed", "failed", "error")}
    told = ", ".join(f"{count} {word}" for word, count in numbers.items())
    lines = [f"{told}, {left} left out, {reasons.total() - left} skipped for other reasons"]
    lines += [f"{count:4} {reason}" for reason, count in reasons.most_common()]
    refused_ones = {name_of(report.nodeid) for report in skipped}
    whole = {name_of(report.nodeid) for report in stats.get("passed", ())} - refused_ones
    return [*lines, *(f"listed, but refused nothing: {name}" for name in sorted(whole & LISTED))]


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def reason_of(error: BaseException) -> str | None:
    """Return what Spark Connect does not have, by an error's code or condition; ``None`` for other errors."""
    if isinstance(error, SparkdlError) and error.code == CONNECT:
        return str(error).partition(";")[0]
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    if condition in JVM_CONDITIONS or (isinstance(error, AttributeError) and error.name in JVM_NAMES):
        return "the test asks the JVM: RDDs, counts of jobs, Hadoop's confs"
    return None
