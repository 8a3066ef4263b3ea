"""The sharded plan: every rank owns a shard of weights and optimizer state (ZeRO stage 1).

A reduce-scatter of gradients, the update of each shard by its owner, and an all-gather of weights::

    gradient ══ reduce-scatter ══► [sums ══ all-reduce ══►]* update shard ══ all-gather ══► next gradient

Together they move what a ring all-reduce moves. An update that needs sums over all shards has a further phase
for each. The driver hears reports; the weights stay with the shards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparkdl.allreduce import messages
from sparkdl.allreduce.kept import Kept
from sparkdl.allreduce.messages import (
    Average,
    GroupReport,
    Master,
    Message,
    Partials,
    Report,
    Reports,
    Shard,
    State,
    Totals,
    UpdatedShard,
    of_type,
)
from sparkdl.allreduce.plans.base import LONGEST_GROUP, PlanTraits, gradient_shards, report_of
from sparkdl.allreduce.plans.sharded_files import (
    WEIGHTS,
    Buffers,
    ModelFiles,
    OwnShard,
    model_after,
    model_before,
    read_weights,
    shard_part,
    write_weights,
)
from sparkdl.allreduce.steps import (
    Directives,
    Inbox,
    Participant,
    Phase,
    Send,
    Stay,
    Step,
    ToDriver,
    ToOthers,
    ToRank,
    ToSelf,
)
from sparkdl.allreduce.update.combine import combine_reports
from sparkdl.allreduce.update.shard import Finished, ShardUpdate, update_shard
from sparkdl.compute.forward_backward import ForwardBackward
from sparkdl.compute.local_store import encode
from sparkdl.compute.problems import LackingState, ProblemError
from sparkdl.compute.spec import FitSpec
from sparkdl.compute.start import Start
from sparkdl.optim.reduction import add_up
from sparkdl.wire.codec import rounded
from sparkdl.wire.frame import Array, Packed
from sparkdl.wire.held import own_tensor
from sparkdl.wire.layout import ParamLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """The sharded plan; see :class:`sparkdl.allreduce.plans.base.Plan`.

    Attributes:
        layout: layout of the flat vectors.
        shards: number of ranks, and of shards.
        reductions: sums over all shards that an update needs.
        longest_group: how many iterations may be one group.
    """

    layout: ParamLayout
    shards: int
    reductions: int
    longest_group: int = LONGEST_GROUP

    @property
    def traits(self) -> PlanTraits:
        """Weights stay with their owners, and go from them to all executors in each step."""
        shard = self.layout.largest_shard(self.shards)
        return PlanTraits(
            shards=self.shards,
            message_bytes=shard,
            shard_bytes=shard,
            weights_bytes=self.layout.nbytes,
            group_seconds=group_seconds(self.layout.nbytes),
            longest_group=self.longest_group,
            keeps=True,  # the weights, if nothing else
            leaves_model=True,
        )

    def seed(self, fetch: Callable[[], Kept]) -> list[Packed]:
        """Return the state of each shard, each for its owner."""
        return [bytearray().join(encode(frames)) for frames in fetch()]

    def phases(self, start: Start, steps: Sequence[Step]) -> list[Phase]:
        """Return, for each step, the forward and backward pass and the phases of its update."""
        updates = 1 + (self.reductions if self.shards > 1 else 0)
        phases: list[Phase] = []
        for done, step in enumerate(steps):
            forward = step.forward(start, tells=len(steps) > 1 or not start.raises)
            phases.append(_Gather(start, done, forward))
            phases += [
                _UpdateShard(start, done, step.directives, number, number == updates - 1)
                for number in range(updates)
            ]
        return [*phases, _Gather(start, len(steps), None)]

    def conclude(self, messages: Sequence[Message], buffers: Array, counters: Array) -> GroupReport:
        """Return the first rank's report of the group."""
        (found,) = of_type(messages, GroupReport)
        return found


