"""The interface of transports, and the code that all share to run a rank's phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparkdl._spark.frames import key
from sparkdl._spark.processes import siblings
from sparkdl.access.base import Persisted
from sparkdl.access.in_pieces import RESULT, STATE
from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import Message, Problems, of_type
from sparkdl.allreduce.plan import Inbox, Participant, Phase, Plan, Send, Stay, Step, ToAll, ToDriver
from sparkdl.compute.local_store import LocalStore
from sparkdl.compute.problems import LackingState, Problem, ProblemError, in_order
from sparkdl.compute.start import Start
from sparkdl.wire.frame import Parts


@dataclass(frozen=True, slots=True)
class Group:
    """A group of steps to run."""

    plan: Plan  # how gradients become weights
    start: Start  # the model from which it starts
    steps: Sequence[Step]
    persisted: Persisted | None = None  # the state of the shards before it
    broadcasts: Sequence[Any] = ()  # broadcasts that its tasks read
    name: str = ""  # names it in the Spark UI


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The result of a group."""

    messages: Sequence[Message]  # the messages to the driver
    persisted: Persisted | None  # the state of the shards after it
    started: float  # when it began, in seconds since 1970
    seconds: Mapping[str, float]  # how long it took, by kind of job
    refused: bool = False  # whether slow tasks have left out too much, or differently for different shards
    direct: bool = False  # whether its tasks have exchanged directly, or tried to

    @property
    def problems(self) -> list[Problem]:
        """Why the group could not be completed, in the order of iterations and partitions."""
        return in_order(p for message in of_type(self.messages, Problems) for p in message.problems)

    @property
    def processes(self) -> int:
        """How many Python processes take turns on an executor's tasks, as those saw it that had problems."""
        return max((message.processes for message in of_type(self.messages, Problems)), default=1)


class Transport(Protocol):
    """Carries the messages of a group of steps between its ranks."""

    @property
    def longest_group(self) -> int:
        """How many steps may be one group, now."""

    @property
    def is_joining(self) -> bool:
        """Whether executors that have come are getting ready, and groups run without them until then."""

    def run(self, group: Group) -> GroupResult:
        """Run all phases of a group.

        Raises:
            Exception: of Spark, if a task failed for a reason that is no problem of a step.
        """

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""

    def release(self, forget: Callable[[], None] | None = None) -> bool:
        """Delete all files on the executors for this transport.

        The last time they also ``forget`` the fit, if a job goes there anyway; return whether that is done.
        """


def read_left(files: LocalStore, name: str, iteration: int) -> Iterator[Message]:
    """Yield the messages that a rank has left for itself on this executor."""
    left = files.read(name)
    if left is None:
        raise ProblemError(LackingState(iteration, name))
    return map(messages.decode, left)


def run_phase(phase: Phase, me: Participant, inbox: Inbox, *, last: bool) -> Iterator[Send]:
    """Run a rank's phase, or pass on why that cannot be done."""
    try:
        found = in_order(p for message in of_type(inbox.arrived, Problems) for p in message.problems)
        if found:
            raise ProblemError(*found)
        yield from phase(me, inbox)
    except ProblemError as error:
        problems = Problems(error.problems, len(siblings()))
        yield ToDriver(problems) if last else ToAll(problems)


def driver_frames(sends: Iterable[Send], *, keyed: bool = True, home: int = 0) -> Iterator[bytes | Parts]:
    """Yield what a last phase sends as frames, each after the key that says where it goes if ``keyed``.

    If the key is to say for which rank a frame stays, that is ``home``: it is ``STATE + home`` then.
    """
    for send in sends:
        assert isinstance(send, ToDriver | Stay)
        if keyed:
            yield key(RESULT if isinstance(send, ToDriver) else STATE + home)
        yield messages.encode(send.message)
