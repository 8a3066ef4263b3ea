"""All-to-all exchange among the ranks of a group: each sends each other one messages, and an end mark."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from sparkdl.allreduce.transport.direct.connection import ALL, END, FRAME, ClosedError, Connection
from sparkdl.allreduce.transport.direct.peer import LostPeerError
from sparkdl.wire import frame
from sparkdl.wire.frame import Buffer, Parts

_EARLY_BYTES = 256 << 10  # so much is sent at once, while the rank computes what else it has to send

Arrived = dict[int, list[tuple[int, Buffer]]]
"""Sender and message of what has arrived, by rank."""


class Mesh:
    """The connections of a process during a group.

    ``own`` are the ranks that it runs, ``links`` connections to each other rank; ranks of one process have
    the same. After ``patience`` seconds without a byte a rank counts as lost.
    """

    def __init__(
        self, group: int, own: Sequence[int], links: Mapping[int, Connection], patience: float
    ) -> None:
        self._group = group
        self._own = own
        self._links = links
        self._patience = patience
        # A process is known by the first of its ranks.
        self._ranks = {link.fileno(): rank for rank, link in sorted(links.items(), reverse=True)}
        # Each begins with another one: if all sent to one first, its link would lose packets.
        order = sorted(self._ranks.values(), key=lambda rank: (rank < own[0], rank))
        self._peers = {rank: links[rank] for rank in order}

    def exchange(self, number: int, sends: Iterable[tuple[int, int, Parts]]) -> dict[int, list[Buffer]]:
        """Send messages, each after sender and receiver; return what has arrived for each rank here.

        The receiver ``ALL`` is every rank but the sender. A message's memory may be used for something else
        once this has returned, and once the next rank of this process sends. What has arrived is in the
        senders' order; what was sent to all ranks of one process is the same memory. Raises LostPeerError if
        a rank is gone or silent.
        """
        arrived: Arrived = {rank: [] for rank in self._own}
        for source, to, parts in sends:
            self._send(number, source, to, parts, arrived)
        peers = self._peers
        sending = {rank for rank in peers if not self._end(rank, number)}
        # What has come before this was asked for, too.
        receiving = {rank for rank in peers if not self._receive(rank, number, arrived)}
        while sending or receiving:
            for rank, events in self._wait(sending, receiving):
                if events & ~select.POLLOUT and rank in receiving:
                    if self._receive(rank, number, arrived):
                        receiving.discard(rank)
                elif events & ~select.POLLOUT:  # only an error is reported where nothing is awaited
                    raise LostPeerError(rank, "the connection was closed")
                if events & select.POLLOUT and rank in sending and self._flush(rank):
                    sending.discard(rank)
        return {
            rank: [data for _, data in sorted(found, key=itemgetter(0))] for rank, found in arrived.items()
        }

    def _send(self, number: int, source: int, to: int, parts: Parts, arrived: Arrived) -> None:
        if len(self._own) > 1:  # the replica's memory is the next rank's
            whole = frame.join(parts)
            parts = [whole]
            for rank in self._own if to == ALL else (to,):
                if rank != source and rank in arrived:
                    arrived[rank].append((source, whole))
        if to in arrived:
            return
        for rank, link in self._peers.items() if to == ALL else ((to, self._links[to]),):
            link.queue(FRAME, number, self._group, parts, source, to)
            if link.queued >= _EARLY_BYTES:
                self._flush(rank)

    def _end(self, rank: int, number: int) -> bool:
        self._peers[rank].queue(END, number, self._group)
        return self._flush(rank)

    def _flush(self, rank: int) -> bool:
        try:
            return self._links[rank].flush()
        except ClosedError as error:
            raise LostPeerError(rank, str(error)) from None

    def _receive(self, rank: int, number: int, arrived: Arrived) -> bool:
        """Take what has arrived from a process; return whether that was everything."""
        link = self._peers[rank]
        try:
            while (found := link.receive()) is not None:
                if found.kind not in (FRAME, END) or (found.number, found.group) != (number, self._group):
                    raise ClosedError(f"exchange {found.number} of group {found.group} came for {number}")
                if found.kind == END:
                    return True
                if self._links.get(found.source) is not link or (found.to != ALL and found.to not in arrived):
                    raise ClosedError(f"a message from rank {found.source} to rank {found.to}")
                for to in self._own if found.to == ALL else (found.to,):
                    arrived[to].append((found.source, found.data))
        except ClosedError as error:
            raise LostPeerError(rank, str(error)) from None
        return False

    def _wait(self, sending: set[int], receiving: set[int]) -> Sequence[tuple[int, int]]:
        poll = select.poll()
        for rank in sending | receiving:
            wanted = (select.POLLOUT if rank in sending else 0) | (select.POLLIN if rank in receiving else 0)
            poll.register(self._peers[rank], wanted)
        begin = time.monotonic()
        found = poll.poll(self._patience * 1000)
        if not found:
            silent = min(receiving or sending)
            raise LostPeerError(silent, f"silent for {time.monotonic() - begin:.0f} s")
        return [(self._ranks[fd], events) for fd, events in found]
