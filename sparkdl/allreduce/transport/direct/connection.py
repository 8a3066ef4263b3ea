"""A connection to a peer that has proved the secret: headers and payloads, without waiting."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from sparkdl.wire import buffers
from sparkdl.wire.frame import Buffer

HELLO, FRAME, END, FOUND = 1, 2, 3, 4
"""Kinds: "I run this rank of this group", a message of an exchange, that all of them were sent, and "I have
found these processes"."""

_HEADER = struct.Struct("<BxxxIQQII")  # kind, number, group, bytes that follow, sender, receiver

ALL = 2**32 - 1
"""Receiver of a message that is for all ranks of a process."""

_SCRATCH = 64 << 10  # so much is read at a time, unless a payload is longer

_MOST_BUFFERS = 512  # so many buffers are handed to the system at once; Linux takes 1,024


class ClosedError(Exception):
    """The peer is gone, or what it sends makes no sense."""


@dataclass(frozen=True, slots=True)
class Received:
    """What has arrived."""

    kind: int  # which of the kinds above
    # the sender's rank in a HELLO, a checksum in FOUND, else which exchange of the group it belongs to
    number: int
    group: int  # which group
    data: Buffer  # the message of a FRAME, the reader's own
    source: int = 0  # rank that has sent a FRAME
    to: int = 0  # rank that it is for, or ``ALL``


class Connection:
    """A connection over a socket that does not block; a message may have ``limit`` bytes."""

    def __init__(self, sock: socket.socket, peer: bytes) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_dead_hosts(sock)
        self.sock = sock
        self.peer = peer
        self.limit = 0
        self.queued = 0
        self._out: deque[memoryview] = deque()
        self._scratch = bytearray(_SCRATCH)
        self._view = memoryview(self._scratch)
        self._start = self._stop = 0
        self._header: tuple[int, int, int, int, int] | None = None
        self._payload = memoryview(b"")
        self._filled = 0

    def fileno(self) -> int:
        """Return the socket's file descriptor; -1 if it is closed."""
        return self.sock.fileno()

    def queue(
        self,
        kind: int,
        number: int,
        group: int,
        parts: Iterable[Buffer] = (),
        source: int = 0,
        to: int = 0,
    ) -> None:
        """Let something be sent; its memory must stay as it is until :meth:`flush` has returned True."""
        views = [memoryview(part).cast("B") for part in parts]
        nbytes = sum(len(view) for view in views)
        self._out.append(memoryview(_HEADER.pack(kind, number, group, nbytes, source, to)))
        self._out.extend(view for view in views if len(view))
        self.queued += _HEADER.size + nbytes

    def flush(self) -> bool:
        """Send what there is room for; return whether it was all; raises ClosedError if the peer is gone."""
        out = self._out
        while out:
            try:
                sent = self.sock.sendmsg(list(islice(out, _MOST_BUFFERS)))
            except BlockingIOError:
                return False
            except OSError as error:
                raise ClosedError(str(error)) from None
            self.queued -= sent
            while out and sent >= len(out[0]):
                sent -= len(out.popleft())
            if sent:
                out[0] = out[0][sent:]
        return True

    def receive(self) -> Received | None:
        """Return what has arrived next; ``None`` if it is not complete, ClosedError if the peer is gone."""
        if self._header is None:
            while self._stop - self._start < _HEADER.size:
                if not self._fill():
                    return None
            self._begin()
        assert self._header is not None
        payload, length = self._payload, len(self._payload)
        if self._filled < length:
            taken = min(length - self._filled, self._stop - self._start)
            if taken:
                payload[self._filled : self._filled + taken] = self._view[self._start : self._start + taken]
                self._start += taken
                self._filled += taken
            while self._filled < length:
                got = self._recv_into(payload[self._filled :])
                if not got:
                    return None
                self._filled += got
        kind, number, group, source, to = self._header
        self._header, self._payload = None, memoryview(b"")
        return Received(kind, number, group, payload, source, to)

    def close(self) -> None:
        """Close it; what waits is not sent."""
        self._out.clear()
        self.sock.close()

    def _begin(self) -> None:
        kind, number, group, length, source, to = _HEADER.unpack_from(self._scratch, self._start)
        self._start += _HEADER.size
        if kind not in (HELLO, FRAME, END, FOUND) or length > (self.limit if kind == FRAME else 0):
            raise ClosedError(f"a message of kind {kind} with {length} bytes")
        self._header, self._filled = (kind, number, group, source, to), 0
        self._payload = buffers.empty(length).data

    def _fill(self) -> bool:
        """Read some bytes; return whether there were any."""
        if self._start:
            rest = self._stop - self._start
            self._scratch[:rest] = self._scratch[self._start : self._stop]
            self._start, self._stop = 0, rest
        got = self._recv_into(self._view[self._stop :])
        self._stop += got
        return bool(got)

    def _recv_into(self, view: memoryview) -> int:
        """Read into memory; return how many bytes, 0 if there are none yet."""
        try:
            got = self.sock.recv_into(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ClosedError(str(error)) from None
        if not got:
            raise ClosedError("the connection was closed")
        return got


def _notice_dead_hosts(sock: socket.socket) -> None:
    """Let the system notice within half a minute that a machine, or the way to it, is gone.

    Not TCP_USER_TIMEOUT: it ends connections to peers that are there, but read nothing while they compute.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # Linux has them all
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
