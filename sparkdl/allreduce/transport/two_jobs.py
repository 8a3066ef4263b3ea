"""The transport of the driver plan: two jobs per iteration; sums and weights pass through the driver."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sparkdl.access.base import Access, Kept
from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import Message, Partials, Problems, Reports, UpdatedShard, of_type
from sparkdl.allreduce.plans.base import Phase
from sparkdl.allreduce.plans.driver import ThroughDriver
from sparkdl.allreduce.transport.base import Group, GroupResult
from sparkdl.allreduce.transport.task import PhaseTask
from sparkdl.compute.stragglers import Allowance
from sparkdl.compute.worker import FitRef
from sparkdl.data.store.build import PartitionStore
from sparkdl.optim.reduction import add_up
from sparkdl.wire.frame import Array


class TwoJobTransport:
    """Runs an iteration as two jobs.

    Attributes:
        longest_group: an iteration is a job, or several.
        is_joining: an executor's first task waits for its process.
    """

    longest_group = 1
    is_joining = False

    def __init__(self, access: Access, store: PartitionStore, fit: FitRef, profile: Any) -> None:
        self._access = access
        self._store = store
        self._fit = fit
        self._profile = profile

    def run(self, group: Group) -> GroupResult:
        """Run an iteration's jobs."""
        plan, (step,) = group.plan, group.steps
        assert isinstance(plan, ThroughDriver)
        forward, update = plan.phases(group.start, group.steps)
        started, times = time.time(), [time.perf_counter()]
        kept: Kept | None = None
        arrived: list[Message] = []
        totals: list[Array] = []
        torn = False
        gradients = self._task(forward, group, token=True, last=False, ranks=plan.shards)
        with self._access.sync(
            self._store.tokens, gradients, plan.shards, group.kept, group.broadcasts, self._profile
        ) as sync:
            # Job 1: each partition's gradient, cut into shards, written as the map side of a shuffle.
            sync.scatter(f"{group.name}, forward-backward")
            times.append(time.perf_counter())

            # Job 2: shard n of all partitions and the state of shard n meet in task n. Where an update
            # needs sums over all shards, each is a job before it: the first also leaves the combined
            # gradients, from which the later ones go on.
            for number in range(plan.updates):
                last = number == plan.updates - 1
                stays = plan.keeps if last else number == 0
                task = self._task(update, group, token=False, last=True, ranks=plan.shards, stays=stays)
                if last:
                    kept_bytes = plan.traits.kept_bytes
                    frames, kept = sync.finish(task, f"{group.name}, parameter sync", kept_bytes=kept_bytes)
                else:
                    frames = sync.reduce(task, f"{group.name}, reduction", leaves=stays)
                received = list(map(messages.decode, frames))
                arrived += received
                torn = _torn(received)
                if torn or of_type(received, Problems):
                    break
                if not last:
                    partials = sorted(of_type(received, Partials), key=lambda message: message.start)
                    totals.append(add_up(message.sums for message in partials))
                    update = plan.update(group.start, step.directives, totals)
            times.append(time.perf_counter())
        seconds = {"job1": times[1] - times[0], "job2": times[2] - times[1]}
        refused = torn or _too_many(arrived, step.allowance)
        return GroupResult(arrived, kept, started, seconds, refused)

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""
        self._access.forget(self._store.tokens, partition)

    def release(self) -> None:
        """Delete nothing: an iteration leaves nothing."""

    def _task(
        self, phase: Phase, group: Group, *, token: bool, last: bool, ranks: int, stays: bool = True
    ) -> PhaseTask:
        iteration = group.start.version.iteration
        return PhaseTask(
            self._fit, phase, ranks, iteration, token=token, local=False, last=last, fill=False, stays=stays
        )


def _torn(received: Sequence[Message]) -> bool:
    """Return whether the shards saw different gradients of a source.

    A task that may leave rows out need not do the same when it runs again; if it does so between two
    reads of its shards, these do not belong together.
    """
    seen = {message.facts.sources for message in of_type(received, UpdatedShard)}
    return len(seen | {message.sources for message in of_type(received, Partials)}) > 1


def _too_many(arrived: Sequence[Message], allowance: Allowance | None) -> bool:
    """Return whether more rows were left out than may be."""
    if allowance is None or allowance.deadline is None:
        return False
    reports = [report for message in of_type(arrived, Reports) for report in message.reports]
    dropped = sum(int(report["dropped"]) for report in reports)
    return dropped > allowance.most * (dropped + sum(int(report["rows"]) for report in reports))
