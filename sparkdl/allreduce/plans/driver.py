"""The driver plan: the sharded one, whose weights go through the driver.

As in BigDL's paper (Dai et al., SoCC 2019), an iteration is two jobs: forward and backward pass, then the
parameter sync, which sends the new shards to the driver, and the driver publishes the weights for the next
iteration. It is slower than the others, and needs nothing of a classic session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparkdl.access.base import BytesRef
from sparkdl.allreduce.messages import (
    Average,
    GroupReport,
    Message,
    Report,
    Reports,
    Shard,
    State,
    UpdatedShard,
    first_of,
    of_type,
)
from sparkdl.allreduce.plan import (
    Directives,
    Inbox,
    Participant,
    Phase,
    PlanTraits,
    Send,
    Stay,
    Step,
    ToDriver,
    ToRank,
    gradient_shards,
    report_of,
)
from sparkdl.allreduce.shard_states import ShardStates
from sparkdl.allreduce.update.combine import combine_reports
from sparkdl.allreduce.update.shard import Finished, ShardUpdate, update_shard
from sparkdl.compute.forward_backward import ForwardBackward
from sparkdl.compute.start import Start
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Packed
from sparkdl.wire.held import Shared, own_tensor
from sparkdl.wire.layout import ParamLayout

MAX_SHARD_BYTES = 64 << 20
"""An executor's heap holds several frames of a shard at a time, its moments among them: with shards of
200 MB, 4 GiB were not enough. And no frame comes near the 2 GiB that a JVM array can hold."""

_ONE_SHARD_BYTES = 4 << 20
"""Up to this size an update that needs reductions runs as one shard: nothing is left to reduce, and
each reduction would be a job of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughDriver:
    """The driver plan; see :class:`sparkdl.allreduce.plan.Plan`."""

    layout: ParamLayout  # of the flat vectors
    shards: int  # number of parameter-sync tasks
    keeps: bool  # whether optimizer state or an average stays with the shards
    reductions: int  # sums over all shards that an update needs

    @property
    def traits(self) -> PlanTraits:
        """Each iteration is a group, whose weights pass through the driver."""
        shard = self.layout.largest_shard(self.shards)
        return PlanTraits(
            shards=self.shards,
            message_bytes=shard,
            shard_bytes=shard,
            weights_bytes=self.layout.nbytes,
            group_seconds=1.0,  # there are no others than those of one iteration
            longest_group=1,
            keeps=self.keeps,
            leaves_model=False,
        )

    @property
    def updates(self) -> int:
        """Number of phases of an update."""
        return 1 + (self.reductions if self.shards > 1 else 0)

    def seed(self, fetch: Callable[[], ShardStates]) -> list[Packed]:
        """Return nothing: the shards' state arrives with their gradients."""
        return []

    def phases(self, start: Start, steps: Sequence[Step]) -> list[Phase]:
        """Return forward and backward pass, and the first phase of the update."""
        (step,) = steps
        assert start.weights is not None
        forward = step.forward(start, tells=False)
        return [
            _ForwardBackward(self.shards, start.weights, forward),
            self.update(start, step.directives, ()),
        ]

    def update(self, start: Start, directives: Directives, totals: Sequence[Array]) -> Phase:
        """Return the phase of the update in which some sums over all shards are known."""
        assert start.weights is not None
        return _Sync(
            self.shards, self.keeps, start.weights, start.version.iteration, directives, tuple(totals)
        )

    def conclude(self, messages: Sequence[Message], buffers: Array, counters: Array) -> GroupReport:
        """Put the shards that came back together."""
        parts = sorted(of_type(messages, UpdatedShard), key=lambda part: part.facts.start)
        (reports,) = of_type(messages, Reports)
        facts = [part.facts.scalars() for part in parts]
        gradients = [part.gradient for part in parts if part.gradient is not None]
        return GroupReport(
            [{"updates": facts, "reports": list(reports.reports)}],
            reports.buffers.get("buffers", buffers),
            reports.buffers.get("counters", counters),
            np.concatenate([part.held.value for part in parts]),
            np.concatenate(gradients) if gradients else None,
        )


@dataclass(frozen=True, slots=True)
class _ForwardBackward:
    """Forward and backward pass from the weights that the driver has published."""

    shards: int
    weights: BytesRef
    forward: ForwardBackward

    def __call__(self, me: Participant, inbox: Inbox) -> Iterator[Send]:
        """Send each shard its gradient, and the first one a report."""
        contribution = me.contribute(self.forward, lambda: frame.unpack(self.weights.read()).arrays)
        bounds = me.worker.spec.layout.shards(self.shards)
        for n, shard in enumerate(gradient_shards(me, self.forward, contribution, bounds)):
            yield ToRank(n, shard)
        yield ToRank(0, report_of(me, contribution))


@dataclass(frozen=True, slots=True)
class _Sync:
    """Update a shard, or go on until sums over all shards are needed."""

    shards: int
    keeps: bool
    weights: BytesRef
    iteration: int
    directives: Directives
    totals: tuple[Array, ...]

    def __call__(self, me: Participant, inbox: Inbox) -> Iterator[Send]:
        """Send the shard, or partial sums, to the driver; keep its state."""
        spec = me.worker.spec
        received = me.clock.lap("receive")
        start, stop = spec.layout.shards(self.shards)[me.rank]
        before = frame.unpack(self.weights.read()).arrays
        averaged = first_of(inbox.everything(), Average)
        update = ShardUpdate(
            layout=spec.layout,
            start=start,
            stop=stop,
            rule=spec.rule,
            weights=own_tensor(Shared(before["params"][start:stop])),
            iteration=self.iteration,
            combine=spec.combine,
            averaging=spec.averaging,
            directives=self.directives,
            shards=self.shards,
            totals=self.totals,
        )
        optimizer = update.optimizer(first_of(inbox.everything(), State))
        average = own_tensor(averaged.params) if averaged is not None else None
        made = update_shard(update, inbox.of(Shard), optimizer, average, received)
        if isinstance(made, Finished):
            yield ToDriver(made.shard)
            if self.keeps:
                yield from map(Stay, made.states)
        else:
            yield ToDriver(made.partials)
            if not self.totals:  # later phases go on from these again
                yield from map(Stay, made.shards)
        reports = inbox.of(Report)
        if reports:
            yield ToDriver(combine_reports(reports, before["buffers"], before["counters"]))


def count_shards(layout: ParamLayout, ranks: int, wanted: int | None, reductions: int) -> int:
    """Return the number of parameter-sync tasks: as wanted, or one per rank, more if shards are too large."""
    if wanted is not None:
        return wanted
    if reductions and layout.nbytes <= _ONE_SHARD_BYTES:
        return 1
    needed = -(-layout.nbytes // MAX_SHARD_BYTES)
    return min(max(ranks, needed), layout.numel)
