"""What a task of a direct group does: it meets the other ranks, and goes through all phases with them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from sparkdl import frame
from sparkdl._spark.frames import key
from sparkdl.access.base import RESULT
from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import Message, Problems, of_type
from sparkdl.allreduce.plans.base import (
    Inbox,
    Participant,
    Phase,
    Send,
    ToAll,
    ToDriver,
    ToOthers,
    ToRank,
    ToSelf,
)
from sparkdl.allreduce.transport.base import perform, read_left
from sparkdl.allreduce.transport.direct.endpoint import Endpoint, close_endpoint, endpoint_of
from sparkdl.allreduce.transport.direct.mesh import Mesh
from sparkdl.allreduce.transport.direct.peer import LostPeerError, Peer
from sparkdl.allreduce.transport.task import to_driver
from sparkdl.compute.local_store import LocalStore
from sparkdl.compute.problems import LostPeer, in_order
from sparkdl.compute.stopwatch import Stopwatch
from sparkdl.compute.worker import FitRef, Worker
from sparkdl.data.store import Token
from sparkdl.frame import Buffer, Packed, Parts


@dataclass(frozen=True, slots=True)
class Circle:
    """What a fit's tasks need to find each other; it travels in their closures, and nowhere else.

    Attributes:
        secret: known to the fit's tasks alone.
        driver: the driver's host, by which a machine finds its own address.
        seconds: how long a task waits for the others to begin.
        patience: seconds without a byte after which a rank counts as lost.
    """

    secret: bytes = field(repr=False)
    driver: str
    seconds: float
    patience: float


@dataclass(frozen=True, slots=True)
class GroupTask:
    """Runs all phases of a group for whichever rank it is given.

    Attributes:
        fit: the fixed part of the fit.
        phases: the phases.
        ranks: how many ranks there are.
        iteration: completed iterations before the group.
        local: whether what a rank sends itself stays on its executor under its name.
        circle: by which tasks find each other.
        group: number of this attempt.
        members: the processes that may run ranks.
    """

    fit: FitRef
    phases: Sequence[Phase]
    ranks: int
    iteration: int
    local: bool
    circle: Circle
    group: int
    members: Sequence[Peer]

    def __call__(self, rank: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        """Yield keys and frames in turn: the peer that runs the rank, and the messages of the last phase."""
        token = Token.from_frame(frame.unpack(next(frames)))
        deque(frames, maxlen=0)
        worker = self.fit.worker()
        circle, begun = self.circle, False
        # The rank stays in this process until the group has ended; others may want its files only then.
        worker.files.hold()
        try:
            endpoint = _listening(self.fit.fit_id, circle, rank)
            links = endpoint.meet(self.group, rank, self.ranks, self.members, circle.seconds)
            for link in links.values():
                link.limit = _most_bytes(worker)
            begun = True
            yield key(RESULT)
            yield endpoint.peer.pack()
            yield from to_driver(self._run(rank, token, worker, Mesh(self.group, links, circle.patience)))
        except LostPeerError as error:
            close_endpoint(self.fit.fit_id)  # which the others notice
            lost = rank if error.rank is None else error.rank
            problem = LostPeer(self.iteration, lost, error.reason, begun=begun)
            yield from to_driver([ToDriver(Problems([problem]))])
        except BaseException:
            close_endpoint(self.fit.fit_id)
            raise
        finally:
            worker.files.settle()

    def _run(self, rank: int, token: Token, worker: Worker, mesh: Mesh) -> Iterator[Send]:
        """Yield the messages of the last phase, or the problems that keep the group from reaching it."""
        inbox = Inbox([], list)
        *exchanging, final = self.phases
        for number, phase in enumerate(exchanging):
            me = Participant(rank, self.ranks, worker, Stopwatch(), token, stays=True)
            mine = _Mine(self.iteration, worker.files, self.local)
            sends = perform(phase, me, inbox, last=False)
            found = mesh.exchange(number, _to_others(me, sends, mine))
            arrived = [messages.decode(data, mine=True) for data in found] + mine.sent
            worker.end_task()
            problems = in_order(p for told in of_type(arrived, Problems) for p in told.problems)
            if problems:  # which all ranks know now
                yield ToDriver(Problems(problems))
                return
            inbox = Inbox(arrived, mine.read)
        me = Participant(rank, self.ranks, worker, Stopwatch(), token, stays=True)
        yield from perform(final, me, inbox, last=True)
        worker.end_task()


class _Mine:
    """What a rank sends itself in a phase.

    Args:
        iteration: completed iterations before the group.
        files: this executor's.
        local: whether it stays there under its name.

    Attributes:
        sent: messages that it has sent to all.
    """

    def __init__(self, iteration: int, files: LocalStore, local: bool) -> None:
        self.sent: list[Message] = []
        self._iteration = iteration
        self._files = files
        self._local = local
        self._names: list[str] = []
        self._held: list[Packed] = []

    def send(self, send: ToSelf) -> None:
        """Keep messages until the next phase."""
        encoded = [messages.encode(message) for message in send.messages]
        if self._local:
            self._files.leave(send.name, encoded, lent=send.lent)
            self._names.append(send.name)
        else:
            self._held += encoded

    def read(self) -> list[Message]:
        """Return them."""
        left = (read_left(self._files, name, self._iteration) for name in self._names)
        return [*map(messages.decode, self._held), *chain.from_iterable(left)]


def _to_others(me: Participant, sends: Iterable[Send], mine: _Mine) -> Iterator[tuple[int, Parts]]:
    """Yield the messages to other ranks, each after its rank."""
    others = [rank for rank in range(me.ranks) if rank != me.rank]
    for send in sends:
        if isinstance(send, ToSelf):
            mine.send(send)
            continue
        if isinstance(send, ToRank) and send.rank != me.rank:
            yield send.rank, messages.encode(send.message)
            continue
        assert isinstance(send, ToRank | ToAll | ToOthers)
        if not isinstance(send, ToOthers):
            mine.sent.append(send.message)
        if not isinstance(send, ToRank):
            parts = messages.encode(send.message)
            yield from ((rank, parts) for rank in others)


def _listening(fit_id: str, circle: Circle, rank: int) -> Endpoint:
    """Return this process's endpoint."""
    try:
        return endpoint_of(fit_id, circle.secret, circle.driver)
    except OSError as error:
        raise LostPeerError(rank, f"it cannot listen: {error}") from None


