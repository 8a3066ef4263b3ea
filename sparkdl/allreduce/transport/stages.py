"""Transports by Spark's own shuffles: a group as a chain of stages, a step as two jobs, and their task."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sparkdl._spark.frames import key
from sparkdl.access.base import Access, Chain, Persisted
from sparkdl.access.in_pieces import FRAMES_PER_RANK
from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import Message, Partials, Problems, Reports, UpdatedShard, of_type
from sparkdl.allreduce.plan import Inbox, Participant, Phase, Send, ToAll, ToOthers, ToRank, ToSelf
from sparkdl.allreduce.plans.driver import ThroughDriver
from sparkdl.allreduce.transport.base import Group, GroupResult, driver_frames, read_left, run_phase
from sparkdl.compute.forward_backward import Allowance
from sparkdl.compute.local_store import LocalStore, decode, encode
from sparkdl.compute.stopwatch import Stopwatch
from sparkdl.compute.worker import FitRef
from sparkdl.data.scan.reader import stop_reading
from sparkdl.data.store.build import PartitionStore
from sparkdl.data.store.partition import Token
from sparkdl.exceptions import TaskError
from sparkdl.optim.reduction import add_up
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Buffer, Frame, Parts

_PAUSE_SECONDS = 2.0
"""The driver tries a group again a few times; meanwhile a lost executor may be there again."""


@dataclass(frozen=True, slots=True)
class ShuffleTransport:
    """Runs groups as chains of stages."""

    is_joining: ClassVar[bool] = False  # an executor's first task waits for its process
    ranks: int
    fit: FitRef
    chain: Chain
    longest_group: int
    # counts executors, if a phase after the first one needs the rank's rows and its stage runs on any of them
    executors: Callable[[], int] | None = None

    @property
    def is_possible(self) -> bool:
        """Whether stages can be where they need to be."""
        return self.executors is None or self.executors() <= 1

    def run(self, group: Group) -> GroupResult:
        """Run all phases of a group as the stages of one job."""
        if self.executors is not None and (count := self.executors()) > 1:
            time.sleep(_PAUSE_SECONDS)
            raise TaskError(
                f"{group.name}: tasks on {count} executors do not exchange directly now (see the log), and "
                "on Spark Connect embedding variables need that; open the ports between executors, give "
                "each partition a task slot, or fit in a classic session"
            )
        started, begin = time.time(), time.perf_counter()
        plan, count = group.plan, len(group.steps)
        start = replace(group.start, local=group.start.local and self.chain.stays)
        phases = plan.phases(start, group.steps)
        tasks = [
            PhaseTask(
                self.fit,
                phase,
                self.ranks,
                start.version.iteration,
                token=True,
                local=start.local,
                last=phase is phases[-1],
                fill=phase is not phases[-1],
            )
            for phase in phases
        ]
        until = start.version.iteration + count
        what = "forward-backward and sync" if count == 1 else f"up to iteration {until}"
        name = f"{group.name}, {what}"
        frames, persisted = self.chain.run(
            tasks,
            group.broadcasts,
            name,
            plan.traits.message_bytes,
            persisted_bytes=plan.traits.persisted_bytes,
        )
        arrived = [messages.decode(data) for data in frames]
        return GroupResult(arrived, persisted, started, {"job": time.perf_counter() - begin})

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""
        self.chain.forget(partition)

    def release(self, forget: Callable[[], None] | None = None) -> bool:
        """Delete all files on the executors for the store, none of the fit."""
        self.chain.release()
        return False


@dataclass(frozen=True, slots=True)
class TwoJobTransport:
    """Runs an iteration as two jobs, or more."""

    longest_group: ClassVar[int] = 1
    is_joining: ClassVar[bool] = False
    access: Access
    store: PartitionStore
    fit: FitRef
    profile: Any

    def run(self, group: Group) -> GroupResult:
        """Run an iteration's jobs."""
        plan, (step,) = group.plan, group.steps
        assert isinstance(plan, ThroughDriver)
        forward, update = plan.phases(group.start, group.steps)
        started, times = time.time(), [time.perf_counter()]
        persisted: Persisted | None = None
        arrived: list[Message] = []
        totals: list[Array] = []
        torn = False
        gradients = self._task(forward, group, token=True, last=False, ranks=plan.shards)
        with self.access.sync(
            self.store.tokens, gradients, plan.shards, group.persisted, group.broadcasts, self.profile
        ) as sync:
            # Job 1: each partition's gradient, cut into shards, written as the map side of a shuffle.
            sync.scatter(f"{group.name}, forward-backward")
            times.append(time.perf_counter())

            # Job 2: shard n of all partitions and the state of shard n meet in task n. Where an update
            # needs sums over all shards, each is a job before it: the first also leaves the combined
            # gradients, from which the later ones go on.
            for number in range(plan.updates):
                last = number == plan.updates - 1
                stays = plan.keeps if last else number == 0
                task = self._task(update, group, token=False, last=True, ranks=plan.shards, stays=stays)
                if last:
                    persisted_bytes = plan.traits.persisted_bytes
                    frames, persisted = sync.finish(
                        task, f"{group.name}, parameter sync", persisted_bytes=persisted_bytes
                    )
                else:
                    frames = sync.reduce(task, f"{group.name}, reduction", leaves=stays)
                received = list(map(messages.decode, frames))
                arrived += received
                torn = _torn(received)
                if torn or of_type(received, Problems):
                    break
                if not last:
                    partials = sorted(of_type(received, Partials), key=lambda message: message.start)
                    totals.append(add_up(message.sums for message in partials))
                    update = plan.update(group.start, step.directives, totals)
            times.append(time.perf_counter())
        seconds = {"job1": times[1] - times[0], "job2": times[2] - times[1]}
        refused = torn or _too_many(arrived, step.allowance)
        return GroupResult(arrived, persisted, started, seconds, refused)

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""
        self.access.forget(self.store.tokens, partition)

    def release(self, forget: Callable[[], None] | None = None) -> bool:
        """Delete nothing: an iteration leaves nothing."""
        return False

    def _task(
        self, phase: Phase, group: Group, *, token: bool, last: bool, ranks: int, stays: bool = True
    ) -> PhaseTask:
        iteration = group.start.version.iteration
        return PhaseTask(
            self.fit, phase, ranks, iteration, token=token, local=False, last=last, fill=False, stays=stays
        )


