"""Placement: which ranks each task of a group runs, by the task slots that there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdl.access.base import Access, Chain
from sparkdl.access.stages import Host
from sparkdl.allreduce.transport.direct.task import get_ready
from sparkdl.data.store.build import PartitionStore

if TYPE_CHECKING:
    from sparkdl._spark.jobs import SubmittedJob

_READY_SECONDS = 60.0  # so long executors that have come may take to get ready


@dataclass(frozen=True, slots=True)
class _Joining:
    """Executors that have come, and get ready."""

    executors: frozenset[str]  # their ids
    begun: SubmittedJob | None  # the job that does it; ``None`` if there is none
    deadline: float  # when they are not waited for any longer, on the monotonic clock

    def is_over(self, now: float) -> bool:
        return self.begun is None or now >= self.deadline or self.begun.is_done()


class Placement:
    """Tasks of the next group; if there are fewer than ranks, ``hosts`` tell where each runs."""

    def __init__(
        self, access: Access, store: PartitionStore, chain: Chain, profile: Any, clock: Callable[[], float]
    ) -> None:
        self.ranks = len(store.partitions)
        self.tasks = 0
        self.hosts: Sequence[Host] = ()
        self._access = access
        self._executors = store.executors
        self._chain = chain
        self._profile = profile
        self._clock = clock
        self._ready: set[str] = set()  # executors whose processes need not start first
        self._hosting: set[str] = set()  # those of them when the hosts were chosen
        self._joining: _Joining | None = None

    @property
    def slots(self) -> int:
        """Task slots that there are now."""
        return self._access.count_executors() * self._executors.tasks

    @property
    def is_possible(self) -> bool:
        """Whether all ranks can run at the same time."""
        return self._chain.gathering is not None or self.slots >= self.ranks

    @property
    def is_joining(self) -> bool:
        """Whether executors that have come are getting ready, and groups run without them until then.

        A Python process takes seconds to start, and the other tasks of a group would wait for it. Such an
        executor may have come in place of another since the last look.
        """
        return self._is_joining(self._there)

    @property
    def _there(self) -> set[str]:
        """Executors that take tasks now; none where each rank has a task of its own."""
        gathering = self._chain.gathering
        return gathering.executors() if gathering is not None else set()

    def _is_joining(self, there: set[str]) -> bool:
        ready, tasks = there & self._ready, self._executors.tasks
        if not ready or ready == there or len(ready) * tasks >= self.ranks:
            self.release()
            return False
        if self._joining is None:
            begun = self._access.begin_everywhere(get_ready, times=tasks, profile=self._profile)
            self._joining = _Joining(frozenset(there - ready), begun, self._clock() + _READY_SECONDS)
        if not self._joining.is_over(self._clock()):
            return True
        self._ready |= self._joining.executors
        self.release()
        return self._is_joining(there)  # others may have come in the meantime

    @property
    def is_short(self) -> bool:
        """Whether tasks run several ranks because executors have gone, or are not ready yet."""
        first = self._executors.count * self._executors.tasks
        return bool(self.hosts) and (self.slots < min(self.ranks, first) or self.is_joining)

    def choose(self) -> bool:
        """Choose the tasks of the next group; return whether there are as many as before."""
        before, gathering, tasks = self.tasks, self._chain.gathering, self._executors.tasks
        there = self._there
        if self._is_joining(there) and self.hosts:
            return True
        # At first, and if all are new, there is nothing to wait for.
        self._ready = ready = (there & self._ready) or there
        if gathering is None or len(ready) * tasks >= self.ranks:
            self.tasks, self.hosts = self.ranks, ()
        elif not self.hosts or ready != self._hosting:
            self.hosts, self._hosting = gathering.hosts(tasks), ready
            self.tasks = len(self.hosts)
        return self.tasks == before

    def forget(self) -> None:
        """Forget where the ranks' rows are."""
        self.hosts = ()

    def release(self) -> None:
        """End what executors do to get ready."""
        if self._joining is not None and self._joining.begun is not None:
            self._joining.begun.cancel()
        self._joining = None
