"""What models ask of a Spark Connect session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdl.access.models import Inline, digest_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ConnectModels:
    """See :class:`sparkdl.access.models.ModelAccess`.

    Attributes:
        spark: the session.
        runs_batches: a stream's batches run in the server.
    """

    spark: SparkSession
    runs_batches: bool = False

    def folders(self, path: str) -> None:
        """Return none: a client has no file system of the server's."""
        return

    def in_small_tasks(self, rows: list[tuple[int, bytes]], schema: str) -> DataFrame:
        """Return rows as a DataFrame, which the client sends in its own way."""
        return self.spark.createDataFrame(rows, schema)

    def lasting(self, data: bytes) -> Inline:
        """Return bytes that travel in the function."""
        return Inline(digest_of(data), data)
