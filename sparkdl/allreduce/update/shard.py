"""The update of a shard: the mean of its gradients, penalties, clipping, the optimizer.

Most updates need nothing but their own shard. A norm over all weights (clipping, LAMB, Adasum ...)
needs a *reduction*: the update returns its partial sums and ends; the sums of all shards are added,
and the next phase starts again from the combined gradient and goes on with the totals. The whole
update is one generator, which yields partial sums and is sent totals; each phase replays it from its
beginning, so that nothing is left in a process between two phases.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from sparkdl import seeding
from sparkdl.allreduce.directives import Directives
from sparkdl.allreduce.messages import (
    Average,
    Partials,
    Shard,
    State,
    UpdatedShard,
    UpdateFacts,
    nbytes,
)
from sparkdl.allreduce.update import adasum
from sparkdl.allreduce.update.gradients import Gradients, checksum
from sparkdl.compute.problems import ProblemError
from sparkdl.compute.spec import Combine
from sparkdl.compute.stopwatch import Stopwatch
from sparkdl.optim.rule import UpdateRule
from sparkdl.optim.shard.optimizer import ShardOptimizer
from sparkdl.optim.staleness import Staleness
from sparkdl.wire import buffers, frame
from sparkdl.wire.frame import Array
from sparkdl.wire.held import Held, Owned, own
from sparkdl.wire.layout import ParamLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardUpdate:
    """What the update of a shard needs besides messages.

    Attributes:
        layout: layout of the flat vectors.
        start: first element of the shard.
        stop: one past its last element.
        rule: regularisers, clipping and optimizer.
        weights: the shard; overwritten if it is owned.
        iteration: completed iterations.
        combine: how gradients are combined.
        averaging: whether an average of the weights is kept.
        directives: instructions for this step.
        totals: sums over all shards that are known; their number is the phase.
        rows: whether these are rows of an embedding variable.
        shards: how many shards there are, some of which may be empty.
    """

    layout: ParamLayout
    start: int
    stop: int
    rule: UpdateRule
    weights: Held[Array]
    iteration: int = 0
    combine: Combine = "mean"
    averaging: bool = False
    directives: Directives = field(default_factory=Directives)
    totals: Sequence[Array] = ()
    rows: bool = False
    shards: int = 1

    @property
    def staleness(self) -> Staleness | None:
        """Which gradients of these weights come late, if any do."""
        found = self.rule.staleness
        return found if found is not None and (self.rows or not found.rows_only) else None

    @property
    def whole(self) -> bool:
        """Whether this is the only shard, so that its partial sums are the totals."""
        return self.shards == 1

    @property
    def last(self) -> bool:
        """Whether all totals are known, so that this phase ends the update."""
        return self.whole or len(self.totals) == reductions(self.rule, self.combine)

    def optimizer(self, state: State | None) -> ShardOptimizer:
        """Return the shard's optimizer with a state that was kept; with a fresh one without."""
        kept = state.state if state else None
        return ShardOptimizer(self.rule.optimizer, self.layout, self.start, self.stop, kept)


@dataclass(frozen=True, slots=True)
class Finished:
    """A completed update.

    Attributes:
        shard: the new weights.
        optimizer: the optimizer, with its state for the next update.
        average: averaged weights, if there are any.
    """

    shard: UpdatedShard
    optimizer: ShardOptimizer
    average: Average | None

    @property
    def state(self) -> State:
        """The optimizer's state as a message, whose arrays are those of the optimizer."""
        return State(Owned(frame.unpack(self.optimizer.state_frame(), writable=True)))

    @property
    def kept(self) -> list[State | Average]:
        """The state of the shard besides its weights."""
        return [self.state] if self.average is None else [self.state, self.average]


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """An update that waits for sums over all shards.

    Attributes:
        partials: this shard's part of the sums.
        shards: input of the next phase, in place of the gradients.
    """

    partials: Partials
    shards: Sequence[Shard]


def reductions(rule: UpdateRule, combine: Combine) -> int:
    """Return how many reductions an update of several shards needs."""
    return rule.reductions + (combine == "adasum")


