"""The server's guard: a token, and for servers without one the name by which they were called."""

from __future__ import annotations

import hashlib
import hmac
import re

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = ("/health", "/ready")
"""Paths that need no token: they say that the server is there, which a connection says too."""

_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.ASCII | re.IGNORECASE)


class Guard:
    """Lets requests pass that prove to have the token; the bodies of others are never asked for.

    A server without a token listens at this machine's own addresses, or was told to let anyone in. At its own
    addresses it answers only to their names: a page in a browser that calls it by another name, which its
    author has pointed at 127.0.0.1, is turned away. ``longest_header`` counts a request's line and header:
    h11 has a limit for what has not come as a whole; this one holds however it came.
    """

    def __init__(self, app: ASGIApp, token: str | None, *, local: bool, longest_header: int) -> None:
        self._app, self._local, self._longest = app, local, longest_header
        self._digest = None if token is None else _digest(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refusal: JSONResponse | None = None
            if _length(scope) > self._longest:
                message = f"the header has more than {self._longest} bytes"
                refusal = error(431, "header", message, close=True)
            elif "transfer-encoding" in headers and (
                "content-length" in headers or scope["http_version"] != "1.1"
            ):
                # Proxies and servers may disagree where such a request ends.
                message = "send either Content-Length or, in HTTP/1.1, Transfer-Encoding"
                refusal = error(400, "length", message, close=True)
            elif self._digest is not None:
                if scope["path"] not in OPEN_PATHS and not self._proves(headers):
                    refusal = error(401, "token", "send the header Authorization: Bearer TOKEN", close=True)
                    refusal.headers["WWW-Authenticate"] = "Bearer"
            elif self._local and not _LOCAL.fullmatch(headers.get("host", "")):
                refusal = error(421, "host", "this server answers to localhost alone", close=True)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _proves(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        assert self._digest is not None
        # Digests are of one length: the time that it takes says nothing about the token.
        return hmac.compare_digest(_digest(token.strip()), self._digest) and scheme.lower() == "bearer"


def error(
    status: int, code: str, message: str, *, retry_after: int | None = None, close: bool = False
) -> JSONResponse:
    """Return an error as JSON; ``code`` stays the same, ``message`` is for the client's author.

    ``close`` ends the connection, for the body was not read; ``retry_after`` is in seconds.
    """
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    if close:
        headers["Connection"] = "close"
    plain = message.encode("utf-8", "replace").decode()  # it may quote half of a surrogate pair
    return JSONResponse({"error": {"code": code, "message": plain}}, status, headers)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _length(scope: Scope) -> int:
    """Return the bytes of a request's line and header."""
    line = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"])
    return line + sum(len(name) + len(value) + 4 for name, value in scope["headers"])
