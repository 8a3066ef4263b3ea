"""Tests of other folders on Spark Connect: ``scripts/test-connect``, or ``pytest --connect``.

The fixture ``spark`` is then a session of a server that the tests start. Tests that take a real session run,
but for those that :data:`LEFT_OUT` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.connect import server

FOLDERS = ("tests/data/", "tests/ml/", "tests/train/")
"""Folders whose tests run."""

LEFT_OUT: Mapping[str, str] = {}
"""Why tests do not run, by the beginning of their ids. docs/connect.md says the same for users."""


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
        """Return the files of stores, of fits and of groups that nobody has deleted."""
        kept = ("sparkdl", "sparkdl-fits", "sparkdl-kept")
        found = (path for name in kept for path in self.folder.rglob(f"{name}/**/*") if path.is_file())
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
