"""A peer of direct exchange: a Python process, with an id and an address."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from sparkdl.wire import frame
from sparkdl.wire.frame import Frame, Parts

KIND = "peer"
"""Kind of the frame by which a task tells the driver where it runs."""

ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that takes part, and where it listens."""

    id: bytes  # random, made when it begins to listen: a process that begins anew is another peer
    host: str  # address of the network interface by which it reaches the driver
    port: int  # port there

    def pack(self) -> Parts:
        """Return it as a frame."""
        return frame.pack({"kind": KIND, "id": self.id.hex(), "host": self.host, "port": self.port})

    @classmethod
    def read(cls, found: Frame) -> Peer:
        """Read what :meth:`pack` returned."""
        return cls(bytes.fromhex(found.meta["id"]), found.meta["host"], found.meta["port"])


class LostPeerError(Exception):
    """A rank cannot be reached, or does not answer.

    Args:
        rank: which one; ``None`` if that is not known.
        reason: what was seen.
        gone: whether every process that might have run it is gone.
    """

    def __init__(self, rank: int | None, reason: str, *, gone: bool = False) -> None:
        super().__init__(rank, reason)
        self.rank = rank
        self.reason = reason
        self.gone = gone


def open_socket(host: str) -> socket.socket:
    """Return a TCP socket of the family that an address has."""
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)


def own_address(driver: str) -> str:
    """Return the address by which this machine reaches the driver's, without sending anything.

    Raises OSError if the driver's name is unknown here.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(driver, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        host: str = probe.getsockname()[0]
        return host
