"""Steps and their phases: the driver's instructions, and what a rank gets and sends.

A *rank* is a partition of the data and what runs for it. In a phase a rank receives the messages that all
ranks sent it in the phase before, computes, and sends messages: to other ranks, to itself, to the driver. How
they get there is the business of a transport (:mod:`sparkdl.allreduce.transport`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sparkdl.allreduce.messages import M, Message, of_type
from sparkdl.compute.forward_backward import Contribution, ForwardBackward
from sparkdl.compute.local_steps import InnerSteps
from sparkdl.compute.start import Start
from sparkdl.compute.stopwatch import Stopwatch
from sparkdl.compute.stragglers import Allowance
from sparkdl.compute.worker import Worker
from sparkdl.data.sampler import Place
from sparkdl.data.store.partition import Token
from sparkdl.nn.flat import Weights


@dataclass(frozen=True, slots=True)
class Directives:
    """The driver's instructions for the update of a step.

    Attributes:
        hyper: per parameter group, hyper-parameters that replace the optimizer's own.
        average: weight of the new weights in their average; 0 leaves the average unchanged.
        gradient: whether the driver wants the combined gradient.
    """

    hyper: tuple[Mapping[str, Any], ...] = ()
    average: float = 0.0
    gradient: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Everything that defines a step, so that it can run again.

    Attributes:
        place: where it is in its epoch.
        iteration: completed iterations before it.
        directives: instructions for its update.
        frozen: parameters of the layout that are not trained.
        allowance: what slow tasks may leave out; ``None`` for nothing.
        inner: the steps that each partition takes by itself; ``None`` if it contributes its gradient.
    """

    place: Place
    iteration: int
    directives: Directives = field(default_factory=Directives)
    frozen: tuple[int, ...] = ()
    allowance: Allowance | None = None
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

    def contribute(
        self, forward: ForwardBackward, weights: Callable[[], Mapping[str, Weights]]
    ) -> Contribution:
        """Run the rank's forward and backward pass; see :class:`ForwardBackward`."""
        assert self.token is not None
        return forward(self.worker, self.token, weights, self.clock)

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
