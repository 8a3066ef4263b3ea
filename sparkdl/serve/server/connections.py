"""uvicorn's connections, with limits that it does not have: their number, and time for a request's header."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def connections(limit: int, seconds: float) -> type[asyncio.Protocol]:
    """Return a class of connections for uvicorn's option ``http``.

    Args:
        limit: most connections. One more closes the oldest of those whose client has not sent a whole
            request, or is closed itself if there is none.
        seconds: that a client has for the header of a request, from the connection's start or the header's
            first byte.
    """

    class Connection(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None
        _made = 0.0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._made = self.loop.time()
            self._expect_header()
            if len(self.connections) > limit:
                others: set[Any] = self.connections
                waiting = [other for other in others if other._owes()]
                last = min(waiting, key=lambda other: other._made, default=self)
                others.discard(last)  # abort() tells it later, and others may come before
                last.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._waits():
                self._expect_header()
            else:
                self._header_is_there()

        def connection_lost(self, exc: Exception | None) -> None:
            self._header_is_there()
            super().connection_lost(exc)

        def timeout_keep_alive_handler(self) -> None:
            if self.transport.get_write_buffer_size():  # the client does not read
                self.transport.abort()
            else:
                super().timeout_keep_alive_handler()

        def _waits(self) -> bool:
            """Whether no answer is being made: a header is awaited, or a body that nobody asked for."""
            return self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE

        def _owes(self) -> bool:
            """Whether it is the client's turn to send."""
            return self._waits() or self.conn.their_state is h11.SEND_BODY

        def _expect_header(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self.transport.abort)

        def _header_is_there(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Connection
