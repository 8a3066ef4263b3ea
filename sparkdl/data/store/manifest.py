"""Checksums of a partition store's first build, to compare with rows that are read again.

Spark builds a partition again when its executor is lost. If the source has changed meanwhile, other rows
come, and an epoch would see some rows twice and others never. So each token has two checksums: of its rows'
positions, whatever their order, and of the columns' bytes. A task that finds other positions than the driver
expects says so instead of training. Other bytes alone are reported, and the driver warns: a sum may differ in
its last digit with the order of a shuffle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl._spark.frames import Task
from sparkdl.data.store.partition import Token
from sparkdl.exceptions import DataError
from sparkdl.wire import frame
from sparkdl.wire.frame import Parts

ADVICE = (
    "Give training rows that stay as they are: df.checkpoint(), a copy in Parquet, or one version of a table "
    "(Delta, Iceberg)"
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Rows and checksums of each partition, small enough to travel with every task."""

    data: bytes  # for each partition its rows, and checksums of positions and bytes, as little-endian uint64

    @classmethod
    def of(cls, tokens: Sequence[Token]) -> Manifest:
        """Return the manifest of a store as it was built."""
        return cls(np.array([(t.rows, t.positions, t.content) for t in tokens], "<u8").tobytes())

    def problem(self, token: Token) -> dict[str, Any] | None:
        """Return how a partition's rows differ from the first build; ``None`` if they do not."""
        rows, positions, _ = self._of(token)
        if (rows, positions) == (token.rows, token.positions):
            return None
        return {
            "kind": "changed",
            "partition": token.partition,
            "rows": token.rows,
            "expected": rows,
            "error": token.error,
        }

    def has_other_values(self, token: Token) -> bool:
        """Return whether the bytes of a partition's columns differ."""
        return self._of(token)[2] != token.content

    def _of(self, token: Token) -> list[int]:
        found = np.frombuffer(self.data, "<u8", 3, token.partition * 24)
        return [int(value) for value in found]


def changed_error(problem: Any, where: str) -> DataError:
    """Return the error of a partition whose rows are others now."""
    if problem["error"]:
        found = f"cannot be built again: {problem['error']}"
    elif problem["rows"] == problem["expected"]:
        found = f"was built again and has {problem['rows']} rows, but others than before"
    else:
        found = f"was built again and has {problem['rows']} rows where it had {problem['expected']}"
    return DataError(
        f"{where}: partition {problem['partition']} {found}: the source has changed. {ADVICE}; "
        "Dataset.release() lets the next fit begin with the rows that there are now",
        code="data-changed",
    )


def check_same_rows(before: Sequence[Token], after: Sequence[Token]) -> None:
    """Check that other partitions hold the same rows."""
    had, has = ((sum(t.rows for t in tokens), total(tokens)) for tokens in (before, after))
    if had != has:
        found = f"{has[0]} rows where there were {had[0]}" if has[0] != had[0] else "other rows"
        raise DataError(
            f"read again for {len(after)} partitions, the source gives {found}: it has changed. {ADVICE}",
            code="data-changed",
        )


def total(tokens: Sequence[Token]) -> int:
    """Return the checksum of all partitions' positions, however rows are spread over them."""
    return sum(token.positions for token in tokens) % (1 << 64)


def other_values(partitions: Sequence[int]) -> str:
    """Return the warning about partitions whose rows have other values."""
    return (
        f"partitions {list(partitions)} of the store were built again, and their rows have other values than "
        f"before: the source gives other ones, or in another order, each time. {ADVICE}"
    )


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Task that runs another one over a store's partition, if it still has the rows that it had."""

    task: Task
    manifest: Manifest

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterator[bytes | Parts]:
        """Yield what the task yields, or the problem."""
        read = list(frames)
        problem = self.manifest.problem(Token.from_frame(frame.unpack(read[0])))
        if problem is not None:
            yield frame.pack(problem)
        else:
            yield from self.task(partition, iter(read))
