"""A task of a direct group: it meets the other ranks, and goes through all phases with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch

from sparkdl._spark.frames import key
from sparkdl._spark.processes import TaskMeeting, siblings
from sparkdl.access.in_pieces import RESULT
from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import Message, Problems, of_type
from sparkdl.allreduce.plan import Inbox, Participant, Phase, Send, ToAll, ToDriver, ToOthers, ToRank, ToSelf
from sparkdl.allreduce.transport.base import driver_frames, read_left, run_phase
from sparkdl.allreduce.transport.direct.connection import ALL
from sparkdl.allreduce.transport.direct.endpoint import Endpoint, close_endpoint, endpoint_of
from sparkdl.allreduce.transport.direct.mesh import Mesh
from sparkdl.allreduce.transport.direct.peer import LostPeerError, Peer
from sparkdl.compute.local_store import LocalStore
from sparkdl.compute.problems import LostPeer, in_order
from sparkdl.compute.stopwatch import Stopwatch
from sparkdl.compute.worker import FitRef, Worker
from sparkdl.data.scan.reader import stop_reading
from sparkdl.data.store.partition import Token
from sparkdl.nn.embedding import embedding_variables
from sparkdl.wire import frame
from sparkdl.wire.frame import Buffer, Packed, Parts

_ANY_ROWS = 1 << 40


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """What a fit's tasks need to find each other; it travels in their closures, and nowhere else."""

    secret: bytes = field(repr=False)  # known to the fit's tasks alone
    driver: str  # the driver's host, by which a machine finds its own address
    seconds: float  # how long a task waits for the others to begin
    patience: float  # seconds without a byte after which a rank counts as lost


