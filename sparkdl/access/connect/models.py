"""Access of models to a Spark Connect session."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession

from sparkdl.access.connect.files import FileRef, new_files, send_files
from sparkdl.access.models import Inline, digest_of, tagged

_INLINE_BYTES = 1 << 20
"""Larger models are files: a function is part of each plan that uses it, and fills the server's heap."""


@dataclass(frozen=True, slots=True)
class InFiles:
    """Bytes in files, which each executor fetches once."""

    digest: str
    ref: FileRef

    def read(self) -> bytes:
        """Return the bytes."""
        return bytes(self.ref.read())


_sent: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
"""Digests of what a session's executors can fetch."""
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class ConnectModels:
    """See :class:`sparkdl.access.models.ModelAccess`."""

    spark: SparkSession  # the session
    runs_batches: bool = False  # a stream's batches run in the server

    def folders(self, path: str) -> None:
        """Return none: a client has no file system of the server's."""
        return

    def in_small_tasks(self, rows: list[tuple[int, bytes]], schema: str) -> DataFrame:
        """Return rows as a DataFrame, which the client sends in its own way."""
        return self.spark.createDataFrame(rows, schema)

    def lasting(self, data: bytes) -> Inline | InFiles:
        """Return bytes that travel in the function, or as files that stay until the session ends."""
        digest = digest_of(data)
        if len(data) <= _INLINE_BYTES:
            return Inline(digest, data)
        ref = new_files(len(data), digest)
        with _lock:
            known = _sent.setdefault(self.spark, set())
            if digest not in known:
                send_files(self.spark, ref, data)
                known.add(digest)
        return InFiles(digest, ref)

    def cancelled(self) -> AbstractContextManager[None]:
        """Tag jobs by the session, which knows its own."""
        return tagged(self.spark.addTag, self.spark.interruptTag, self.spark.removeTag)
