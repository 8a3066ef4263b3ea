"""Tests of other folders on Spark Connect: ``scripts/test-connect``, or ``pytest --connect``.

The fixture ``spark`` is then a session of a server that the tests start. Tests that take a real session run,
but for those that :data:`LEFT_OUT` names. Those that are refused what :data:`REFUSED` names count as skipped.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.connect import server

INCOMPLETE = "incomplete"
"""Property of a test that ended in its middle, and may have left files."""

FOLDERS = ("tests/data/", "tests/ml/", "tests/train/")
"""Folders whose tests run."""

REFUSED: Mapping[str, str] = {
    r"needs RDDs, which Spark Connect has not": "the driver plan, num_shards, stragglers, tables of rows",
    r"elastic: a Spark Connect session": "a client cannot see executors come and go",
    r"overwrite\(\) needs a classic Spark session": "Spark Connect cannot rename folders",
    r"JVM_ATTRIBUTE_NOT_SUPPORTED|has no attribute '_(jsc|jvm|jdf|jsparkSession)'": "the test asks the JVM: "
    "RDDs, counts of jobs, Hadoop's confs",
}
"""What Spark Connect does not have, by what errors say. docs/connect.md says the same for users."""

LEFT_OUT: Mapping[str, str] = {}
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


def choose(items: Sequence[pytest.Item], wants_jvm: Any) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that run, and the others.

    Args:
        items: all tests.
        wants_jvm: returns whether a test of training takes a real session.
    """
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        names = getattr(item, "fixturenames", ())
        takes = "real" in names and (not item.nodeid.startswith("tests/train/") or wants_jvm(item))
        takes |= item.nodeid.startswith("tests/train/") and "spark" in names and wants_jvm(item)
        (chosen if takes and item.nodeid.startswith(FOLDERS) else others).append(item)
    for item in chosen:
        for prefix, reason in LEFT_OUT.items():
            if item.nodeid.startswith(prefix):
                item.add_marker(pytest.mark.skip(reason=reason))
    return chosen, others


def refused(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Let a test that has failed because Spark Connect does not have something count as skipped.

    Args:
        item: the test.
        call: how it went.
        report: is changed.
    """
    if call.when != "call" or not report.failed or call.excinfo is None:
        return
    text = "".join(traceback.format_exception(call.excinfo.value))
    for pattern, reason in REFUSED.items():
        if re.search(pattern, text):
            path, line, _ = item.location
            report.outcome, report.longrepr = "skipped", (path, line or 0, f"not on Spark Connect: {reason}")
            item.user_properties.append((INCOMPLETE, "true"))
            return
