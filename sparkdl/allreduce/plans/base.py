"""Plans: lists of phases, each a pure function, with an exchange of messages between them.

A *rank* is a partition of the data and what runs for it. In a phase a rank receives the messages that all
ranks sent it in the phase before, computes, and sends messages: to other ranks, to itself, to the driver. How
they get there is the business of a transport (:mod:`sparkdl.allreduce.transport`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sparkdl.allreduce.directives import Step
from sparkdl.allreduce.kept import Kept
from sparkdl.allreduce.messages import GroupReport, M, Message, of_type
from sparkdl.compute.start import Start
from sparkdl.compute.stopwatch import Stopwatch
from sparkdl.compute.worker import Worker
from sparkdl.data.store.partition import Token
from sparkdl.wire.frame import Array, Packed


@dataclass(frozen=True, slots=True)
class Participant:
    """A rank, where its phase runs.

    Attributes:
        rank: its number.
        ranks: how many there are.
        worker: what this process keeps of the fit; ``worker.files`` is what earlier phases have left on
            this executor.
        clock: times the phase.
        token: where the partition's rows are.
        stays: whether the rank stays in this process until the group has ended.
    """

    rank: int
    ranks: int
    worker: Worker
    clock: Stopwatch
    token: Token | None = None
    stays: bool = False

    @property
    def tells(self) -> bool:
        """Whether what steps have to report is kept here: it may be this process that tells the driver."""
        return not self.stays or self.rank == 0


class Inbox:
    """What has arrived for a rank.

    Args:
        arrived: messages of other ranks.
        own: returns the messages that the rank sent to itself; they may lie on its executor.
    """

    def __init__(self, arrived: Sequence[Message], own: Callable[[], Sequence[Message]]) -> None:
        self.arrived = arrived
        self.own = own
        self._all: list[Message] | None = None

    def of(self, wanted: type[M]) -> list[M]:
        """Return all messages of one type.

        Raises:
            ProblemError: if this executor lacks the rank's messages to itself.
        """
        return of_type(self.everything(), wanted)

    def everything(self) -> Sequence[Message]:
        """Return all messages.

        Raises:
            ProblemError: if this executor lacks the rank's messages to itself.
        """
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
    """Messages to this rank's next phase, which stay on its executor if they can.

    Attributes:
        name: under which later phases on this executor find them, too.
        messages: the messages; their arrays must not change afterwards.
        lent: whether their memory is the module replica's, for the next gradient.
    """

    name: str
    messages: Sequence[Message]
    lent: bool = False


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


class Phase(Protocol):
    """The work of a rank between two exchanges; pure, except for files on its executor."""

    def __call__(self, me: Participant, inbox: Inbox) -> Iterator[Send]:
        """Yield the messages to send.

        Raises:
            ProblemError: before the first message, if the step cannot be completed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTraits:
    """What engine, transports and loop need to know of a plan.

    Attributes:
        shards: in how many shards weights and optimizer state are persisted.
        message_bytes: bytes of the larger message that a rank sends another one, about.
        shard_bytes: bytes of what stays with a shard, about.
        weights_bytes: bytes of weights that each executor receives in a step.
        group_seconds: how long a group of iterations should take, if it may be of any size.
        longest_group: how many iterations may be one group, at most.
        keeps: whether anything stays with the shards between groups.
        keeps_rows: whether rows of embedding variables are among what stays with the shards.
        leaves_model: whether the executors have the model after a group, too, and the next one may start
            from there.
    """

    shards: int
    message_bytes: int
    shard_bytes: int
    weights_bytes: int
    group_seconds: float
    longest_group: int
    keeps: bool
    keeps_rows: bool = False
    leaves_model: bool

    @property
    def kept_bytes(self) -> int | None:
        """Bytes of what stays with a shard, about; ``None`` if nothing does."""
        return self.shard_bytes if self.keeps else None


class Plan(Protocol):
    """A way to exchange gradients for weights."""

    @property
    def traits(self) -> PlanTraits:
        """What others need to know of it."""
        ...

    def seed(self, fetch: Callable[[], Kept]) -> list[Packed]:
        """Return the seed: the state of the shards, for executors that have no copy."""
        ...

    def phases(self, start: Start, steps: Sequence[Step]) -> list[Phase]:
        """Return the phases of a group."""
        ...

    def conclude(self, messages: Sequence[Message], buffers: Array, counters: Array) -> GroupReport:
        """Return the report of a completed group, given the buffers before it."""
        ...


LONGEST_GROUP = 2000
"""Steps of one job: so many take more than a second, and the driver holds a report of each."""
_FIXED_SHARE = 0.03
_LONGEST_SECONDS = 60.0


def steps_of_group(wanted: float, each: float, fixed: float) -> int:
    """Return how many steps a group should have, given what starting it and persisting its end cost.

    At most 3 % of its time goes there, as with commits, unless that takes more than a minute: half of a group
    is lost, on average, with an executor.

    Args:
        wanted: seconds that a group should take at least.
        each: seconds of a step.
        fixed: seconds of what does not depend on its steps.
    """
    return max(1, int(max(wanted, min(fixed / _FIXED_SHARE, _LONGEST_SECONDS)) / each))
