"""The interface of plans: steps and their phases, and what a rank gets and sends.

A *rank* is a partition of the data and what runs for it. In a phase a rank receives the messages that all
ranks sent it in the phase before, computes, and sends messages: to other ranks, to itself, to the driver. How
they get there is the business of a transport (:mod:`sparkdl.allreduce.transport`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sparkdl.allreduce.messages import GroupReport, M, Message, Report, Shard, of_type
from sparkdl.allreduce.shard_states import ShardStates
from sparkdl.compute.forward_backward import Allowance, Contribution, ForwardBackward
from sparkdl.compute.local_steps import InnerSteps
from sparkdl.compute.spec import FitSpec
from sparkdl.compute.start import Start
from sparkdl.compute.stopwatch import Stopwatch
from sparkdl.compute.worker import Worker
from sparkdl.data.sampler import EpochPlace
from sparkdl.data.store.partition import Token
from sparkdl.nn.flat import FlatWeights
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Packed
from sparkdl.wire.layout import ParamLayout
from sparkdl.wire.touched_rows import Indices, TouchedRows, nonzero_rows


@dataclass(frozen=True, slots=True)
class Directives:
    """The driver's instructions for the update of a step."""

    # per parameter group, hyper-parameters that replace the optimizer's own
    hyper: tuple[Mapping[str, Any], ...] = ()
    average: float = 0.0  # weight of the new weights in their average; 0 leaves the average unchanged
    gradient: bool = False  # whether the driver wants the combined gradient


@dataclass(frozen=True, slots=True)
class Step:
    """Everything that defines a step, so that it can run again."""

    place: EpochPlace  # where it is in its epoch
    iteration: int  # completed iterations before it
    directives: Directives = field(default_factory=Directives)  # instructions for its update
    frozen: tuple[int, ...] = ()  # parameters of the layout that are not trained
    allowance: Allowance | None = None  # what slow tasks may leave out; ``None`` for nothing
    # the steps that each partition takes by itself; ``None`` if it contributes its gradient
    inner: InnerSteps | None = None

    def same_as(self, other: Step) -> bool:
        """Return whether both steps compute the same."""
        return (
            self.place == other.place
            and self.iteration == other.iteration
            and self.directives == other.directives
            and self.frozen == other.frozen
            and self.allowance is other.allowance
            and self.inner == other.inner
        )

    def forward(self, start: Start, *, tells: bool) -> ForwardBackward:
        """Return its forward and backward pass in a group; see there."""
        return ForwardBackward(
            self.place,
            self.iteration,
            start.manifest,
            self.frozen,
            self.allowance,
            self.inner,
            start.version.iteration,
            tells,
        )

    def without_deadline(self) -> Step:
        """Return the same step without a deadline for slow tasks."""
        return self if self.allowance is None else replace(self, allowance=Allowance(self.allowance.chunks))

    def __str__(self) -> str:
        return f"iteration {self.iteration + 1}, epoch {self.place.epoch + 1}"


@dataclass(frozen=True, slots=True)
class Participant:
    """A rank, where its phase runs."""

    rank: int  # its number; in the sync of the driver plan that of its shard
    ranks: int  # how many there are; with the driver plan how many shards
    # what this process keeps of the fit; ``worker.files`` is what earlier phases have left on this executor
    worker: Worker
    clock: Stopwatch  # times the phase
    token: Token | None = None  # where the partition's rows are
    stays: bool = False  # whether the rank stays in this process until the group has ended
    alone: bool = False  # whether it stays there without others

    def contribute(
        self, forward: ForwardBackward, weights: Callable[[], Mapping[str, FlatWeights]]
    ) -> Contribution:
        """Run the rank's forward and backward pass; see :class:`ForwardBackward`."""
        assert self.token is not None
        return forward(self.worker, self.token, weights, self.clock)

    @property
    def tells(self) -> bool:
        """Whether what steps have to report is kept here: it may be this process that tells the driver."""
        return not self.stays or self.rank == 0