def _most_bytes(worker: Worker) -> int:
    """Return how long a message may be: shards, whatever their codec, and buffers, and what is reported."""
    layout = worker.spec.layout
    buffers = sum(spec.numel for spec in (*layout.buffers, *layout.counters))
    return 4 * layout.nbytes + 16 * buffers + (64 << 20)


@dataclass(frozen=True, slots=True)
class Assemble:
    """Makes this process a peer, and says which one.

    Attributes:
        fit: the fixed part of the fit.
        circle: by which tasks find each other.
        linger: seconds to stay, so that each task on an executor has a process of its own.
    """

    fit: FitRef
    circle: Circle
    linger: float

    def __call__(self, _: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        """Yield the peer; nothing if this machine cannot listen."""
        deque(frames, maxlen=0)
        self.fit.worker()
        try:
            yield endpoint_of(self.fit.fit_id, self.circle.secret, self.circle.driver).peer.pack()
        except OSError:
            return
        time.sleep(self.linger)


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Ends this process's part in a fit, and says which peer it was."""

    fit_id: str
    linger: float

    def __call__(self, _: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        """Yield the id of the peer, if there was one."""
        deque(frames, maxlen=0)
        was = close_endpoint(self.fit_id)
        if was is not None:
            yield was
        time.sleep(self.linger)
