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
    first_of,
)
from sparkdl.allreduce.plan import (
    LONGEST_GROUP,
    Directives,
    Inbox,
    Participant,
    Phase,
    Plan,
    PlanTraits,
    Send,
    Stay,
    Step,
    ToDriver,
    ToOthers,
    ToRank,
    ToSelf,
    gradient_shards,
    report_of,
)
from sparkdl.allreduce.shard_states import ShardStates
from sparkdl.allreduce.update.combine import combine_reports
from sparkdl.allreduce.update.shard import Finished, ShardUpdate, update_shard
from sparkdl.compute.forward_backward import ForwardBackward
from sparkdl.compute.local_store import LocalStore, encode
from sparkdl.compute.problems import LackingState, ProblemError
from sparkdl.compute.spec import FitSpec
from sparkdl.compute.start import ModelVersion, Start
from sparkdl.optim.reduction import add_up
from sparkdl.wire import frame
from sparkdl.wire.codec import rounded
from sparkdl.wire.frame import Array, Packed
from sparkdl.wire.held import Held, Owned, own_tensor
from sparkdl.wire.layout import ParamLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded(Plan):
    """The sharded plan; see :class:`sparkdl.allreduce.plan.Plan`."""

    layout: ParamLayout  # of the flat vectors
    shards: int  # number of ranks, and of shards
    reductions: int  # sums over all shards that an update needs
    longest_group: int = LONGEST_GROUP  # how many iterations may be one group

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

    def seed(self, fetch: Callable[[], ShardStates]) -> list[Packed]:
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


@dataclass(frozen=True, slots=True)
class _Gather:
    """Put the shards together, and go on with the next forward and backward pass."""

    start: Start  # the model from which the group starts
    done: int  # steps of the group that are completed before this phase
    forward: ForwardBackward | None  # the step to begin; ``None`` in the last phase

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
        if me.alone:  # the module has loaded them, and others' gradients need the room
            me.worker.files.forget(version.part(WEIGHTS))
        # Each begins with another owner: if all sent to one first, its link would lose packets.
        owners = [n % me.ranks for n in range(me.rank + 1, me.rank + 1 + me.ranks)]
        shards = gradient_shards(me, self.forward, contribution, [bounds[n] for n in owners])
        for shard, n in zip(shards, owners, strict=False):  # to its end; there are none without a gradient
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
        facts = {"updates": [part.facts.scalars() for part in parts], "reports": list(reports)}
        # On all ranks: what one leaves when the group has ended is found by others of its executor.
        told_here = json.dumps(facts, separators=(",", ":")).encode()
        model = ModelFiles(arrays, [*before.trail, told_here])
        model.leave(files, self.start, self.done)
        return model, weights

    def _finish(self, me: Participant, model: ModelFiles, inbox: Inbox) -> Iterator[Send]:
        """Keep the shard; the first rank tells the driver how it went."""
        (own,) = (part for part in inbox.of(UpdatedShard) if not part.is_coded)
        states: list[State | Average] = [*inbox.of(State), *inbox.of(Average)]
        if not self.start.local:  # it has travelled, and the next group looks for it here
            name = self.start.after(self.done).part(shard_part(me.rank))
            me.worker.files.leave(name, [messages.encode(message) for message in (own, *states)])
        if me.rank == 0:
            steps, arrays = [json.loads(line) for line in model.trail], model.arrays
            gradient = arrays.get("gradient")
            yield ToDriver(GroupReport(steps, arrays["buffers"], arrays["counters"], gradient=gradient))
        yield Stay(Master(own.held.value))
        yield from map(Stay, states)


@dataclass(frozen=True, slots=True)
class _UpdateShard:
    """Update a shard, or go on until sums over all shards are needed."""

    start: Start  # the model from which the group starts
    done: int  # steps of the group that are completed before this one
    directives: Directives  # instructions for this step
    number: int  # how many sums over all shards are known
    last: bool  # whether these are all

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
        yield ToSelf(self.start.after(self.done + 1).part(shard_part(n)), [shard, *made.states])


def _combined(inbox: Inbox, before: Buffers) -> Reports | None:
    """Return the reports of all partitions, from the rank that gets them."""
    reports = inbox.of(Report)
    if reports:
        return combine_reports(reports, before["buffers"], before["counters"])
    return first_of(inbox.everything(), Reports)


def group_seconds(nbytes: int) -> float:
    """Return how long a group with so many bytes of weights should take.

    All that stays is persisted at its end, for some 10 ms per MB.
    """
    return 4.0 + nbytes / 20e6


# -- files that phases leave on an executor for later ones -----------------------------------------------

WEIGHTS = "weights"
"""Part of a version: its shards, as they have arrived on an executor."""

Buffers = Mapping[str, Array]
"""Buffers and counters by kind, and the combined gradient if the driver wants it."""


