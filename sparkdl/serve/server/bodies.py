"""Reads the bodies of requests, of bounded length and in bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

_LINGER = 2.0
_TIMES = 8


class Refused(Exception):  # noqa: N818 -- an answer, not a failure
    """A body that is not read, with the answer.

    Args:
        status: of HTTP.
        code: a word that stays the same.
        message: for the client's author.
        retry_after: seconds after which it may work.
    """

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after


class Bodies:
    """Reads bodies, whose bytes have a limit each and all together.

    Args:
        max_body: most bytes of one.
        timeout: seconds for one.
    """

    def __init__(self, max_body: int, timeout: float) -> None:
        self._max_body, self._timeout = max_body, timeout
        self._left = _TIMES * max_body

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Read a request's body; its bytes count until the end of ``with``.

        Raises:
            Refused: if it is too long, too slow, encoded, or the server holds too many.
        """
        length = self._declared(request)
        if length > self._left:
            raise Refused(503, "busy", "too many requests are being read", retry_after=1)
        self._left -= length
        try:
            yield await self._read(request)
        finally:
            self._left += length

    def _declared(self, request: Request) -> int:
        """Return how many bytes a body may have, by its headers."""
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, "encoding", "send the body without Content-Encoding")
        found = request.headers.get("content-length")
        if found is None or "transfer-encoding" in request.headers:
            return self._max_body
        return min(int(found), self._max_body)  # h11 has checked that it is a number

    async def _read(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self._timeout):
                if int(request.headers.get("content-length", 0)) <= self._max_body:
                    async for chunk in request.stream():
                        body += chunk
                        if len(body) > self._max_body:
                            break
                    else:
                        return bytes(body)
        except TimeoutError:
            raise Refused(408, "timeout", f"the body took longer than {self._timeout:g} seconds") from None
        except ClientDisconnect:
            raise Refused(400, "disconnect", "the client has gone") from None
        if "expect" not in request.headers:  # such a client waits to be asked
            await self._discard(request)
        raise Refused(413, "too-large", f"the body has more than {self._max_body} bytes")

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
