"""The rows that slow tasks may leave out, and from when on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Allowance:
    """The rows that tasks of one iteration may leave out."""

    chunks: int  # pieces in which a task goes through its rows
    # seconds after a task's start; later it begins no further piece. ``None`` for no deadline.
    deadline: float | None = None
    # for a replay, the rows that each partition took before, for partitions that left some out
    taken: Mapping[int, int] = field(default_factory=dict)
    most: float = 1.0  # largest share of all rows that may be missing

    def size(self, rows: int) -> int:
        """Return the rows of a piece."""
        return max(1, -(-rows // self.chunks))

    def ends(self, partition: int, done: int, seconds: float) -> bool:
        """Return whether a task that has done some of its rows must leave out the others."""
        if partition in self.taken:
            return done >= self.taken[partition]
        return self.deadline is not None and seconds > self.deadline