@dataclass(frozen=True, slots=True)
class GroupTask:
    """Runs all phases of a group for whichever ranks it is given."""

    fit: FitRef  # the fixed part of the fit
    phases: Sequence[Phase]
    ranks: int  # how many ranks there are
    iteration: int  # completed iterations before the group
    local: bool  # whether what a rank sends itself stays on its executor under its name
    rendezvous: Rendezvous  # by which tasks find each other
    group: int  # number of this attempt
    members: Sequence[Peer]  # the processes that may run ranks
    by_rank: bool  # whether the key of what stays says for which rank it does: a task may have several

    def __call__(self, _: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        """Yield keys and frames in turn: the peer that runs the ranks, and the messages of the last phase."""
        tokens = {token.partition: token for token in map(Token.from_frame, map(frame.unpack, frames))}
        if not tokens:
            return
        worker, own = self.fit.worker(), sorted(tokens)
        rendezvous, begun = self.rendezvous, False
        # Ranks stay in this process until the group has ended; others may want their files only then.
        with worker.holding():
            try:
                endpoint = _listening(self.fit.fit_id, rendezvous, own[0])
                links = endpoint.meet(self.group, own, self.ranks, self.members, rendezvous.seconds)
                for link in links.values():
                    link.limit = _most_bytes(worker)
                begun = True
                yield key(RESULT)
                yield endpoint.peer.pack()
                mesh = Mesh(self.group, own, links, rendezvous.patience)
                yield from self._run([tokens[rank] for rank in own], worker, mesh)
            except LostPeerError as error:
                close_endpoint(self.fit.fit_id)  # which the others notice
                lost = own[0] if error.rank is None else error.rank
                problem = LostPeer(self.iteration, lost, error.reason, begun=begun, gone=error.gone)
                yield from driver_frames([ToDriver(Problems([problem], len(siblings())))])
            except BaseException:
                close_endpoint(self.fit.fit_id)
                raise
            finally:
                stop_reading()

    def _run(self, tokens: Sequence[Token], worker: Worker, mesh: Mesh) -> Iterator[bytes | Parts]:
        """Yield the messages of the last phase, or the problems that keep the group from reaching it."""
        hosted = [_Rank(token, self.ranks, worker, alone=len(tokens) == 1) for token in tokens]
        *exchanging, final = self.phases
        for number, phase in enumerate(exchanging):
            self._exchange(number, phase, hosted, mesh)
            reported = of_type(hosted[0].inbox.arrived, Problems)
            problems = in_order(problem for each in reported for problem in each.problems)
            if problems:  # which all ranks know now
                yield from driver_frames([ToDriver(Problems(problems))])
                return
        for rank in hosted:
            home = rank.token.partition if self.by_rank else 0
            yield from driver_frames(run_phase(final, rank.me(), rank.inbox, last=True), home=home)
            worker.end_task()

    def _exchange(self, number: int, phase: Phase, hosted: Sequence[_Rank], mesh: Mesh) -> None:
        """Run a phase of each rank, and bring its messages to the ranks that they are for."""
        files, alone = hosted[0].worker.files, len(hosted) == 1
        mine = [_Mine(self.iteration, files, self.local, copies=not alone) for _ in hosted]
        found = mesh.exchange(number, self._sends(phase, hosted, mine))
        for rank, own in zip(hosted, mine, strict=True):
            # What was sent to several ranks of this process is the same memory.
            arrived = [messages.decode(one, mine=alone) for one in found[rank.token.partition]]
            rank.inbox = Inbox(arrived + own.sent, own.read)

    def _sends(
        self, phase: Phase, hosted: Sequence[_Rank], mine: Sequence[_Mine]
    ) -> Iterator[tuple[int, int, Parts]]:
        """Run a phase of each rank in turn, and yield its messages to others."""
        for rank, own in zip(hosted, mine, strict=True):
            inbox, rank.inbox = rank.inbox, Inbox([], list)
            sends = run_phase(phase, rank.me(), inbox, last=False)
            del inbox  # what has arrived is let go of before others' answers to this phase arrive
            yield from _to_others(rank.token.partition, sends, own)
            rank.worker.end_task()


@dataclass(slots=True)
class _Rank:
    """A rank of a group, in the process that runs it."""

    token: Token
    ranks: int  # how many there are
    worker: Worker
    alone: bool  # whether the process runs no other one
    inbox: Inbox = field(default_factory=lambda: Inbox([], list))  # what has arrived for its next phase

    def me(self) -> Participant:
        """Return the rank, at the beginning of a phase."""
        number = self.token.partition
        return Participant(
            number, self.ranks, self.worker, Stopwatch(), self.token, stays=True, alone=self.alone
        )


@dataclass(slots=True)
class _Mine:
    """What a rank sends itself in a phase."""

    iteration: int  # completed iterations before the group
    files: LocalStore
    local: bool  # whether it stays in this executor's files, under its name
    copies: bool  # whether other ranks of this process use the replica's memory before the rank reads it
    sent: list[Message] = field(default_factory=list)  # to all ranks
    _names: list[str] = field(default_factory=list)
    _held: list[Packed] = field(default_factory=list)

    def send_all(self, message: Message) -> None:
        """Keep a message to all."""
        if self.copies:
            message = messages.decode(frame.join(messages.encode(message)))
        self.sent.append(message)

    def send(self, send: ToSelf) -> None:
        """Keep messages until the next phase, which reads lent ones from this memory: they are not copied."""
        encoded = [messages.encode(message) for message in send.messages]
        if self.local:
            self.files.leave(send.name, encoded, lent=send.lent)
            self._names.append(send.name)
        elif self.copies:
            self._held += [frame.join(parts) for parts in encoded]
        else:
            self._held += encoded

    def read(self) -> list[Message]:
        """Return them."""
        left = (read_left(self.files, name, self.iteration) for name in self._names)
        return [*map(messages.decode, self._held), *chain.from_iterable(left)]


def _to_others(rank: int, sends: Iterable[Send], mine: _Mine) -> Iterator[tuple[int, int, Parts]]:
    """Yield the messages to other ranks, each after its sender and receiver."""
    for send in sends:
        if isinstance(send, ToSelf):
            mine.send(send)
            continue
        if isinstance(send, ToRank) and send.rank != rank:
            yield rank, send.rank, messages.encode(send.message)
            continue
        assert isinstance(send, ToRank | ToAll | ToOthers)
        if not isinstance(send, ToOthers):
            mine.send_all(send.message)
        if not isinstance(send, ToRank):
            yield rank, ALL, messages.encode(send.message)


def _listening(fit_id: str, rendezvous: Rendezvous, rank: int) -> Endpoint:
    try:
        return endpoint_of(fit_id, rendezvous.secret, rendezvous.driver)
    except OSError as error:
        raise LostPeerError(rank, f"it cannot listen: {error}") from None


def _most_bytes(worker: Worker) -> int:
    """Return how long a message may be: shards, whatever their codec, and buffers, and what is reported.

    How many rows of embedding variables a batch asks for is not known beforehand.
    """
    if embedding_variables(worker.spec.module):
        return _ANY_ROWS
    layout = worker.spec.layout
    buffers = sum(spec.numel for spec in (*layout.buffers, *layout.counters))
    return 4 * layout.nbytes + 16 * buffers + (64 << 20)


# -- tasks of executors; their last two arguments are what Spark gives them -------------------------------


def assemble(
    fit: FitRef, rendezvous: Rendezvous, meeting: TaskMeeting, _: int, frames: Iterator[Buffer]
) -> Iterator[bytes | Parts]:
    """Make this process a peer, and say which one; nothing if this machine cannot listen."""
    deque(frames, maxlen=0)
    fit.worker()
    try:
        yield endpoint_of(fit.fit_id, rendezvous.secret, rendezvous.driver).peer.pack()
    except OSError:
        return
    meeting.wait()


def dismiss(
    fit_id: str, forget: Callable[[], None], meeting: TaskMeeting, _: int, frames: Iterator[Buffer]
) -> Iterator[bytes | Parts]:
    """End this process's part in a fit, ``forget`` the fit, and say which peer this was, if it was one."""
    deque(frames, maxlen=0)
    was = close_endpoint(fit_id)
    forget()
    if was is not None:
        yield was
    meeting.wait()


def get_ready(_: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
    """Import what tasks need, which takes seconds; torch imports half of itself in a step."""
    deque(frames, maxlen=0)
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.0).step()
    yield from ()
