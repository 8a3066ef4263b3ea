"""All-to-all exchange among the ranks of a group: each sends each other one messages, and an end mark."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Mapping, Sequence

from sparkdl.allreduce.transport.direct.connection import END, FRAME, ClosedError, Connection
from sparkdl.allreduce.transport.direct.peer import LostPeerError
from sparkdl.frame import Buffer, Parts

_EARLY_BYTES = 256 << 10
"""So much is sent at once, while the rank computes what else it has to send."""


class Mesh:
    """The connections of a rank during a group.

    Args:
        group: number of the group.
        links: connection to each rank but this one.
        patience: seconds without a byte after which a rank counts as lost.
    """

    def __init__(self, group: int, links: Mapping[int, Connection], patience: float) -> None:
        self._group = group
        self._links = links
        self._patience = patience
        self._ranks = {link.fileno(): rank for rank, link in links.items()}

    def exchange(self, number: int, sends: Iterable[tuple[int, Parts]]) -> list[Buffer]:
        """Send messages, and return those that all other ranks have sent, in the ranks' order.

        Args:
            number: which exchange of the group this is.
            sends: each message after the rank that it goes to. Its memory may be used for something else
                once this has returned.

        Raises:
            LostPeerError: if a rank is gone or silent.
        """
        links = self._links
        for to, parts in sends:
            link = links[to]
            link.queue(FRAME, number, self._group, parts)
            if link.queued >= _EARLY_BYTES:
                self._flush(to)
        arrived: dict[int, list[Buffer]] = {rank: [] for rank in links}
        sending = {rank for rank in links if not self._end(rank, number)}
        # What has come before this was asked for, too.
        receiving = {rank for rank in links if not self._receive(rank, number, arrived[rank])}
        while sending or receiving:
            for rank, events in self._wait(sending, receiving):
                if events & ~select.POLLOUT and rank in receiving:
                    if self._receive(rank, number, arrived[rank]):
                        receiving.discard(rank)
                elif events & ~select.POLLOUT:  # only an error is reported where nothing is awaited
                    raise LostPeerError(rank, "the connection was closed")
                if events & select.POLLOUT and rank in sending and self._flush(rank):
                    sending.discard(rank)
        return [data for rank in sorted(arrived) for data in arrived[rank]]

    def _end(self, rank: int, number: int) -> bool:
        self._links[rank].queue(END, number, self._group)
        return self._flush(rank)

    def _flush(self, rank: int) -> bool:
        try:
            return self._links[rank].flush()
        except ClosedError as error:
            raise LostPeerError(rank, str(error)) from None

    def _receive(self, rank: int, number: int, into: list[Buffer]) -> bool:
        """Take what has arrived; return whether that was everything."""
        link = self._links[rank]
        try:
            while (found := link.receive()) is not None:
                if found.kind not in (FRAME, END) or (found.number, found.group) != (number, self._group):
                    raise ClosedError(f"exchange {found.number} of group {found.group} came for {number}")
                if found.kind == END:
                    return True
                into.append(found.data)
        except ClosedError as error:
            raise LostPeerError(rank, str(error)) from None
        return False

    def _wait(self, sending: set[int], receiving: set[int]) -> Sequence[tuple[int, int]]:
        poll = select.poll()
        for rank in sending | receiving:
            wanted = (select.POLLOUT if rank in sending else 0) | (select.POLLIN if rank in receiving else 0)
            poll.register(self._links[rank], wanted)
        begin = time.monotonic()
        found = poll.poll(self._patience * 1000)
        if not found:
            silent = min(receiving or sending)
            raise LostPeerError(silent, f"silent for {time.monotonic() - begin:.0f} s")
        return [(self._ranks[fd], events) for fd, events in found]
