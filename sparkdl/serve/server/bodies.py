"""Reads the bodies of requests, of bounded length and in bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

_LINGER = 2.0
_TIMES = 8


class Refused(Exception):  # noqa: N818 -- an answer, not a failure
    """A body that is not read, with the answer.

    ``code`` is a word that stays the same, ``message`` for the client's author, ``retry_after`` in seconds.
    """

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after


@dataclass(slots=True, eq=False)
class _Body:
    """A body of which some bytes have come."""

    clock: asyncio.Timeout
    size: int = 0
    complete: bool = False
    displaced: bool = False


class Bodies:
    """Reads bodies, whose bytes have a limit each and all together.

    Bytes count when they arrive, not when a header announces them. Where there is no room for more, the
    longest body that is not complete makes room: who sends much and slowly keeps out nobody who sends little.
    A body may have ``max_body`` bytes, and ``timeout`` seconds.
    """

    def __init__(self, max_body: int, timeout: float) -> None:
        self._max_body, self._timeout = max_body, timeout
        self._most = self._left = _TIMES * max_body
        self._held: set[_Body] = set()

    @property
    def full(self) -> bool:
        """Whether complete bodies, which nothing displaces, leave no room for one more of the longest."""
        return sum(body.size for body in self._held if body.complete) > self._most - self._max_body

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Read a request's body; its bytes count until the end of ``with``.

        Raises Refused if it is too long, too slow, encoded, or the server holds too many.
        """
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, "encoding", "send the body without Content-Encoding")
        body = _Body(asyncio.timeout(self._timeout))
        self._held.add(body)
        try:
            yield await self._read(request, body)
        finally:
            self._release(body)

    async def _read(self, request: Request, body: _Body) -> bytes:
        data = bytearray()
        try:
            async with body.clock:
                if int(request.headers.get("content-length", 0)) <= self._max_body:  # h11 has checked it
                    async for chunk in request.stream():
                        if len(data) + len(chunk) > self._max_body:
                            break
                        self._take(body, len(chunk))
                        data += chunk
                    else:
                        body.complete = True
                        return bytes(data)
        except TimeoutError:
            if body.displaced:
                raise _busy() from None
            raise Refused(408, "timeout", f"the body took longer than {self._timeout:g} seconds") from None
        except ClientDisconnect:
            raise Refused(400, "disconnect", "the client has gone") from None
        self._release(body)
        if "expect" not in request.headers:  # such a client waits to be asked
            await self._discard(request)
        raise Refused(413, "too-large", f"the body has more than {self._max_body} bytes")

    def _take(self, body: _Body, nbytes: int) -> None:
        """Count bytes that have come; make room for them, if need be."""
        if body.displaced:
            raise _busy()
        body.size += nbytes
        self._left -= nbytes
        while self._left < 0:
            longest = max((each for each in self._held if not each.complete), key=lambda each: each.size)
            self._release(longest)
            if longest is body:
                raise _busy()
            longest.displaced = True
            if not longest.clock.expired():
                longest.clock.reschedule(asyncio.get_running_loop().time())  # its own task answers

    def _release(self, body: _Body) -> None:
        if body in self._held:
            self._held.discard(body)
            self._left += body.size

    async def _discard(self, request: Request) -> None:
        """Read some of what is too much: a client that still writes would not read the answer."""
        left = _TIMES * self._max_body
        try:
            async with asyncio.timeout(_LINGER):
                async for chunk in request.stream():
                    left -= len(chunk)
                    if left < 0:
                        return
        except (TimeoutError, ClientDisconnect, RuntimeError):
            return  # the answer may not arrive


def _busy() -> Refused:
    return Refused(503, "busy", "too many requests are being read", retry_after=1)
