"""All ranks in one Python process, for tests: every exchange a function call, with faults on request.

Messages are encoded and decoded as on the wire, so that nothing is shared that would not be shared
between executors. A *site* stands for an executor's Python process: ranks on one site share what phases
leave there, and lose it together.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from sparkdl.access.base import BytesRef, Published
from sparkdl.access.in_pieces import ChainTask
from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import Average, Master, Message, Partials, Problems, of_type
from sparkdl.allreduce.plan import Inbox, Participant, Phase, Send, Stay, ToDriver, ToOthers, ToRank, ToSelf
from sparkdl.allreduce.plans.driver import ThroughDriver
from sparkdl.allreduce.shard_states import ShardStates, is_of_rows
from sparkdl.allreduce.transport.base import Group, GroupResult, read_left, run_phase
from sparkdl.compute.problems import LostPeer
from sparkdl.compute.stopwatch import Stopwatch
from sparkdl.compute.worker import Worker
from sparkdl.data.store.build import PartitionStore
from sparkdl.data.store.partition import Token
from sparkdl.optim.reduction import add_up
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Frame, Packed


class LostRankError(Exception):
    """A rank is lost: its phase did not end, and the others cannot go on."""


@dataclass(slots=True)
class Faults:
    """What goes wrong, drawn from a seed.

    Attributes:
        seed: seed of the draws.
        lose: probability that a rank's site loses all that it holds before a phase.
        repeat: probability that a rank runs a phase twice.
        move: probability that a rank runs at another site.
        lose_rows: probability that the files of a rank's rows are gone before a phase.
        shuffle: whether ranks run, and messages arrive, in any order.
        lose_at: numbers of rank phases, counted over the transport's life, before which the site is lost
            for certain.
        lose_rows_at: likewise, before which the files of the rank's rows are gone.
        absent: probability that a rank is not found before a group begins.
        vanish: probability that a rank's process is gone before one of its phases, but no file: the group
            ends there. Every other group is exposed to these two, as with transports that take turns.
    """

    seed: int = 0
    lose: float = 0.0
    repeat: float = 0.0
    move: float = 0.0
    lose_rows: float = 0.0
    shuffle: bool = True
    lose_at: frozenset[int] = frozenset()
    lose_rows_at: frozenset[int] = frozenset()
    absent: float = 0.0
    vanish: float = 0.0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def draw(self, probability: float) -> bool:
        """Return whether something with a probability happens."""
        return self.random.random() < probability


class InProcessTransport:
    """Runs the phases of a group one after the other.

    Args:
        sites: makes the workers of a site; called again when it is lost.
        write: writes the rows of a rank; called again when they are lost.
        places: site of each rank.
        faults: what goes wrong.
        stays: whether a rank stays in its process until a group has ended, as those do that exchange
            directly; without faults.

    Attributes:
        tokens: where the rows of each rank are.
        performed: how many rank phases have run.
        failed: how many groups could not be completed.
        lost: how many of them since ranks have lost each other.
        longest_group: as long as a test likes.
        is_joining: no executors come.
    """

    longest_group = 1000
    is_joining = False

    def __init__(
        self,
        sites: Sequence[Callable[[], Worker]],
        write: Callable[[int], Token],
        places: Sequence[int],
        faults: Faults | None = None,
        *,
        stays: bool = False,
    ) -> None:
        self._stays = stays
        self._make = sites
        self._sites = [make() for make in sites]
        self._write = write
        self.tokens = [write(rank) for rank in range(len(places))]
        self._places = places
        self._faults = faults or Faults(shuffle=False)
        self._direct = False  # every other group exchanges directly, as if by chance
        self.performed = self.failed = self.lost = 0

    def run(self, group: Group) -> GroupResult:
        """Run all phases of a group."""
        started, begin = time.time(), time.perf_counter()
        plan = group.plan
        if isinstance(plan, ThroughDriver):
            arrived, kept = self._run_through_driver(group, plan)
        else:
            arrived, kept = self._run_group(group)
        failed = bool(of_type(arrived, Problems))
        self.failed += failed
        stays = kept if plan.traits.keeps and not failed else None
        return GroupResult(arrived, stays, started, {"job": time.perf_counter() - begin})

    def _run_group(self, group: Group) -> tuple[list[Message], ShardStates]:
        """Run a group whose ranks may lose each other."""
        faults, rank = self._faults, len(self.tokens) - 1
        self._direct = not self._direct
        begun = not (self._direct and faults.draw(faults.absent))
        try:
            if begun:
                return self._run_chain(group)
        except LostRankError as error:
            (rank,) = error.args
        self.lost += 1
        problem = LostPeer(group.start.version.iteration, rank, "simulated", begun)
        return [Problems([problem])], []

    def _run_chain(self, group: Group) -> tuple[list[Message], ShardStates]:
        ranks = len(self.tokens)
        inboxes: list[list[_Sent]] = [[] for _ in range(ranks)]
        phases = group.plan.phases(group.start, group.steps)
        with ExitStack() as stack:
            for worker in self._sites if self._stays else []:
                stack.enter_context(worker.holding())
            for number, phase in enumerate(phases, start=1):
                inboxes = self._phase(group, phase, inboxes, ranks, last=number == len(phases))
        return self._home(inboxes), self._stayed(inboxes, ranks)

    def _run_through_driver(self, group: Group, plan: ThroughDriver) -> tuple[list[Message], ShardStates]:
        forward, update = plan.phases(group.start, group.steps)
        sent = self._phase(group, forward, [[] for _ in self.tokens], plan.shards, last=False)
        arrived: list[Message] = []
        totals: list[Array] = []
        for number in range(plan.updates):
            inboxes = [
                [*own, *(_Sent(data) for data in (group.persisted[n] if group.persisted is not None else []))]
                for n, own in enumerate(sent)
            ]
            done = self._phase(group, update, inboxes, plan.shards, last=True)
            found = self._home(done)
            arrived += found
            kept = self._stayed(done, plan.shards)
            if of_type(found, Problems):
                return arrived, kept
            if number < plan.updates - 1:
                partials = sorted(of_type(found, Partials), key=lambda message: message.start)
                totals.append(add_up(message.sums for message in partials))
                update = plan.update(group.start, group.steps[0].directives, totals)
                if not number:  # later phases go on from the combined gradients
                    sent = [[_Sent(data) for data in frames] for frames in kept]
        return arrived, kept

    def forget(self, partition: int) -> None:
        """Write a rank's rows again."""
        self.tokens[partition] = self._write(partition)

    def release(self, forget: Callable[[], None] | None = None) -> bool:
        """Delete nothing."""
        return False

    def _phase(
        self, group: Group, phase: Phase, inboxes: Sequence[list[_Sent]], ranks: int, *, last: bool
    ) -> list[list[_Sent]]:
        """Run a phase of all ranks; return messages by receiver: ranks, then driver and Spark."""
        faults = self._faults
        arriving: list[list[_Sent]] = [[] for _ in range(2 * ranks + 1 if last else ranks)]
        order = list(range(len(inboxes)))
        if faults.shuffle:
            faults.random.shuffle(order)
        for rank in order:
            site = self._site(rank)
            attempts = 2 if faults.draw(faults.repeat) else 1
            for _ in range(attempts):
                sent = list(self._run_rank(group, phase, rank, ranks, inboxes[rank], site, last=last))
            for to, message in sent:
                arriving[to].append(message)
        if faults.shuffle and not last:
            for inbox in arriving:
                faults.random.shuffle(inbox)
        return arriving

    def _site(self, rank: int) -> int:
        """Return where a rank runs, after losing what is there, or its rows, if that is its fate."""
        faults, place = self._faults, self._places[rank % len(self._places)]
        if faults.draw(faults.move):
            place = faults.random.randrange(len(self._sites))
        if faults.draw(faults.lose) or self.performed in faults.lose_at:
            site = self._sites[place]
            for files in (site.files, site.partition_files, site.row_files):
                files.delete()
            self._sites[place] = self._make[place]()
        lost = faults.draw(faults.lose_rows) or self.performed in faults.lose_rows_at
        if lost and rank < len(self.tokens):
            shutil.rmtree(self.tokens[rank].folder, ignore_errors=True)
        if self._direct and faults.draw(faults.vanish):
            self._sites[place] = self._make[place]()
            raise LostRankError(rank)
        self.performed += 1
        return place

    def _run_rank(
        self,
        group: Group,
        phase: Phase,
        rank: int,
        ranks: int,
        inbox: Sequence[_Sent],
        site: int,
        *,
        last: bool,
    ) -> Iterator[tuple[int, _Sent]]:
        worker = self._sites[site]
        token = self.tokens[rank] if rank < len(self.tokens) else None
        me = Participant(rank, ranks, worker, Stopwatch(), token, stays=self._stays)
        arrived = [messages.decode(bytearray(own.data), mine=True) for own in inbox if not own.name]

        def own() -> list[Message]:
            found: list[Message] = []
            for sent in inbox:
                if sent.name:
                    found += read_left(worker.files, sent.name, group.start.version.iteration)
            return found

        for send in run_phase(phase, me, Inbox(arrived, own), last=last):
            yield from self._addressed(rank, ranks, send, worker, group.start.local)

    def _addressed(
        self, rank: int, ranks: int, send: Send, worker: Worker, local: bool
    ) -> Iterator[tuple[int, _Sent]]:
        if isinstance(send, ToSelf):
            encoded = [messages.encode(message) for message in send.messages]
            if local:
                worker.files.leave(send.name, encoded, lent=send.lent)
                yield rank, _Sent(b"", send.name)
            else:
                yield from ((rank, _Sent(frame.join(parts))) for parts in encoded)
            return
        data = _Sent(frame.join(messages.encode(send.message)))
        if isinstance(send, ToDriver):
            yield ranks, data
        elif isinstance(send, Stay):
            yield ranks + 1 + rank, data
        elif isinstance(send, ToRank):
            yield send.rank, data
        else:
            for to in range(ranks):
                if to != rank or not isinstance(send, ToOthers):
                    yield to, data

    def _home(self, inboxes: Sequence[list[_Sent]]) -> list[Message]:
        ranks = len(inboxes) // 2
        return [messages.decode(sent.data) for sent in inboxes[ranks]]

    def _stayed(self, inboxes: Sequence[list[_Sent]], ranks: int) -> ShardStates:
        return [[sent.data for sent in inbox] for inbox in inboxes[ranks + 1 :]]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message on its way, or the name under which it lies at the site of its rank."""

    data: bytes
    name: str = ""


@dataclass(frozen=True, slots=True)
class KeptInProcess:
    """The state of the shards, in this process; see :class:`sparkdl.allreduce.persisted.PersistedShards`."""

    def fetch(self, kept: ShardStates | None, *, rows: bool = True) -> ShardStates:
        """Return the state of the shards, but for their weights, and rows if so wanted."""
        return [
            [data for data in frames if _kind(data) != Master.kind and (rows or not is_of_rows(data))]
            for frames in kept or []
        ]

    def average(self, kept: ShardStates) -> Array | None:
        """Return the averaged weights; ``None`` if there are none yet."""
        return self._vector(kept, Average.kind)

    def weights(self, kept: ShardStates) -> Array:
        """Return the weights."""
        found = self._vector(kept, Master.kind)
        assert found is not None
        return found

    def rows(self, kept: ShardStates, changed: ChainTask | None = None) -> list[Frame]:
        """Return the rows of embedding variables, or what a task makes of them, shard by shard."""
        if changed is not None:
            return self.run(kept, changed, "")
        return [frame.unpack(data) for frames in kept for data in frames if is_of_rows(data)]

    def run(self, kept: ShardStates, task: ChainTask, doing: str) -> list[Frame]:
        """Run a task over the state of each shard."""
        return [
            frame.unpack(frame.join(frame.parts(packed)))
            for n, frames in enumerate(kept)
            for packed in task(n, iter(frames))
        ]

    def restore(self, kept: ShardStates) -> ShardStates:
        """Let frames stay with the shards again."""
        return kept

    def _vector(self, kept: ShardStates, kind: str) -> Array | None:
        parts = [
            frame.unpack(data).arrays["params"] for frames in kept for data in frames if _kind(data) == kind
        ]
        return np.concatenate(parts) if parts else None


@dataclass(frozen=True, slots=True)
class InProcessCluster:
    """Sends nothing anywhere; see :class:`sparkdl.allreduce.cluster.Cluster`.

    Attributes:
        in_memory: whether sites hold frames in memory.
    """

    in_memory: bool = True

    def publish(self, data: Packed, *, inline: bool = True) -> Published:
        """Return the bytes themselves."""
        return Published(BytesRef(frame.join(frame.parts(data))))

    def shards(self, count: int, shard_bytes: int) -> KeptInProcess:
        """Return access to the state of the shards."""
        return KeptInProcess()

    def unpersist(self, kept: ShardStates) -> None:
        """Do nothing."""

    def one_process(self, slots: int) -> bool:
        """Return whether sites hold frames in memory."""
        return self.in_memory

    def end_surplus_processes(self, slots: int, seen: int | None = None) -> None:
        """Do nothing: there is this process alone."""

    def count_executors(self, *, look: bool = False) -> int:
        """Return that there is one."""
        return 1

    def crowded(self, store: PartitionStore) -> list[int]:
        """Return none: sites do not hold partitions."""
        return []

    def delete_files(self, fit_id: str, forget: Callable[[], None]) -> bool:
        """Do nothing."""
        return False


def _kind(data: bytes) -> str:
    return frame.kind_of(data)
