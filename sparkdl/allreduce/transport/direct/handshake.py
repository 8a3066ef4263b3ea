"""Two processes prove to each other that they know the fit's secret, before either reads anything else.

Each side draws a random number. The other side answers with an HMAC (RFC 2104, with SHA-256) of both numbers,
of who listens, and of which side answers: an answer that was recorded, or one's own sent back, is worth
nothing. Before that, a side reads a fixed number of bytes and does nothing with them but to compare::

    dialer                      listener
       number          ─────►
                       ◄─────   number, HMAC("listener", ...)
       HMAC("dialer", ...), id ─────►

What follows is neither encrypted nor signed, like Spark's own shuffles unless
``spark.network.crypto.enabled`` is set.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from dataclasses import dataclass, field
from functools import partial

from sparkdl.allreduce.transport.direct.peer import ID_BYTES

_NUMBER_BYTES = 32
_PROOF_BYTES = 32


class RefusedError(Exception):
    """The other side does not know the secret, or is gone."""


@dataclass(eq=False, repr=False)
class Handshake:
    """One side of a handshake over a connected socket that does not block."""

    sock: socket.socket
    secret: bytes
    listener: bytes  # id of the peer that listens
    dialer: bytes | None = None  # that of this process, if it has dialled
    deadline: float = 0.0  # set by the caller, who gives up then
    _number: bytes = field(default_factory=partial(secrets.token_bytes, _NUMBER_BYTES))
    _others: bytes = b""
    _arrived: bytearray = field(default_factory=bytearray)

    def begin(self) -> None:
        """Send the dialer's number, once the socket is connected; raises RefusedError if that is gone."""
        self._send(self._number)

    def advance(self) -> bytes | None:
        """Read what has arrived; return the other side's id once it has proved the secret.

        Raises RefusedError if it has not, or is gone.
        """
        return self._answer() if self.dialer is not None else self._challenge()

    def _answer(self) -> bytes | None:
        """Dialer: check the listener's proof, and send one's own."""
        assert self.dialer is not None
        if not self._read(_NUMBER_BYTES + _PROOF_BYTES):
            return None
        number, proof = bytes(self._arrived[:_NUMBER_BYTES]), bytes(self._arrived[_NUMBER_BYTES:])
        if not hmac.compare_digest(proof, self._proof(b"listener", self._number, number)):
            raise RefusedError("the listener does not know the secret")
        self._send(self._proof(b"dialer", self._number, number, self.dialer) + self.dialer)
        return self.listener

    def _challenge(self) -> bytes | None:
        """Listener: answer the dialer's number, then check its proof."""
        if not self._others:
            if not self._read(_NUMBER_BYTES):
                return None
            self._others = bytes(self._arrived)
            self._arrived.clear()
            self._send(self._number + self._proof(b"listener", self._others, self._number))
        if not self._read(_PROOF_BYTES + ID_BYTES):
            return None
        proof, dialer = bytes(self._arrived[:_PROOF_BYTES]), bytes(self._arrived[_PROOF_BYTES:])
        if not hmac.compare_digest(proof, self._proof(b"dialer", self._others, self._number, dialer)):
            raise RefusedError("the dialer does not know the secret")
        return dialer

    def _proof(self, side: bytes, dialers: bytes, listeners: bytes, dialer: bytes = b"") -> bytes:
        return hmac.digest(self.secret, side + self.listener + dialers + listeners + dialer, "sha256")

    def _read(self, nbytes: int) -> bool:
        """Read at most so many bytes; return whether all of them are there."""
        while len(self._arrived) < nbytes:
            try:
                data = self.sock.recv(nbytes - len(self._arrived))
            except BlockingIOError:
                return False
            except OSError as error:
                raise RefusedError(str(error)) from None
            if not data:
                raise RefusedError("closed")
            self._arrived += data
        return True

    def _send(self, data: bytes) -> None:
        """Send a few bytes, for which a new connection always has room."""
        try:
            sent = self.sock.send(data)
        except OSError as error:
            raise RefusedError(str(error)) from None
        if sent != len(data):
            raise RefusedError("no room for a hundred bytes")
