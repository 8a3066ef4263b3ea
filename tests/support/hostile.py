"""Clients that want to hold a server, each of one kind, over loopback.

A client opens connections one after the other and keeps them. :func:`attack` runs several for a bounded time.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

HEAD = b"Host: localhost\r\n"
PREDICT = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MIB = 1 << 20


@dataclass(frozen=True)
class Target:
    """A server.

    Attributes:
        port: at 127.0.0.1.
        tls: context of connections with TLS.
        header: what else each request's header has, such as a token.
    """

    port: int
    tls: ssl.SSLContext | None = None
    header: bytes = b""

    async def raw(self) -> socket.socket:
        """Return a connection without TLS, which holds few bytes that nobody reads."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(5):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        except BaseException:
            sock.close()
            raise
        return sock

    async def open(self) -> asyncio.StreamWriter:
        """Return a connection, with TLS if the server has it. What it sends, nobody reads."""
        sock = await self.raw()
        host = "localhost" if self.tls else None
        _, writer = await asyncio.open_connection(sock=sock, ssl=self.tls, server_hostname=host)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        return writer


Hold = Callable[[Target], Awaitable[None]]
"""Opens one connection and holds it until it is cancelled or closed."""


async def silent(target: Target) -> None:
    """Connect, and say nothing."""
    with await target.raw() as sock:
        await asyncio.get_running_loop().sock_recv(sock, 1)


async def half_a_handshake(target: Target) -> None:
    """Begin a handshake of TLS, and stop."""
    with await target.raw() as sock:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, b"\x16\x03\x01\x02\x00\x01\x00")
        await loop.sock_recv(sock, 1)


async def slow_header(target: Target) -> None:
    """Send a header, byte by byte."""
    writer = await target.open()
    try:
        writer.write(b"GET /health HTTP/1.1\r\n" + HEAD + b"X: ")
        while not writer.is_closing():
            await asyncio.sleep(0.2)
            writer.write(b"x")
            await writer.drain()
    finally:
        writer.transport.abort()


async def never_reads(target: Target) -> None:
    """Ask again and again, and read no answer."""
    writer = await target.open()
    try:
        ask = (b"GET /health HTTP/1.1\r\n" + HEAD + b"\r\n") * 500
        while not writer.is_closing():
            writer.write(ask)
            await writer.drain()
            await asyncio.sleep(0.02)
    finally:
        writer.transport.abort()


async def announces(target: Target) -> None:
    """Announce the longest body, and send nothing of it."""
    await _body(target, b"Content-Length: %d\r\n\r\n" % (16 * MIB), b"", 0)


async def nearly_all(target: Target) -> None:
    """Send a long body but for its last byte."""
    await _body(target, b"Content-Length: %d\r\n\r\n" % MIB, b" " * (MIB - 1), 0)


async def slow_body(target: Target) -> None:
    """Send a body of pieces, a byte each."""
    await _body(target, b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n{\r\n", 1000)


async def _body(target: Target, header: bytes, piece: bytes, more: int) -> None:
    writer = await target.open()
    try:
        writer.write(PREDICT + target.header + header + piece)
        for _ in range(more):
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.write(piece)
        while not writer.is_closing():
            await writer.drain()
            await asyncio.sleep(0.5)
    finally:
        writer.transport.abort()


async def hangs_up(target: Target) -> None:
    """Reset the connection in the middle of a request."""
    sock = await target.raw()
    await asyncio.get_running_loop().sock_sendall(sock, PREDICT + b"Content-Length: 100\r\n\r\n{")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    await asyncio.sleep(0.1)


async def garbage(target: Target) -> None:
    """Send what is no HTTP, or what is forbidden."""
    rng = random.Random()
    both = PREDICT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    junk = (
        rng.randbytes(5000),
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        both,
        PREDICT + target.header + b"Content-Length: 900\r\n\r\n" + b"[" * 900,
        b"GET /health HTTP/1.1\r\nHost: [::1]evil\r\n\r\n",
        b"GET /%d HTTP/1.1\r\n" % rng.randrange(10**9) + HEAD + b"\r\n",
    )
    writer = await target.open()
    try:
        writer.write(rng.choice(junk))
        await writer.drain()
        await asyncio.sleep(0.2)
    finally:
        writer.transport.abort()


ALL: dict[str, Hold] = {
    hold.__name__: hold
    for hold in (
        silent, half_a_handshake, slow_header, never_reads, announces, nearly_all, slow_body, hangs_up,
        garbage,
    )
}  # fmt: skip
"""All kinds, by name."""


async def attack(
    target: Target, kinds: Sequence[Hold], connections: int, seconds: float, pause: float = 0.05
) -> int:
    """Hold so many connections of each kind for a time; return how often one was opened.

    One that is closed is opened again after a pause.
    """
    opened, over = 0, False

    async def again(hold: Hold) -> None:
        nonlocal opened
        while not over:
            opened += 1
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await hold(target)
            await asyncio.sleep(pause)

    tasks = [asyncio.create_task(again(hold)) for hold in kinds for _ in range(connections)]
    _, pending = await asyncio.wait(tasks, timeout=seconds)
    over = True
    while pending:  # asyncio loses a cancellation that comes with what was waited for
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [e for e in ended if isinstance(e, Exception)]
    if failures:
        raise failures[0]
    return opened
