"""Access of models to a session: saved ones, ones in columns, and ones that learn from streams.

Training asks for more: :class:`sparkdl.access.base.Access`.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from sparkdl._spark.folders import HadoopFolders
from sparkdl._spark.session import is_classic
from sparkdl._spark.tasks import read_once


class Lasting(Protocol):
    """Bytes that functions of columns can read for as long as there are DataFrames with them."""

    @property
    def digest(self) -> str:
        """Return the name of the content."""

    def read(self) -> bytes:
        """Return the bytes; called in tasks."""


@dataclass(frozen=True, slots=True)
class Inline:
    """Bytes inside of the function that reads them."""

    digest: str
    data: bytes

    def read(self) -> bytes:
        """Return the bytes."""
        return self.data


def digest_of(data: bytes) -> str:
    """Return a name of some bytes."""
    return hashlib.sha256(data).hexdigest()


@contextmanager
def tagged(
    add: Callable[[str], Any], cancel: Callable[[str], Any], remove: Callable[[str], Any]
) -> Iterator[None]:
    """Give the jobs inside of ``with`` a tag, and cancel them by it on an error or Ctrl-C."""
    tag = f"sparkdl-{uuid.uuid4().hex}"
    add(tag)
    try:
        yield
    except BaseException:
        with suppress(Exception):
            cancel(tag)
        raise
    finally:
        remove(tag)


class ModelAccess(Protocol):
    """A session, as models see it."""

    @property
    def runs_batches(self) -> bool:
        """Whether a function over the batches of a stream runs in this program."""

    def folders(self, path: str) -> HadoopFolders | None:
        """Return the file system of a path; ``None`` if the session can neither list nor rename files."""

    def in_small_tasks(self, rows: list[tuple[int, bytes]], schema: str) -> DataFrame:
        """Return large rows as a DataFrame of which no task carries much."""

    def lasting(self, data: bytes) -> Lasting:
        """Make bytes available to functions of columns; the same bytes need not be sent twice."""

    def cancelled(self) -> AbstractContextManager[None]:
        """Cancel the jobs inside of ``with`` on an error or Ctrl-C."""


# -- classic sessions -------------------------------------------------------------------------------------

_MAX_BROADCASTS = 16


@dataclass(frozen=True, slots=True)
class Broadcasted:
    """Bytes in a broadcast, which each executor fetches once."""

    digest: str
    broadcast: Any

    def read(self) -> bytes:
        """Return the bytes."""
        # PySpark would keep them for as long as the Python worker lives; what is made of them is kept anyway.
        data: bytes = read_once(self.broadcast)
        return data


_broadcasts: OrderedDict[tuple[str, str], Broadcasted] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class ClassicModels:
    """A classic session: Hadoop's file systems, RDDs, broadcasts."""

    spark: SparkSession
    runs_batches: bool = True

    def folders(self, path: str) -> HadoopFolders | None:
        """Return the file system of a path, if there is a JVM."""
        return HadoopFolders(self.spark, path) if is_classic(self.spark) else None

    def in_small_tasks(self, rows: list[tuple[int, bytes]], schema: str) -> DataFrame:
        """Return each row in a task of its own, for tasks carry what the driver holds."""
        if not is_classic(self.spark):
            return self.spark.createDataFrame(rows, schema)
        return self.spark.createDataFrame(self.spark.sparkContext.parallelize(rows, len(rows)), schema)

    def lasting(self, data: bytes) -> Broadcasted:
        """Broadcast bytes, or use their broadcast again.

        Spark removes it once neither this process nor a DataFrame needs it.
        """
        sc = self.spark.sparkContext
        key = (sc.applicationId, digest_of(data))
        with _lock:
            if key not in _broadcasts:
                _broadcasts[key] = Broadcasted(key[1], sc.broadcast(data))
            _broadcasts.move_to_end(key)
            stale = [other for other in _broadcasts if other[0] != sc.applicationId]
            while stale or len(_broadcasts) > _MAX_BROADCASTS:
                _broadcasts.pop(stale.pop() if stale else next(iter(_broadcasts)))
            return _broadcasts[key]

    def cancelled(self) -> AbstractContextManager[None]:
        """Tag jobs by the context: the session of Spark 3.5 has such methods, which raise."""
        sc = self.spark.sparkContext
        return tagged(sc.addJobTag, sc.cancelJobsWithTag, sc.removeJobTag)
