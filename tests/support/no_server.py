"""A Spark Connect session without a server: jobs run in this process, one task after the other.

All of :mod:`sparkdl.access.connect` is the real thing. Functions are pickled, as on their way to executors.
Tasks of a stage do not run at the same time, so that only a single rank exchanges directly.
"""

from __future__ import annotations

import shutil
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
import torch
from pyspark import SparkFiles, TaskContext

from sparkdl.access.connect.access import connect_access
from sparkdl.compute import worker

Batches = list[pa.RecordBatch]


class Frame:
    """Stands in for a DataFrame.

    Args:
        session: the session.
        partitions: computes the batches of each partition.
    """

    def __init__(self, session: Session, partitions: Callable[[], list[Batches]]) -> None:
        self.session, self._compute = session, partitions
        self._kept: list[Batches] | None = None
        self._persisted = False

    def partitions(self) -> list[Batches]:
        if not self._persisted:
            return self._compute()
        if self._kept is None:
            self._kept = self._compute()
        return self._kept

    def mapInArrow(self, function: Any, schema: str, profile: Any = None) -> Frame:  # noqa: N802
        pickled = cloudpickle.dumps(function)

        def run() -> list[Batches]:
            found = []
            for partition, batches in enumerate(self.partitions()):
                self.session.partition = partition
                found.append(list(cloudpickle.loads(pickled)(iter(batches))))
            return found

        return Frame(self.session, run)

    def repartitionById(self, count: int, column: str) -> Frame:  # noqa: N802
        def run() -> list[Batches]:
            rows = [row for found in self.partitions() for batch in found for row in batch.to_pylist()]
            parts: list[Batches] = []
            for partition in range(count):
                # From the last row first: Spark promises no order.
                mine = [row for row in reversed(rows) if row[column] % count == partition]
                parts.append([pa.RecordBatch.from_pylist(mine, self.session.schema)] if mine else [])
            return parts

        return Frame(self.session, run)

    def persist(self) -> Frame:
        self.session.refuse("persist")
        self._persisted = True
        self.session.persisted.append(self)
        return self

    def unpersist(self, blocking: bool = False) -> Frame:
        self._persisted, self._kept = False, None
        self.session.persisted.remove(self)
        return self

    def localCheckpoint(self) -> Frame:  # noqa: N802
        self.session.refuse("localCheckpoint")
        found, number = self.partitions(), len(self.session.checkpoints)
        self.session.checkpoints.append(number)

        def run() -> list[Batches]:
            if number not in self.session.checkpoints:
                raise SparkError(f"Job aborted: Checkpoint block rdd_{number}_0 not found!")
            return found

        return Frame(self.session, run)

    def toArrow(self) -> pa.Table:  # noqa: N802
        self.session.jobs += 1
        return pa.Table.from_batches(
            [batch for found in self.partitions() for batch in found], self.session.schema
        )


class SparkError(Exception):
    """Stands in for Spark's."""


SparkError.__module__ = "pyspark.errors.exceptions.connect"


class Conf:
    """Stands in for the confs of a session."""

    def __init__(self, session: Session) -> None:
        self.session, self.values = session, dict[str, str]()

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.session.refuse("conf")
        self.values[name] = value

    def unset(self, name: str) -> None:
        self.session.refuse("conf")
        self.values.pop(name, None)


class Session:
    """Stands in for a SparkSession.

    Args:
        folder: for files that are sent.
        refused: what it refuses: ``persist``, ``localCheckpoint``, ``conf``.

    Attributes:
        jobs: how many have run.
        persisted: what is cached.
        partition: of the task that runs.
        sent: names of files that were sent.
        checkpoints: numbers of the local checkpoints that executors still have, or negative ones.
    """

    version, is_stopped = "4.3.0", False
    schema = pa.schema([("key", pa.int32()), ("frame", pa.binary())])

    def __init__(self, folder: Path, refused: Collection[str] = ()) -> None:
        self.folder, self.refused = folder, refused
        self.session_id = str(folder)
        self.jobs = self.partition = 0
        self.persisted: list[Frame] = []
        self.sent: list[str] = []
        self.checkpoints: list[int] = []
        self.conf = Conf(self)

    def refuse(self, what: str) -> None:
        """Fail as a session does that forbids something."""
        if what in self.refused:
            raise SparkError(f"[NOT_SUPPORTED_WITH_SERVERLESS] {what} is not supported. SQLSTATE: 0A000")

    def range(self, *arguments: int) -> Frame:
        parts: list[Batches] = [[] for _ in range(arguments[3] if len(arguments) > 3 else 1)]
        return Frame(self, lambda: parts)

    def createDataFrame(self, table: pa.Table) -> Frame:  # noqa: N802
        return Frame(self, lambda: [table.to_batches()])

    def addArtifacts(self, path: str, *, file: bool) -> None:  # noqa: N802
        assert file
        shutil.copy(path, self.folder)
        self.sent.append(Path(path).name)

    def addTag(self, tag: str) -> None:  # noqa: N802
        """Do nothing."""

    def removeTag(self, tag: str) -> None:  # noqa: N802
        """Do nothing."""


Session.__module__ = "pyspark.sql.connect.session"


@contextmanager
def no_server(folder: Path, refused: Collection[str] = ()) -> Iterator[Session]:
    """Let sparkdl run on a Spark Connect session without a server.

    Args:
        folder: for files; the executor's local directory is in it.
        refused: what the session refuses.
    """
    made, threads = Session(folder, refused), torch.get_num_threads()

    def context() -> Any:
        return SimpleNamespace(partitionId=lambda: made.partition, resources=dict)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", str(folder / "local"))
        patch.setattr(TaskContext, "get", context)
        patch.setattr(SparkFiles, "get", lambda name: str(folder / name))
        patch.setattr("sparkdl.access.connect.access._LINGER_SECONDS", 0.0)
        # An executor's process may turn memory management round; this one goes on.
        patch.setattr(worker, "exempt_objects", lambda: None)
        patch.setattr(worker, "keep_freed_memory", lambda: None)
        for name in ("_workers", "_files"):
            patch.setattr(worker, name, OrderedDict())
        try:
            yield made
        finally:
            torch.set_num_threads(threads)


def files_in(folder: Path) -> Sequence[Path]:
    """Return all files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


__all__ = ["Session", "connect_access", "files_in", "no_server"]