@dataclass(frozen=True, slots=True)
class OwnShard:
    """The state of a shard."""

    weights: Held[Array] | None
    state: State | None
    average: Average | None

    @classmethod
    def read(cls, files: LocalStore, start: Start, done: int, n: int, *, take: bool) -> OwnShard:
        """Return the state of shard ``n`` after the completed steps of a group.

        With ``take`` it may be overwritten: shard and state are updated in place, which spares four copies of
        the shard. A task that runs again does not find them any more, and the group is run again with a seed.
        """
        if not done and not start.has_state:
            return cls(None, None, None)
        if not done and start.seed:
            return cls._among([messages.read(message, mine=True) for message in start.seed_of(n)])
        version = start.after(done)
        name = version.part(shard_part(n))
        found = files.take(name) if take else files.read(name)
        if found is None:
            raise ProblemError(LackingState(version.iteration, name))
        return cls._among([messages.decode(packed, mine=take) for packed in found])

    @classmethod
    def _among(cls, messages: Sequence[Message]) -> OwnShard:
        shard = first_of(messages, UpdatedShard)
        weights = shard.held if shard is not None else None
        return cls(weights, first_of(messages, State), first_of(messages, Average))


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A version of the model on an executor, but for its weights."""

    arrays: Buffers  # buffers, counters and the combined gradient, if the driver wants it
    # reports of the group's steps so far, in their order, as JSON: it is passed on from phase to phase, and
    # only the last one reads it
    trail: Sequence[bytes]

    @classmethod
    def read(cls, files: LocalStore, version: ModelVersion) -> ModelFiles | None:
        """Return what this executor has of a version, or ``None``."""
        found = files.read(version.name)
        if found is None:
            return None
        arrays, *trail = found
        return cls(frame.unpack(arrays).arrays, list(map(frame.join, trail)))

    def leave(self, files: LocalStore, start: Start, done: int) -> None:
        """Leave it for the next tasks, and delete what no task of the group needs.

        Those are all versions but this one, the one before it, and the one that the group has started from.
        Other processes of the executor do the same; who has mapped a file keeps it. Where there are none,
        older ones are needed only by tasks that run again, which the driver sends what they need.
        """
        version = start.after(done)
        files.leave(version.name, [frame.pack({"kind": "model"}, self.arrays), *self.trail])
        keep = {version.name}
        if not files.in_memory:
            keep |= {start.after(max(done - 1, 0)).name, start.version.name}
        files.discard(lambda name: name.split(".")[0] not in keep)


def model_before(
    start: Start, done: int, n: int, files: LocalStore, bounds: tuple[int, int]
) -> tuple[Buffers, Held[Array] | None]:
    """Return buffers and counters before a step, and a shard of the weights if the driver has sent them."""
    if done:
        return _model_of_group(start, done, files).arrays, None
    found = start.load_weights(files, once=True)
    if found is None:
        raise ProblemError(LackingState(start.version.iteration, f"shard {n}"))
    params = found.arrays.get("params")
    # The frame that they lie in need not stay in memory.
    buffers = {name: np.array(found.arrays[name]) for name in ("buffers", "counters")}
    return buffers, None if params is None else Owned(np.array(params[bounds[0] : bounds[1]]))


def model_after(start: Start, done: int, files: LocalStore) -> ModelFiles:
    """Return the model after some steps of a group."""
    if done:
        return _model_of_group(start, done, files)
    found = ModelFiles.read(files, start.version)
    if found is None:
        sent = start.load_weights(files, once=True)
        if sent is None:
            raise ProblemError(LackingState(start.version.iteration, "the buffers"))
        return ModelFiles(sent.arrays, [])
    return ModelFiles(found.arrays, [])


def read_weights(files: LocalStore, version: ModelVersion) -> Sequence[Array] | None:
    """Return the shards that a task of this executor has left."""
    found = files.read(version.part(WEIGHTS))
    return None if found is None else list(frame.unpack(found[0]).arrays.values())


def write_weights(files: LocalStore, version: ModelVersion, weights: Sequence[Array]) -> None:
    """Leave the shards of the weights, as they have arrived."""
    arrays = {str(i): values for i, values in enumerate(weights)}
    files.leave(version.part(WEIGHTS), [frame.pack({"kind": WEIGHTS}, arrays)])


def shard_part(n: int) -> str:
    """Return the name of the part of a version that holds a shard and its state."""
    return f"shard-{n}"


def _model_of_group(start: Start, done: int, files: LocalStore) -> ModelFiles:
    """Return the model after at least one step of a group."""
    version = start.after(done)
    found = ModelFiles.read(files, version)
    if found is None or len(found.trail) != done:
        raise ProblemError(LackingState(version.iteration, "the buffers"))
    return found