def update_shard(
    update: ShardUpdate,
    shards: Sequence[Shard],
    optimizer: ShardOptimizer,
    average: Average | None = None,
    receive_seconds: float = 0.0,
) -> Finished | PendingUpdate:
    """Combine the gradients of a shard and update it, or go on until sums over all shards are needed.

    Args:
        update: the shard and the rule.
        shards: gradients of all sources, in any order; in later phases the result of the phase before.
        optimizer: the shard's; its state goes on in place.
        average: averaged weights so far.
        receive_seconds: how long it took to receive them, for the report.

    Raises:
        ProblemError: if a gradient is not finite; nothing is updated then.
    """
    clock = Stopwatch()
    weights = own(update.weights)
    gradient: Array | None = None
    partials, left = np.zeros(0), list(shards)
    if shards:  # none if every sample of the iteration has weight zero: nothing to learn
        gradients = Gradients.of(shards, update.layout, update.start, update.stop)
        if not update.totals:
            problem = gradients.prepare(update.combine, update.iteration, update.staleness)
            if problem is not None:
                raise ProblemError(problem)
        partials, gradient = _replay(update, _steps(update, gradients, optimizer, weights))
        if not update.last and not update.totals:
            left = list(gradients.shards())
    sources = checksum(shards)
    if not update.last:
        return PendingUpdate(Partials(update.start, sources, partials), left)
    averaged = _averaged(update, average, weights)
    clock.laps["receive"] = receive_seconds
    clock.lap("update")
    facts = UpdateFacts(
        update.start,
        sources,
        nbytes(shards),
        optimizer.state_bytes + (averaged.params.value.nbytes if averaged else 0),
        clock.facts(),
    )
    told: Array | None = None
    if update.directives.gradient:
        told = np.zeros_like(weights) if gradient is None else gradient
    return Finished(UpdatedShard(facts, Owned(weights), told), optimizer, averaged)


def _averaged(update: ShardUpdate, before: Average | None, weights: Array) -> Average | None:
    """Let the new weights enter their average."""
    weight = update.directives.average
    if not update.averaging or (before is None and not weight):
        return None
    if before is None or weight == 1.0:
        return Average(
            Owned(np.array(weights))
        )  # the weights' own memory may be overwritten by the next update
    average = own(before.params)
    if weight:
        average += average.dtype.type(weight) * (weights - average)
    return Average(Owned(average))


def _steps(
    update: ShardUpdate, gradients: Gradients, optimizer: ShardOptimizer, weights: Array
) -> Generator[Array, Array, Array]:
    """Update the shard in place; yield partial sums, receive totals, return the combined gradient."""
    parts, start, stop = gradients.parts, update.start, update.stop
    if len(parts) > 1:
        totals = yield adasum.gram_partials(parts, update.layout, start, stop)
        gradient = adasum.combine(parts, adasum.coefficients(totals), update.layout, start, stop)
    else:
        if update.combine == "adasum" and not update.whole:
            yield np.zeros(0)  # a single source has nothing to combine, but phases are counted
        # In an earlier phase it is left for the next one.
        gradient = own(parts[0].values) if update.last else buffers.copy(parts[0].array)
    combined = np.array(gradient) if update.directives.gradient else gradient
    yield from update.rule.update(
        optimizer,
        torch.from_numpy(weights),
        torch.from_numpy(gradient),
        gradients.used,
        hyper=update.directives.hyper,
        touched=gradients.touched,
        late=torch.from_numpy(gradients.late) if gradients.late is not None else None,
        draws=seeding.derive(seeding.OPTIMIZER, update.rule.seed, update.iteration, start),
    )
    return combined


def _replay(update: ShardUpdate, steps: Generator[Array, Array, Array]) -> tuple[Array, Array | None]:
    """Run an update as far as its totals are known."""
    totals = iter(update.totals)
    partials = np.zeros(0)
    try:
        partials = next(steps)
        while True:
            total = partials if update.whole else next(totals, None)
            if total is None:
                return partials, None
            partials = steps.send(total)
    except StopIteration as done:
        return partials, done.value
