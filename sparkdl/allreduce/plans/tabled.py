"""A plan for modules with embedding variables: another plan, with the rows of tables beside its weights.

Each rank owns the rows of some ids. A step's rows are asked for beside the gradients of the step before, and
come one exchange later; their gradients travel beside those of the weights. Around the replicated plan::

    ids ══► rows ══► gradient, row gradients, next ids ══► update rows, next rows ══► update everything, ...

The sharded plan has an exchange between update and next gradient already, and gets no further one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.allreduce.messages import (
    FoundRows,
    GroupReport,
    Message,
    Report,
    RowGradients,
    WantedRows,
    of_type,
    opened,
    together,
)
from sparkdl.allreduce.plan import (
    Directives,
    Inbox,
    Participant,
    Phase,
    Plan,
    PlanTraits,
    Send,
    Stay,
    Step,
    ToAll,
    ToDriver,
    ToOthers,
    ToRank,
    ToSelf,
)
from sparkdl.allreduce.plans import owned_rows
from sparkdl.allreduce.plans.owned_rows import Point
from sparkdl.allreduce.shard_states import ShardStates, is_of_rows
from sparkdl.compute import lookup
from sparkdl.compute.forward_backward import ForwardBackward
from sparkdl.compute.lookup import Asked, Found, RowGradient
from sparkdl.compute.row_owner import RowOwner
from sparkdl.compute.start import Start
from sparkdl.compute.stopwatch import ROW_UPDATE
from sparkdl.keyed.mix import owners
from sparkdl.nn.embedding import embedding_variables
from sparkdl.wire.frame import Array, Packed

_ROWS_BYTES = 1 << 20  # about what the rows of a batch take; nobody knows beforehand

_SHARD_BYTES = 32 << 20
"""What stays is on disks from this size on: a group keeps tens of megabytes, and groups add up. On Spark
Connect by shuffles it comes to the driver by several jobs, each of a part."""

_LONGEST_GROUP = 100  # steps of a group: the changes of a group are kept until its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabled:
    """A plan with tables; see :class:`sparkdl.allreduce.plan.Plan`."""

    dense: Plan

    @property
    def traits(self) -> PlanTraits:
        """Those of the plan of the weights, with rows beside them."""
        dense = self.dense.traits
        return replace(
            dense,
            message_bytes=dense.message_bytes + _ROWS_BYTES // dense.shards,
            shard_bytes=max(_SHARD_BYTES, dense.shard_bytes),  # rows may be many, so they belong on disks
            group_seconds=max(4.0, dense.group_seconds),  # rows are persisted at a group's end
            longest_group=min(_LONGEST_GROUP, dense.longest_group),
            keeps=True,  # the rows, if nothing else
            keeps_rows=True,
        )

    def seed(self, fetch: Callable[[], ShardStates]) -> list[Packed]:
        """Return the state of the weights, and after it the rows of each owner."""
        states = fetch()
        rows = [data for frames in states for data in frames if is_of_rows(data)]
        weights = [[data for data in frames if not is_of_rows(data)] for frames in states]
        return [*self.dense.seed(lambda: weights), *rows]

    def phases(self, start: Start, steps: Sequence[Step]) -> list[Phase]:
        """Return the phases of the plan of the weights, and those of the rows between them."""
        phases: list[Phase] = []
        step = -1
        *dense, last = self.dense.phases(start, steps)
        forwards = [forward for phase in dense if (forward := _forward_of(phase)) is not None]
        phases.append(partial(_ask, forwards[0]))
        phases.append(_Own(Point(start, 0, True), None, None))
        for phase in dense:
            if _forward_of(phase) is None:
                phases.append(self._own(start, steps, step + 1, phase))
                continue
            step += 1
            if step and isinstance(phases[-1], _Train):
                phases.append(self._own(start, steps, step, None))
            phases.append(_Train(phase, forwards[step + 1] if step + 1 < len(steps) else None))
        arrives = isinstance(phases[-1], _Train)
        directives = steps[-1].directives if arrives else None
        return [*phases, partial(_finish, Point(start, len(steps), False), last, directives)]

    def _own(self, start: Start, steps: Sequence[Step], done: int, phase: Phase | None) -> Phase:
        return _Own(Point(start, done, done < len(steps)), steps[done - 1].directives, phase)

    def conclude(self, messages: Sequence[Message], buffers: Array, counters: Array) -> GroupReport:
        """Return the report of a completed group."""
        return self.dense.conclude(messages, buffers, counters)


def _forward_of(phase: Phase) -> ForwardBackward | None:
    """Return the forward and backward pass of a phase, if there is one in it."""
    found = getattr(phase, "forward", None)
    assert found is None or isinstance(found, ForwardBackward)
    return found


def _ask(forward: ForwardBackward, me: Participant, inbox: Inbox) -> Iterator[Send]:
    """Ask the owners for the rows of the group's first step: send each the ids of its rows."""
    for rank, wanted in enumerate(_wanted(me, forward)):
        yield ToRank(rank, wanted)


