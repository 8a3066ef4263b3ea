"""A phase as a Spark task of an exchange by shuffles: frames in, messages; messages out, keyed frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sparkdl._spark.frames import key
from sparkdl.access.in_pieces import FRAMES_PER_RANK
from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import Message
from sparkdl.allreduce.plans.base import Inbox, Participant, Phase, Send, ToAll, ToOthers, ToRank, ToSelf
from sparkdl.allreduce.transport.base import perform, read_left, to_driver
from sparkdl.compute.local_store import LocalStore, decode, encode
from sparkdl.compute.stopwatch import Stopwatch
from sparkdl.compute.worker import FitRef
from sparkdl.data.scan.reader import stop_reading
from sparkdl.data.store.partition import Token
from sparkdl.wire import frame
from sparkdl.wire.frame import Buffer, Frame, Parts

_LEFT = "left"
"""Kind of the frame that stands for messages which a rank has left for itself on its executor."""
_BUNDLE = "bundle"
"""Kind of the frame that carries them, where they do not stay."""


@dataclass(frozen=True, slots=True)
class PhaseTask:
    """Runs a phase for whichever rank it is given.

    Attributes:
        fit: the fixed part of the fit.
        phase: the phase.
        ranks: how many ranks get what it sends.
        iteration: completed iterations, for reports of problems.
        token: whether the first frame that arrives is the token of the rank's partition.
        local: whether messages of a rank to itself stay on its executor.
        last: whether no phase follows, so that frames are keyed by where they go.
        fill: whether every rank is to get the same number of frames.
        stays: whether anything may stay; otherwise frames go to the driver without keys.
    """

    fit: FitRef
    phase: Phase
    ranks: int
    iteration: int
    token: bool
    local: bool
    last: bool
    fill: bool
    stays: bool = True

    def __call__(self, rank: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        """Yield keys and frames in turn, or frames alone if nothing stays."""
        clock = Stopwatch()
        token = Token.from_frame(frame.unpack(next(frames))) if self.token else None
        # What has arrived is this task's alone, which may overwrite it: another attempt receives it again.
        arrived = [frame.unpack(data, writable=True) for data in frames if data]
        worker = self.fit.worker()
        me = Participant(rank, self.ranks, worker, clock, token)
        inbox = self._inbox(arrived, worker.files)
        sends = perform(self.phase, me, inbox, last=self.last)
        yield from (
            to_driver(sends, keyed=self.stays) if self.last else self._to_ranks(rank, sends, worker.files)
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