@dataclass(frozen=True, slots=True)
class _Gather:
    """Put the shards together, and go on with the next forward and backward pass.

    Attributes:
        start: the model from which the group starts.
        done: steps of the group that are completed before this phase.
        forward: the step to begin; ``None`` in the last phase.
    """

    start: Start
    done: int
    forward: ForwardBackward | None

    def __call__(self, me: Participant, inbox: Inbox) -> Iterator[Send]:
        """Send each owner its shard of the gradient, or weights and state to where they stay."""
        spec = me.worker.spec
        if self.done:
            model, weights = self._arrived(me, inbox, spec)
        else:
            model, weights = self._first(me, spec)
        if self.forward is None:
            yield from self._finish(me, model, inbox)
            return
        me.clock.lap("weights_in")
        loadable: dict[str, Any] = {"params": weights, **model.arrays}
        contribution = me.contribute(self.forward, lambda: loadable)
        bounds = me.worker.spec.layout.shards(me.ranks)
        version = self.start.after(self.done)
        for n, shard in enumerate(gradient_shards(me, self.forward, contribution, bounds)):
            if n == me.rank:
                yield ToSelf(version.part(f"gradient-{n}"), [shard], lent=True)
            else:
                yield ToRank(n, shard)
        yield ToRank(0, report_of(me, contribution))

    def _first(self, me: Participant, spec: FitSpec) -> tuple[ModelFiles, Sequence[Array]]:
        """Return the model and weights from which the group starts."""
        start, files = self.start, me.worker.files
        version = start.version
        if start.whole:
            # The driver has sent everything except gradients.
            gradients = version.part("gradient-")
            files.forget_all(lambda name: not name.startswith(gradients))
        if start.weights is None:
            weights, model = read_weights(files, version), ModelFiles.read(files, version)
            if weights is None or model is None:
                raise ProblemError(LackingState(version.iteration, WEIGHTS))
            return ModelFiles(model.arrays, []), weights
        sent = start.load_weights(files, once=True)
        assert sent is not None
        # For the tasks that want nothing else, and need not read all that the driver has sent.
        model = ModelFiles({name: np.array(sent.arrays[name]) for name in ("buffers", "counters")}, [])
        model.leave(files, start, 0)
        params, codec = sent.arrays["params"], spec.weights_codec
        bounds = spec.layout.shards(me.ranks)
        return model, [rounded(codec, params[begin:end]) for begin, end in bounds]

    def _arrived(self, me: Participant, inbox: Inbox, spec: FitSpec) -> tuple[ModelFiles, Sequence[Array]]:
        """Return the model after the steps so far, and its weights in shards."""
        files, version = me.worker.files, self.start.after(self.done)
        # By another task on this executor, or an earlier attempt of this one.
        model, weights = ModelFiles.read(files, version), read_weights(files, version)
        if model is not None and len(model.trail) == self.done and weights is not None:
            return model, weights
        before = model_after(self.start, self.done - 1, files)
        parts = sorted(inbox.of(UpdatedShard), key=lambda part: part.facts.start)
        dtype = np.dtype(spec.layout.dtype)
        # They are put together when they are loaded, which copies them anyway.
        weights = [part.values(spec.weights_codec, dtype) for part in parts]
        write_weights(files, version, weights)
        arrays = {name: before.arrays[name] for name in ("buffers", "counters")}
        gradients = [part.gradient for part in parts if part.gradient is not None]
        if gradients:
            arrays["gradient"] = np.concatenate(gradients)
        reports: Sequence[Mapping[str, Any]] = []
        for part in parts:
            if part.reports is not None:
                reports = part.reports.reports
                arrays |= part.reports.buffers
        facts = {"updates": [part.facts.told() for part in parts], "reports": list(reports)}
        # On all ranks: what one leaves when the group has ended is found by others of its executor.
        told_here = json.dumps(facts, separators=(",", ":")).encode()
        model = ModelFiles(arrays, [*before.trail, told_here])
        model.leave(files, self.start, self.done)
        return model, weights

    def _finish(self, me: Participant, model: ModelFiles, inbox: Inbox) -> Iterator[Send]:
        """Keep the shard; the first rank tells the driver how it went."""
        (own,) = (part for part in inbox.of(UpdatedShard) if not part.is_coded)
        kept: list[State | Average] = [*inbox.of(State), *inbox.of(Average)]
        if not self.start.local:  # it has travelled, and the next group looks for it here
            name = self.start.after(self.done).part(shard_part(me.rank))
            me.worker.files.leave(name, [messages.encode(message) for message in (own, *kept)])
        if me.rank == 0:
            steps, arrays = [json.loads(line) for line in model.trail], model.arrays
            gradient = arrays.get("gradient")
            yield ToDriver(GroupReport(steps, arrays["buffers"], arrays["counters"], gradient=gradient))
        yield Stay(Master(own.held.value))
        yield from map(Stay, kept)


