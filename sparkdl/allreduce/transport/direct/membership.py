"""Members of direct exchange: the processes that take part, found by a job and told when it is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sparkdl._spark.errors import tolerated
from sparkdl._spark.processes import TaskMeeting
from sparkdl.access.base import Access, described
from sparkdl.allreduce.transport.direct.peer import Peer
from sparkdl.allreduce.transport.direct.task import Rendezvous, assemble, dismiss
from sparkdl.compute.worker import FitRef, release_fit
from sparkdl.data.store.build import PartitionStore
from sparkdl.wire import frame

_MOST_MEMBERS = 4  # so many processes for each rank are remembered

_IDLE_SECONDS = 45.0  # Spark ends Python processes that had no task for a minute

_DISMISSALS = 3
"""So many jobs try to reach all: a busy executor's slots may be taken, or a process may get two tasks."""

_MOST_TURNS = 3  # so many more processes than slots an executor may have


@dataclass(slots=True)
class Membership:
    """Processes that take part in a fit's exchange."""

    access: Access
    store: PartitionStore
    fit: FitRef
    rendezvous: Rendezvous
    profile: Any
    clock: Callable[[], float]
    _members: Sequence[Peer] | None = None  # those that ran the ranks last, and before them others
    _used: float = 0.0  # when
    _known: set[bytes] = field(default_factory=set)  # ids of all processes that may have connections

    @property
    def is_known(self) -> bool:
        """Whether the members are known."""
        return self._members is not None

    def find(self, name: str, broadcasts: Sequence[Any], tasks: int, losses: int) -> Sequence[Peer] | None:
        """Return all processes that may run ranks, if need be by a job; ``None`` if there are too few."""
        if self._members is None or self.clock() - self._used > _IDLE_SECONDS:
            found = [] if tasks == 1 else self._assemble(name, broadcasts, tasks, losses)
            self.met(found)
            self._members = found if tasks == 1 or len(found) >= tasks else None
            self._used = self.clock()
        return self._members

    def met(self, peers: Sequence[Peer]) -> None:
        """Note processes that may have connections."""
        self._known |= {peer.id for peer in peers}

    def saw(self, peers: Sequence[Peer]) -> None:
        """Note where the ranks of a completed group have run."""
        # An executor's processes take turns, and two that are not members would not find each other.
        members = self._members or ()
        latest = {peer.id: peer for peer in (*peers, *members)}
        most = max(_MOST_MEMBERS * len(peers), len(members))
        self._members, self._used = list(latest.values())[:most], self.clock()

    def forget(self) -> None:
        """Forget the members: the next group finds them anew."""
        self._members = None

    def dismiss(self, forget: Callable[[], None] | None = None) -> bool:
        """Let all processes that have taken part close their sockets, and release the fit's objects.

        All executors ``forget`` the fit, too, if that is given; return whether they have done so.
        """
        left, self._known, self._members = self._known, set(), None
        deleted = False
        access = self.access
        slots = 1 if self.fit.in_memory else self.store.executors.tasks
        task = partial(dismiss, self.fit.fit_id, forget or partial(release_fit, self.fit.fit_id))
        failed = f"connections of fit {self.fit.fit_id} were not closed"
        for _ in range(_DISMISSALS):
            if not left:
                break
            heard: set[bytes] = set()
            with described(access, "sparkdl: close connections"), tolerated(failed):
                met = partial(task, TaskMeeting(slots))
                heard = set(map(bytes, access.run_everywhere(met, times=slots, profile=self.profile)))
            if not heard:  # the others are gone, or the job has failed
                break
            left -= heard
            deleted = forget is not None
        return deleted

    def _assemble(self, name: str, broadcasts: Sequence[Any], tasks: int, losses: int) -> list[Peer]:
        access, profile, slots = self.access, self.profile, self.store.executors.tasks
        with described(access, f"{name}, find peers"):
            if self.fit.in_memory and tasks == len(self.store.partitions) and not losses:
                task = partial(assemble, self.fit, self.rendezvous, TaskMeeting(1))
                found = access.collect(access.stage(self.store.tokens, task, broadcasts, profile=profile))
            else:
                # Spark gives a task to the process that has been idle for longest: after a loss there are
                # perhaps more processes than slots.
                task = partial(assemble, self.fit, self.rendezvous, TaskMeeting(slots))
                times = slots * (1 + min(losses, _MOST_TURNS))
                found = access.run_everywhere(task, broadcasts, times=times, profile=profile)
        return list({peer.id: peer for peer in (Peer.read(frame.unpack(data)) for data in found)}.values())
