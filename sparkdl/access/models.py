"""Access of models to a session: saved ones, ones in columns, and ones that learn from streams.

Training asks for more: :class:`sparkdl.access.base.Access`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from sparkdl._spark.folders import HadoopFolders


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