@dataclass(frozen=True, slots=True)
class _Own:
    """Update the rows of this rank, and send others the rows that they have asked for."""

    point: Point  # where the rows are then
    # instructions for the step whose gradients have arrived; ``None`` if none have
    directives: Directives | None
    dense: Phase | None  # what the plan of the weights does here; ``None`` to pass its messages on

    def __call__(self, me: Participant, inbox: Inbox) -> Iterator[Send]:
        """Send rows, beside the messages of the plan of the weights."""
        inbox = _opened(inbox)
        point, wanted = self.point, of_type(inbox.arrived, WantedRows)
        if not point.done:
            owned_rows.delete_outdated(me, point.start)
        owner = _advance(me, inbox, point, self.directives)
        sends: Iterator[Send] = iter(())
        if self.dense is not None:
            sends = self.dense(me, inbox)
        elif point.done:
            passed = [m for m in inbox.everything() if not isinstance(m, WantedRows | RowGradients)]
            before = point.start.after(point.done - 1)
            sends = iter([ToSelf(before.part(f"gradient-{me.rank}-passed"), passed, lent=True)])
        found = {
            message.source: {
                name: Found(asked.ids, *owner.tables[name].look_up(asked.ids))
                for name, asked in message.tables.items()
            }
            for message in wanted
        }
        me.clock.lap("weights_in")
        seconds = dict(me.clock.laps)
        answers = {rank: [FoundRows(tables, owner.figures, seconds)] for rank, tables in found.items()}
        yield from _beside(me, sends, answers)


@dataclass(frozen=True, slots=True)
class _Train:
    """Run a step with the rows that have arrived."""

    dense: Phase  # what the plan of the weights does: forward and backward pass among it
    following: ForwardBackward | None  # forward pass of the next step; ``None`` after the last one

    def __call__(self, me: Participant, inbox: Inbox) -> Iterator[Send]:
        """Send gradients of rows and the next ids, beside the messages of the plan of the weights."""
        inbox = _opened(inbox)
        arrived = of_type(inbox.arrived, FoundRows)
        found: defaultdict[str, list[Found]] = defaultdict(list)
        for message in arrived:
            for name, part in message.tables.items():
                found[name].append(part)
        figures = _added_up(arrived)
        for phase in ("weights_in", ROW_UPDATE):  # all ranks have waited for the slowest owner
            me.clock.add(phase, max((message.seconds.get(phase, 0.0) for message in arrived), default=0.0))
        with lookup.lending(me.worker, found) as lent:
            me.clock.lap("weights_in")
            sends = list(self.dense(me, inbox))
        reports = [message for send in sends for message in _of(send) if isinstance(message, Report)]
        beside: defaultdict[int, list[Message]] = defaultdict(list)
        if reports and reports[0].divisor:
            for rank, gradients in enumerate(_gradients(me, reports[0].divisor, lookup.gradients_of(lent))):
                beside[rank].append(gradients)
            me.clock.lap("gradient_out")
        if self.following is not None:
            for rank, wanted in enumerate(_wanted(me, self.following)):
                beside[rank].append(wanted)
            me.clock.lap("gradient_out")
        task = me.clock.facts()
        yield from _beside(me, (_reported(send, figures, task) for send in sends), beside)


