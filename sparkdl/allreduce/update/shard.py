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
from sparkdl.allreduce.messages import (
    Average,
    Partials,
    Shard,
    State,
    UpdatedShard,
    UpdateFacts,
    nbytes,
)
from sparkdl.allreduce.plan import Directives
from sparkdl.allreduce.update import adasum
from sparkdl.allreduce.update.combine import Gradients, checksum
from sparkdl.compute.problems import ProblemError
from sparkdl.compute.spec import Combine
from sparkdl.compute.stopwatch import Stopwatch
from sparkdl.nn.gradient import Gradient
from sparkdl.optim.shard.optimizer import ShardOptimizer, UpdateRule
from sparkdl.optim.staleness import Staleness
from sparkdl.wire import buffers, frame
from sparkdl.wire.frame import Array
from sparkdl.wire.held import Owned, own
from sparkdl.wire.layout import ParamLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardUpdate:
    """What the update of a shard needs besides messages."""

    layout: ParamLayout  # of the flat vectors
    start: int  # first element of the shard
    stop: int  # one past its last element
    rule: UpdateRule  # regularisers, clipping and optimizer
    weights: torch.Tensor  # the shard, on the device that updates it; overwritten
    iteration: int = 0  # completed iterations
    combine: Combine = "mean"  # how gradients are combined
    averaging: bool = False  # whether an average of the weights is kept
    directives: Directives = field(default_factory=Directives)  # instructions for this step
    totals: Sequence[Array] = ()  # sums over all shards that are known; their number is the phase
    rows: bool = False  # whether these are rows of an embedding variable
    shards: int = 1  # how many shards there are, some of which may be empty

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
        before = state.state if state else None
        return ShardOptimizer(self.rule.optimizer, self.layout, self.start, self.stop, before)


@dataclass(frozen=True, slots=True)
class Finished:
    """A completed update."""

    facts: UpdateFacts  # what it has to report
    weights: torch.Tensor  # the new weights
    optimizer: ShardOptimizer  # with its state for the next update
    average: torch.Tensor | None  # averaged weights, if there are any
    gradient: Array | None  # combined gradient, if the driver wants it

    @property
    def shard(self) -> UpdatedShard:
        """The new weights as a message."""
        return UpdatedShard(self.facts, Owned(self.weights.numpy()), self.gradient)

    @property
    def state(self) -> State:
        """The optimizer's state as a message, whose arrays are those of the optimizer."""
        return State(Owned(frame.unpack(self.optimizer.state_frame(), writable=True)))

    @property
    def states(self) -> list[State | Average]:
        """The state of the shard besides its weights."""
        if self.average is None:
            return [self.state]
        return [self.state, Average(Owned(self.average.numpy()))]


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """An update that waits for sums over all shards."""

    partials: Partials  # this shard's part of the sums
    shards: Sequence[Shard]  # input of the next phase, in place of the gradients


def reductions(rule: UpdateRule, combine: Combine) -> int:
    """Return how many reductions an update of several shards needs."""
    return rule.reductions + (combine == "adasum")


def update_shard(
    update: ShardUpdate,
    shards: Sequence[Shard],
    optimizer: ShardOptimizer,
    average: torch.Tensor | None = None,
    receive_seconds: float = 0.0,
    unsent: Gradient | None = None,
) -> Finished | PendingUpdate:
    """Combine the gradients of a shard and update it, or go on until sums over all shards are needed.

    ``shards`` are those of all sources, in any order; in later phases the result of the phase before. The
    optimizer's state and ``average``, the averaged weights so far, go on in place. ``unsent`` is the gradient
    of the only source, if it has not been sent; its values are overwritten. Raises ProblemError if a gradient
    is not finite; nothing is updated then.
    """
    clock = Stopwatch()
    gradient: torch.Tensor | None = None
    partials, left = np.zeros(0), list(shards)
    if shards or unsent:  # none if every sample of the iteration has weight zero: nothing to learn
        if unsent is not None:
            used, touched = unsent.used, dict(unsent.touched)
            gradients = Gradients(update.layout, 0, [], used, touched, unsent=unsent.values)
        else:
            gradients = Gradients.of(shards, update.layout, update.start, update.stop)
        if not update.totals:
            problem = gradients.prepare(update.combine, update.iteration, update.staleness)
            if problem is not None:
                raise ProblemError(problem)
        partials, gradient = _replay(update, _steps(update, gradients, optimizer))
        if not update.last and not update.totals:
            left = list(gradients.shards())
    weights = [(shard.source, shard.weight) for shard in shards]
    sources = checksum(weights if unsent is None else [(0, unsent.weight)])
    if not update.last:
        return PendingUpdate(Partials(update.start, sources, partials), left)
    averaged = _averaged(update, average)
    clock.laps["receive"] = receive_seconds
    clock.lap("update")
    facts = UpdateFacts(
        update.start,
        sources,
        nbytes(shards),
        optimizer.state_bytes + (averaged.nbytes if averaged is not None else 0),
        clock.facts(),
    )
    wanted: Array | None = None
    if update.directives.gradient:
        wanted = (torch.zeros_like(update.weights) if gradient is None else gradient).cpu().numpy()
    return Finished(facts, update.weights, optimizer, averaged, wanted)


def _averaged(update: ShardUpdate, average: torch.Tensor | None) -> torch.Tensor | None:
    """Let the new weights enter their average."""
    weight, weights = update.directives.average, update.weights
    if not update.averaging or (average is None and not weight):
        return None
    if average is None or weight == 1.0:
        return weights.clone()  # their own memory may be overwritten by the next update
    if weight:
        average += weight * (weights - average)
    return average


def _steps(
    update: ShardUpdate, gradients: Gradients, optimizer: ShardOptimizer
) -> Generator[Array, Array, torch.Tensor]:
    """Update the shard in place; yield partial sums, receive totals, return the combined gradient.

    The rule adds penalties, clips and runs the optimizer.
    """
    gradient = yield from _combined(update, gradients)
    combined = gradient.clone() if update.directives.gradient else gradient
    late, start = gradients.late, update.start
    yield from update.rule.update(
        optimizer,
        update.weights,
        gradient,
        gradients.used,
        hyper=update.directives.hyper,
        touched=gradients.touched,
        late=torch.from_numpy(late).to(gradient.device) if late is not None else None,
        draws=seeding.derive(seeding.OPTIMIZER, update.rule.seed, update.iteration, start),
    )
    return combined


def _combined(update: ShardUpdate, gradients: Gradients) -> Generator[Array, Array, torch.Tensor]:
    """Return the combined gradient beside the weights; yield partial sums, receive totals."""
    if gradients.unsent is not None:
        return gradients.unsent
    parts, start, stop = gradients.parts, update.start, update.stop
    if len(parts) > 1:
        totals = yield adasum.gram_partials(parts, update.layout, start, stop)
        gradient = adasum.combine(parts, adasum.coefficients(totals), update.layout, start, stop)
    else:
        if update.combine == "adasum" and not update.whole:
            yield np.zeros(0)  # a single source has nothing to combine, but phases are counted
        # A copy if others may read it; in an earlier phase it is left for the next one.
        gradient = own(parts[0].values) if update.last else buffers.copy(parts[0].array)
    return torch.from_numpy(gradient).to(update.weights.device)


def _replay(
    update: ShardUpdate, steps: Generator[Array, Array, torch.Tensor]
) -> tuple[Array, torch.Tensor | None]:
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