def _torn(received: Sequence[Message]) -> bool:
    """Return whether the shards saw different gradients of a source.

    A task that may leave rows out need not do the same when it runs again; if it does so between two
    reads of its shards, these do not belong together.
    """
    seen = {message.facts.sources for message in of_type(received, UpdatedShard)}
    return len(seen | {message.sources for message in of_type(received, Partials)}) > 1


def _too_many(arrived: Sequence[Message], allowance: Allowance | None) -> bool:
    """Return whether more rows were left out than may be."""
    if allowance is None or allowance.deadline is None:
        return False
    reports = [report for message in of_type(arrived, Reports) for report in message.reports]
    dropped = sum(int(report["dropped"]) for report in reports)
    return dropped > allowance.most * (dropped + sum(int(report["rows"]) for report in reports))


_LEFT = "left"  # kind of the frame that stands for messages which a rank has left for itself on its executor
_BUNDLE = "bundle"  # kind of the frame that carries them, where they do not stay


@dataclass(frozen=True, slots=True)
class PhaseTask:
    """Runs a phase for whichever rank it is given."""

    fit: FitRef  # the fixed part of the fit
    phase: Phase
    ranks: int  # how many ranks get what it sends
    iteration: int  # completed iterations, for reports of problems
    token: bool  # whether the first frame that arrives is the token of the rank's partition
    local: bool  # whether messages of a rank to itself stay on its executor
    last: bool  # whether no phase follows, so that frames are keyed by where they go
    fill: bool  # whether every rank is to get the same number of frames
    stays: bool = True  # whether anything may stay; otherwise frames go to the driver without keys

    def __call__(self, rank: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        """Yield keys and frames in turn, or frames alone if nothing stays."""
        clock = Stopwatch()
        token = Token.from_frame(frame.unpack(next(frames))) if self.token else None
        # What has arrived is this task's alone, which may overwrite it: another attempt receives it again.
        arrived = [frame.unpack(data, writable=True) for data in frames if data]
        worker = self.fit.worker()
        me = Participant(rank, self.ranks, worker, clock, token)
        inbox = self._inbox(arrived, worker.files)
        sends = run_phase(self.phase, me, inbox, last=self.last)
        yield from (
            driver_frames(sends, keyed=self.stays) if self.last else self._to_ranks(rank, sends, worker.files)
        )
        stop_reading()
        worker.end_task()

    def _inbox(self, arrived: Iterable[Frame], files: LocalStore) -> Inbox:
        own = [found for found in arrived if found.meta["kind"] in (_LEFT, _BUNDLE)]
        others = [
            messages.read(found, mine=True) for found in arrived if found.meta["kind"] not in (_LEFT, _BUNDLE)
        ]
        return Inbox(others, lambda: [message for found in own for message in self._own(found, files)])

    def _own(self, found: Frame, files: LocalStore) -> list[Message]:
        """Return the rank's messages to itself."""
        if found.meta["kind"] == _BUNDLE:
            return [messages.decode(packed) for packed in decode(found.arrays["data"].data)]
        return list(read_left(files, found.meta["name"], self.iteration))

    def _to_ranks(self, rank: int, sends: Iterable[Send], files: LocalStore) -> Iterator[bytes | Parts]:
        sent: Counter[int] = Counter()
        for send in sends:
            for to, parts in self._addressed(rank, send, files):
                sent[to] += 1
                yield key(to)
                yield parts
        for to in range(self.ranks if self.fill else 0):
            for _ in range(FRAMES_PER_RANK - sent[to]):
                yield key(to)
                yield b""

    def _addressed(self, rank: int, send: Send, files: LocalStore) -> Iterator[tuple[int, Parts]]:
        """Yield the frames of a message, each after the rank that it goes to."""
        if isinstance(send, ToSelf):
            yield rank, self._leave(send, files)
        elif isinstance(send, ToRank):
            yield send.rank, messages.encode(send.message)
        else:
            assert isinstance(send, ToAll | ToOthers)
            parts = messages.encode(send.message)
            for to in range(self.ranks):
                if to != rank or isinstance(send, ToAll):
                    yield to, parts

    def _leave(self, send: ToSelf, files: LocalStore) -> Parts:
        """Leave a rank's messages to itself on this executor; return the frame that stands for them."""
        encoded = [messages.encode(message) for message in send.messages]
        if self.local:
            files.leave(send.name, encoded, lent=send.lent)
            return frame.pack({"kind": _LEFT, "name": send.name})
        data = np.frombuffer(frame.join(encode(encoded)), np.uint8)
        return frame.pack({"kind": _BUNDLE}, {"data": data})
