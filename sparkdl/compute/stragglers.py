"""What a slow task may leave out of its share of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the tasks of one iteration may leave out.

    Attributes:
        chunks: pieces in which a task goes through its rows.
        deadline: seconds from a task's start after which it begins no other piece; ``None`` for no end.
        taken: rows that each partition took when the iteration ran before, for those that left some out.
        most: largest share of all rows that may be missing.
    """

    chunks: int
    deadline: float | None = None
    taken: Mapping[int, int] = field(default_factory=dict)
    most: float = 1.0

    def size(self, rows: int) -> int:
        """Return the rows of a piece."""
        return max(1, -(-rows // self.chunks))

    def ends(self, partition: int, done: int, seconds: float) -> bool:
        """Return whether a task that has done some of its rows is to leave out the others."""
        if partition in self.taken:
            return done >= self.taken[partition]
        return self.deadline is not None and seconds > self.deadline