def _finish(
    point: Point, dense: Phase, directives: Directives | None, me: Participant, inbox: Inbox
) -> Iterator[Send]:
    """End a group: keep the rows beside what the plan of the weights, ``dense``, keeps.

    The rows are at ``point`` then; ``directives`` are for the step whose gradients have arrived, if any have.
    """
    inbox = _opened(inbox)
    owner = _advance(me, inbox, point, directives)
    start = point.start
    changed = owned_rows.changes(owner, start.version.iteration if start.changes else 0)
    owned_rows.leave_base(me, point, owner)
    for send in dense(me, inbox):
        if isinstance(send, ToDriver) and isinstance(send.message, GroupReport):
            own = send.message.steps[-1]["reports"][me.rank]["task"]["phases"]
            own[ROW_UPDATE] = own.get(ROW_UPDATE, 0.0) + owner.seconds.get(ROW_UPDATE, 0.0)
        yield send
    yield Stay(changed)


def _advance(me: Participant, inbox: Inbox, point: Point, directives: Directives | None) -> RowOwner:
    """Return this rank's rows at a point, to which what has arrived leads."""
    if directives is None and point.done:
        return owned_rows.bring(me, point)
    gradients, wanted = of_type(inbox.arrived, RowGradients), of_type(inbox.arrived, WantedRows)
    return owned_rows.bring(
        me, point, lambda owner: owned_rows.changed(owner, me, point, gradients, wanted, directives)
    )


def _opened(inbox: Inbox) -> Inbox:
    """Return an inbox without messages that have travelled together.

    What is about rows always arrives: a rank's messages to itself are read only by who needs them, for they
    may be used up already.
    """
    return Inbox(list(opened(inbox.arrived)), inbox.own)


def _wanted(me: Participant, forward: ForwardBackward) -> Iterator[WantedRows]:
    """Yield what an iteration asks each owner for."""
    assert me.token is not None
    asked = lookup.ask(forward, me.worker, me.token, me.clock)
    by = _owners(me, asked)
    for rank in range(me.ranks):
        tables = {
            name: Asked(own.ids[by[name] == rank], own.counts[by[name] == rank])
            for name, own in asked.items()
        }
        yield WantedRows(me.rank, tables)


def _gradients(
    me: Participant, weight: float, gradients: Mapping[str, RowGradient]
) -> Iterator[RowGradients]:
    """Yield the gradients of each owner's rows."""
    by = _owners(me, gradients)
    for rank in range(me.ranks):
        tables = {
            name: RowGradient(own.ids[by[name] == rank], own.values[by[name] == rank])
            for name, own in gradients.items()
        }
        yield RowGradients(me.rank, weight, tables)


def _owners(
    me: Participant, parts: Mapping[str, Asked] | Mapping[str, RowGradient]
) -> dict[str, NDArray[np.int64]]:
    """Return by table the ranks that own the ids of its part."""
    variables = embedding_variables(me.worker.spec.module)
    return {name: owners(own.ids, me.ranks, variables[name].store.rule.spread) for name, own in parts.items()}


def _beside(
    me: Participant, sends: Iterator[Send], beside: Mapping[int, Sequence[Message]]
) -> Iterator[Send]:
    """Send messages, and others to ranks together with those: one for each rank."""
    for_rank: defaultdict[int, list[Message]] = defaultdict(list)
    own: list[ToSelf] = []
    for send in sends:
        if isinstance(send, ToSelf):
            own.append(send)
            continue
        assert isinstance(send, ToRank | ToAll | ToOthers)
        ranks = [send.rank] if isinstance(send, ToRank) else range(me.ranks)
        for rank in ranks:
            if not isinstance(send, ToOthers) or rank != me.rank:
                for_rank[rank].append(send.message)
    for rank, more in beside.items():
        for_rank[rank] += more
    for rank in sorted(for_rank):
        yield ToRank(rank, together(for_rank[rank]))
    yield from own


def _of(send: Send) -> Sequence[Message]:
    return send.messages if isinstance(send, ToSelf) else [send.message]


def _added_up(found: Sequence[FoundRows]) -> dict[str, float]:
    """Return the figures of all owners, by table and name."""
    total: defaultdict[str, float] = defaultdict(float)
    for message in found:
        for table, figures in message.figures.items():
            for name, value in figures.items():
                total[f"{table}/{name}"] += value
    return dict(total)


def _reported(send: Send, figures: Mapping[str, float], task: Mapping[str, Any]) -> Send:
    """Return a rank's report with its whole task, and the figures of the tables, the same on all ranks."""
    if isinstance(send, ToAll | ToRank) and isinstance(send.message, Report):
        own = send.message
        extras = {**own.extras, **figures} if own.weight else own.extras
        return replace(send, message=replace(own, extras=extras, task=task))
    return send
