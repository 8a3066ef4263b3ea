"""uvicorn's connections, with limits that it does not have: their number, and clocks.

A client may let a server wait in four ways: it does not finish the TLS handshake, a header or a body, or it
does not read its answer. The body's clock is in ``bodies.py``, the three others are here. A connection counts
from ``accept``, and any connection that waits for its client may be closed for a new one.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from contextlib import suppress
from itertools import chain
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

try:
    import fcntl
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

_LEAST_READ = 16 << 10
"""A client that has not read its answer must read so many bytes in the time for a header."""

_MOST_UNSENT = 64 << 10
"""The system takes so many bytes of answers that it cannot send yet. By itself it takes megabytes: a client
that asks for ``/health`` again and again and reads nothing has tens of thousands of answers made."""

_PIPELINED_SECONDS = 0.003
"""Between two requests, of all connections, that were sent before the answer to the one before. Clients of
HTTP do not do that; eight that send ``/health`` by the hundred would take each turn of the loop."""

_PIPELINED_MOST = 1.0  # none of them waits longer, however many have asked and gone


def connections(limit: int, seconds: float, tls: ssl.SSLContext | None = None) -> type[asyncio.Protocol]:
    """Return a class of connections for uvicorn's option ``http``.

    From ``accept`` on there are ``limit`` at most. One more closes one of those that wait for their client:
    first those that have had no answer yet, and of these the one that waits longest. If none waits, the new
    one is closed. A client has ``seconds`` for the TLS handshake, for the header of a request, from the
    connection's start or the header's first byte, and for reading the next bytes of an answer. With ``tls``,
    connections begin with a handshake; uvicorn's own comes before it counts.
    """
    strangers: dict[Any, None] = {}
    known: dict[Any, None] = {}  # have had an answer; both in the order in which the clients' turns began
    pipelined_until = 0.0

    class Connection(H11Protocol):
        _clock: asyncio.TimerHandle | None = None
        _next: asyncio.TimerHandle | None = None
        _handshake: asyncio.Task[None] | None = None
        _answered = False
        _header_since: float | None = None
        _unsent = 0
        _read_at = 0.0
        _has_read = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._raw = transport
            _limit_unsent(transport)
            self._read_at = self._header_since = self.loop.time()
            self._begin_turn()
            self._clock = self.loop.call_later(seconds / 4, self._look)
            if tls is None:
                super().connection_made(transport)
            else:  # a client that says nothing costs no handshake
                self.connections.add(self)
                self.transport = transport
            if len(self.connections) > limit:
                self._make_room()

        def data_received(self, data: bytes) -> None:
            if self.transport is self._raw and tls is not None:
                if self._handshake is None:
                    self._early: list[bytes] = []
                    self._handshake = self.loop.create_task(self._shake_hands(self._raw, tls, data))
                else:  # the last part of the handshake has brought a request
                    self._early.append(data)
                return
            idle = self.conn.their_state is h11.IDLE
            super().data_received(data)
            if idle and self.conn.their_state is not h11.IDLE:
                self._begin_turn()
            if not self._waits():
                self._header_since = None
            elif self._header_since is None:
                self._header_since = self.loop.time()

        def resume_writing(self) -> None:
            self._has_read = True
            super().resume_writing()

        def on_response_complete(self) -> None:
            self._answered = self._has_read = True
            self._begin_turn()
            if not self.conn.trailing_data[0]:
                super().on_response_complete()
                return
            nonlocal pipelined_until
            now = self.loop.time()
            pipelined_until = min(max(pipelined_until + _PIPELINED_SECONDS, now), now + _PIPELINED_MOST)
            self._next = self.loop.call_at(pipelined_until, super().on_response_complete)

        def connection_lost(self, exc: Exception | None) -> None:
            self._end()
            if self._handshake is None:
                super().connection_lost(exc)

        def timeout_keep_alive_handler(self) -> None:
            if self._raw.get_write_buffer_size():  # the client does not read
                self._raw.abort()
            else:
                super().timeout_keep_alive_handler()

        async def _shake_hands(self, raw: asyncio.Transport, tls: ssl.SSLContext, first: bytes) -> None:
            """Exchange the raw transport for one with TLS, given the bytes that it has received already."""
            secure = None
            times: dict[str, Any] = {"ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": seconds}
            started = self.loop.create_task(self.loop.start_tls(raw, self, tls, server_side=True, **times))
            while raw.get_protocol() is self and not started.done():
                await asyncio.sleep(0)
            await asyncio.sleep(0)  # the new protocol learns of its connection
            protocol = raw.get_protocol()
            if isinstance(protocol, asyncio.BufferedProtocol):  # the connection is not lost meanwhile
                _receive(protocol, first)
            try:
                secure = await started
            except OSError:  # the client spoke no TLS, or not ours, or took too long
                pass
            self._handshake = None
            if secure is None or raw.is_closing():
                self._end()
                raw.abort()
                return
            self._header_since = self.loop.time()
            super().connection_made(secure)
            for data in self._early:
                self.data_received(data)

        def _make_room(self) -> None:
            last = next((other for other in chain(strangers, known) if other._owes()), self)
            last._end()  # abort() tells it later, and others may come before
            last._raw.abort()

        def _begin_turn(self) -> None:
            strangers.pop(self, None)
            known.pop(self, None)
            (known if self._answered else strangers)[self] = None

        def _waits(self) -> bool:
            """Whether no answer is being made: a header is awaited, or a body that nobody asked for."""
            return self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE

        def _owes(self) -> bool:
            """Whether it is the client's turn, to send or to read."""
            waits = self._waits() or self.conn.their_state is h11.SEND_BODY
            return waits or self._raw.get_write_buffer_size() > 0

        def _look(self) -> None:
            """Close the connection if its client has taken too long; look again later."""
            now = self.loop.time()
            self._clock = self.loop.call_later(seconds / 4, self._look)
            unsent = _unsent(self._raw)
            if not unsent or self._has_read or unsent <= self._unsent - _LEAST_READ:
                self._unsent, self._read_at, self._has_read = unsent, now, False
            self._unsent = max(self._unsent, unsent)
            header = self._handshake is None and self._header_since is not None
            if now - self._read_at >= seconds or (header and now - (self._header_since or 0.0) >= seconds):
                self._raw.abort()

        def _end(self) -> None:
            self.connections.discard(self)
            strangers.pop(self, None)
            known.pop(self, None)
            for timer in (self._clock, self._next):
                if timer is not None:
                    timer.cancel()
            self._clock = self._next = None

    return Connection


def _receive(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Give a protocol bytes that its transport has read before."""
    while data:
        buffer = memoryview(protocol.get_buffer(len(data)))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]


def _limit_unsent(transport: asyncio.Transport) -> None:
    found = transport.get_extra_info("socket")
    if found is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with suppress(OSError):  # it is no TCP, or gone
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MOST_UNSENT)


def _unsent(transport: asyncio.Transport) -> int:
    """Return how many bytes of an answer the client has not got, 0 if the system has taken all of them."""
    waiting = transport.get_write_buffer_size()
    if not waiting or termios is None:
        return waiting
    try:  # the system asks for more only when a third of its megabytes have gone
        found = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return waiting
    return waiting + int.from_bytes(found, sys.byteorder)
