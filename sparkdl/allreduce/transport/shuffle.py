"""The shuffle transport: a group is one Spark job, and each exchange a stage boundary."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from sparkdl.access.base import Chain
from sparkdl.allreduce import messages
from sparkdl.allreduce.transport.base import Group, GroupResult
from sparkdl.allreduce.transport.task import PhaseTask
from sparkdl.compute.worker import FitRef
from sparkdl.exceptions import TaskError

_PAUSE_SECONDS = 2.0
"""The driver tries a group again a few times; meanwhile a lost executor may be there again."""


class ShuffleTransport:
    """Runs groups as chains of stages.

    Args:
        ranks: how many there are.
        fit: the fixed part of the fit.
        chain: runs the stages.
        longest_group: steps of one chain.
        executors: counts executors, if a phase after the first one needs the rank's rows and its stage runs
            on any of them.
    """

    def __init__(
        self,
        ranks: int,
        fit: FitRef,
        chain: Chain,
        longest_group: int,
        executors: Callable[[], int] | None = None,
    ) -> None:
        self._ranks = ranks
        self._fit = fit
        self._chain = chain
        self.longest_group = longest_group
        self._executors = executors

    @property
    def is_joining(self) -> bool:
        """No: an executor's first task waits for its process."""
        return False

    @property
    def is_possible(self) -> bool:
        """Whether stages can be where they need to be."""
        return self._executors is None or self._executors() <= 1

    def run(self, group: Group) -> GroupResult:
        """Run all phases of a group as the stages of one job."""
        if self._executors is not None and (count := self._executors()) > 1:
            time.sleep(_PAUSE_SECONDS)
            raise TaskError(
                f"{group.name}: tasks on {count} executors do not exchange directly now (see the log), and "
                "on Spark Connect embedding variables need that; open the ports between executors, give "
                "each partition a task slot, or fit in a classic session"
            )
        started, begin = time.time(), time.perf_counter()
        plan, count = group.plan, len(group.steps)
        start = replace(group.start, local=group.start.local and self._chain.stays)
        phases = plan.phases(start, group.steps)
        tasks = [
            PhaseTask(
                self._fit,
                phase,
                self._ranks,
                start.version.iteration,
                token=True,
                local=start.local,
                last=phase is phases[-1],
                fill=phase is not phases[-1],
            )
            for phase in phases
        ]
        until = start.version.iteration + count
        what = "forward-backward and sync" if count == 1 else f"up to iteration {until}"
        name = f"{group.name}, {what}"
        frames, kept = self._chain.run(
            tasks,
            group.broadcasts,
            name,
            plan.traits.message_bytes,
            kept_bytes=plan.traits.kept_bytes,
        )
        arrived = [messages.decode(data) for data in frames]
        return GroupResult(arrived, kept, started, {"job": time.perf_counter() - begin})

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""
        self._chain.forget(partition)

    def release(self) -> None:
        """Delete all files on the executors for the store."""
        self._chain.release()