class Inbox:
    """What has arrived for a rank; ``own`` returns messages to itself, which may lie on its executor."""

    def __init__(self, arrived: Sequence[Message], own: Callable[[], Sequence[Message]]) -> None:
        self.arrived = arrived
        self.own = own
        self._all: list[Message] | None = None

    def of(self, wanted: type[M]) -> list[M]:
        """Return all messages of one type; raises what :meth:`everything` raises."""
        return of_type(self.everything(), wanted)

    def everything(self) -> Sequence[Message]:
        """Return all messages; raises ProblemError if this executor lacks the rank's messages to itself."""
        if self._all is None:
            self._all = [*self.arrived, *self.own()]
        return self._all


@dataclass(frozen=True, slots=True)
class ToRank:
    """A message to another rank, or to this one."""

    rank: int
    message: Message


@dataclass(frozen=True, slots=True)
class ToAll:
    """A message to all ranks, this one included."""

    message: Message


@dataclass(frozen=True, slots=True)
class ToOthers:
    """A message to all ranks but this one."""

    message: Message


@dataclass(frozen=True, slots=True)
class ToSelf:
    """Messages to this rank's next phase, which stay on its executor if they can."""

    name: str  # under which later phases on this executor find them, too
    messages: Sequence[Message]  # their arrays must not change afterwards
    lent: bool = False  # whether their memory is the module replica's, for the next gradient


@dataclass(frozen=True, slots=True)
class ToDriver:
    """A message to the driver."""

    message: Message


@dataclass(frozen=True, slots=True)
class Stay:
    """A message that Spark keeps for this rank, on two executors: State, Average or Master."""

    message: Message


Send = ToRank | ToAll | ToOthers | ToSelf | ToDriver | Stay
"""What a phase yields. A rank sends another one two messages in a phase at most."""


Phase = Callable[[Participant, Inbox], Iterator[Send]]
"""The work of a rank between two exchanges; pure, except for files on its executor.

It yields messages to send; raises ProblemError, before the first, if the step cannot be completed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTraits:
    """What engine, transports and loop need to know of a plan."""

    shards: int  # in how many shards weights and optimizer state are persisted
    message_bytes: int  # bytes of the larger message that a rank sends another one, about
    shard_bytes: int  # bytes of what stays with a shard, about
    weights_bytes: int  # bytes of weights that each executor receives in a step
    group_seconds: float  # how long a group of iterations should take, if it may be of any size
    longest_group: int  # how many iterations may be one group, at most
    keeps: bool  # whether anything stays with the shards between groups
    keeps_rows: bool = False  # whether rows of embedding variables are among what stays with the shards
    # whether the executors have the model after a group, too, and the next one may start from there
    leaves_model: bool

    @property
    def persisted_bytes(self) -> int | None:
        """Bytes of what stays with a shard, about; ``None`` if nothing does."""
        return self.shard_bytes if self.keeps else None


class Plan(Protocol):
    """A way to exchange gradients for weights."""

    @property
    def traits(self) -> PlanTraits:
        """What others need to know of it."""

    def seed(self, fetch: Callable[[], ShardStates]) -> list[Packed]:
        """Return the seed: the state of the shards, for executors that have no copy."""

    def phases(self, start: Start, steps: Sequence[Step]) -> list[Phase]:
        """Return the phases of a group."""

    def conclude(self, messages: Sequence[Message], buffers: Array, counters: Array) -> GroupReport:
        """Return the report of a completed group, given the buffers before it; the first rank's."""
        (report,) = of_type(messages, GroupReport)
        return report


LONGEST_GROUP = 2000
"""Steps of one job: so many take more than a second, and the driver holds a report of each."""
_FIXED_SHARE = 0.03
_LONGEST_SECONDS = 60.0