@dataclass(frozen=True, slots=True)
class _UpdateShard:
    """Update a shard, or go on until sums over all shards are needed.

    Attributes:
        start: the model from which the group starts.
        done: steps of the group that are completed before this one.
        directives: instructions for this step.
        number: how many sums over all shards are known.
        last: whether these are all.
    """

    start: Start
    done: int
    directives: Directives
    number: int
    last: bool

    def __call__(self, me: Participant, inbox: Inbox) -> Iterator[Send]:
        """Send the shard, or partial sums, to all, and what this rank needs later to itself."""
        spec, files, n = me.worker.spec, me.worker.files, me.rank
        version = self.start.after(self.done)
        if self.last:
            # Modules have loaded the weights, and a shard of them will be overwritten.
            files.forget(version.part(WEIGHTS))
        arrived = inbox.of(Shard)
        totals = [total for message in inbox.of(Totals) for total in message.totals]
        if self.number:
            partials = sorted(inbox.of(Partials), key=lambda message: message.start)
            totals.append(add_up(message.sums for message in partials))
        bounds = me.worker.spec.layout.shards(me.ranks)[n]
        buffers, weights = model_before(self.start, self.done, n, files, bounds)
        mine = OwnShard.read(files, self.start, self.done, n, take=self.last)
        if mine.weights is not None:
            weights = mine.weights
        reports = _combined(inbox, buffers)
        assert weights is not None
        update = ShardUpdate(
            layout=spec.layout,
            start=bounds[0],
            stop=bounds[1],
            rule=spec.rule,
            weights=own_tensor(weights),
            iteration=version.iteration,
            combine=spec.combine,
            averaging=spec.averaging,
            directives=self.directives,
            shards=me.ranks,
            totals=tuple(totals),
        )
        average = own_tensor(mine.average.params) if mine.average is not None else None
        made = update_shard(update, arrived, update.optimizer(mine.state), average)
        if me.stays:  # nobody asks for these again, and what was lent would be copied
            for part in (f"gradient-{n}", *(f"left-{number}-{n}" for number in range(self.number))):
                files.forget(version.part(part))
        if not isinstance(made, Finished):
            left: list[Message] = [made.partials, Totals(totals), *made.shards]
            if reports is not None:
                left.append(reports)
            yield ToOthers(made.partials)
            # The sources' own gradients are passed on where they are not summed yet.
            lent = spec.combine != "mean"
            yield ToSelf(version.part(f"left-{self.number}-{n}"), left, lent=lent)
            return
        shard = made.shard if reports is None else replace(made.shard, reports=reports)
        yield ToOthers(shard.coded(spec.weights_codec))
        yield ToSelf(self.start.after(self.done + 1).part(shard_part(n)), [shard, *made.kept])


def _combined(inbox: Inbox, before: Buffers) -> Reports | None:
    """Return the reports of all partitions, from the rank that gets them."""
    reports = inbox.of(Report)
    if reports:
        return combine_reports(reports, before["buffers"], before["counters"])
    passed_on = inbox.of(Reports)
    return passed_on[0] if passed_on else None


def group_seconds(nbytes: int) -> float:
    """Return how long a group with so many bytes of weights should take.

    All that stays is persisted at its end, for some 10 ms per MB.
    """
    return 4.0 + nbytes / 20e6
