"""Members of direct exchange: processes that take part, or are about to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl.access.base import RunningJob
from sparkdl.allreduce.transport.direct.peer import Peer

_MOST_MEMBERS = 4
"""So many processes for each rank are remembered."""


@dataclass(slots=True)
class Membership:
    """Who takes part.

    Attributes:
        members: the processes that ran the ranks last, and before them others.
        used: when they were seen last, on the monotonic clock.
    """

    members: Sequence[Peer]
    used: float

    def saw(self, peers: Sequence[Peer], now: float) -> None:
        """Note where the ranks have run."""
        # An executor's processes take turns, and two that are not members would not find each other.
        latest = {peer.id: peer for peer in (*peers, *self.members)}
        most = max(_MOST_MEMBERS * len(peers), len(self.members))
        self.members, self.used = list(latest.values())[:most], now


@dataclass(frozen=True, slots=True)
class Joining:
    """Executors that have come, and get ready.

    Attributes:
        slots: task slots since then.
        begun: the job that does it; ``None`` if there is none.
        deadline: when they are not waited for any longer, on the monotonic clock.
    """

    slots: int
    begun: RunningJob | None
    deadline: float

    def is_over(self, now: float) -> bool:
        """Return whether they are ready, or too late."""
        return self.begun is None or now >= self.deadline or self.begun.is_done()