def steps_of_group(wanted: float, each: float, fixed: float) -> int:
    """Return how many steps of ``each`` seconds a group should have that takes ``wanted`` ones at least.

    At most 3 % of its time goes into what does not depend on its steps (``fixed``), as with commits, unless
    that takes more than a minute: half of a group is lost, on average, with an executor.
    """
    return max(1, int(max(wanted, min(fixed / _FIXED_SHARE, _LONGEST_SECONDS)) / each))


_SCANNED_BYTES = 64 << 10  # tables of this size and more are looked through for rows of zeros

_WORTHWHILE = 1.5  # rows go alone if the table has so many times more


def gradient_shards(
    me: Participant,
    forward: ForwardBackward,
    contribution: Contribution,
    bounds: Sequence[tuple[int, int]],
) -> Iterator[Shard]:
    """Yield the gradient in shards as their codec writes them; none without a gradient.

    The partition adds the codec's residual of a parameter to the next gradient of it: where no rank has one,
    the update passes over what is sent. The residual is written to the partition's own state, after the last
    shard.
    """
    spec, state = me.worker.spec, forward.state_of(me.worker, me.rank)
    gradient = contribution.gradient
    if gradient is None:
        if state is not None:
            state.pass_on(contribution.before)
        return
    values, touched, left_out = me.worker.replica.on_host(gradient.values), gradient.touched, None
    waiting: list[tuple[slice, Array]] = []
    if spec.error_feedback:
        residual = (contribution.before or {}).get("residual")
        if residual is not None:
            before = residual.value.arrays["left_out"]
            params = zip(spec.layout.params, gradient.used, strict=True)
            unused = [slice(param.offset, param.end) for param, used in params if not used]
            waiting = [(place, before[place]) for place in unused]
            values = values + before
            for place in unused:
                values[place] = 0
            touched = _touched_with(values, touched, spec.layout)
        left_out = np.empty_like(values)
    rows = _rows(values, touched, spec)
    for start, stop in bounds:
        rest = left_out[start:stop] if left_out is not None else None
        yield Shard.of(
            me.rank,
            gradient.weight,
            values[start:stop],
            gradient.used,
            rows,
            start,
            spec.gradient_codec,
            rest,
        )
    if state is not None:
        own = list(contribution.own_state)
        if left_out is not None:
            for place, before in waiting:
                left_out[place] = before
            own.append(frame.pack({"kind": "residual"}, {"left_out": left_out}))
        state.write(own)


def report_of(me: Participant, contribution: Contribution) -> Report:
    """Return a rank's report of a step; call it after the gradient was sent."""
    loss = contribution.loss
    if loss.rows:
        me.clock.lap("gradient_out")
    return Report(
        source=me.rank,
        rows=loss.rows,
        other=contribution.other,
        dropped=loss.dropped,
        lost=int(contribution.lost),
        weight=loss.weight,
        divisor=loss.divisor,
        loss=loss.loss,
        extras=loss.extras,
        shares=loss.shares,
        task=me.clock.facts(),
        buffers=contribution.buffers or {},
    )


def _rows(values: Array, touched: Mapping[int, NDArray[np.bool_]], spec: FitSpec) -> TouchedRows | None:
    """Return the rows of tables to send; ``None`` to send everything."""
    tables: dict[int, Indices] = {index: np.flatnonzero(mask) for index, mask in touched.items()}
    for index in spec.scanned:
        table = spec.layout.params[index]
        if table.numel * values.itemsize < _SCANNED_BYTES:
            continue
        rows = nonzero_rows(values[table.offset : table.end].reshape(table.shape[0], -1))
        if len(rows) * _WORTHWHILE <= table.shape[0]:
            tables[index] = rows
    return TouchedRows(spec.layout, tables) if tables else None


def _touched_with(
    values: Array, touched: Mapping[int, NDArray[np.bool_]], layout: ParamLayout
) -> Mapping[int, NDArray[np.bool_]]:
    """Return the rows that have a gradient after the residual was added."""
    found = {}
    for index, rows in touched.items():
        spec = layout.params[index]
        found[index] = rows | values[spec.offset : spec.end].reshape(len(rows), -1).any(1)
    return found
