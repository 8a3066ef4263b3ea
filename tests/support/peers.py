"""Endpoints, connections and handshakes for tests, all in this process."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from sparkdl.allreduce.transport.direct.connection import Connection
from sparkdl.allreduce.transport.direct.endpoint import Endpoint
from sparkdl.allreduce.transport.direct.peer import Peer

HOST = "127.0.0.1"
SECRET = bytes(range(32))
LIMIT = 256 << 20

T = TypeVar("T")


def at_once(*functions: Callable[[], T], seconds: float = 60) -> list[T | Exception]:
    """Run functions in threads of their own; return what each returns or raises."""
    found: dict[int, T | Exception] = {}

    def run(number: int, function: Callable[[], T]) -> None:
        try:
            found[number] = function()
        except Exception as error:
            found[number] = error

    threads = [
        threading.Thread(target=run, args=(n, function), daemon=True) for n, function in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a thread did not end"
    return [found[n] for n in range(len(functions))]


def endpoints(count: int) -> list[Endpoint]:
    """Return so many endpoints."""
    return [Endpoint(SECRET, HOST) for _ in range(count)]


def meet(
    those: Sequence[Endpoint],
    members: Sequence[Peer] | None = None,
    group: int = 1,
    seconds: float = 10,
    ranks: int | None = None,
) -> list[Any]:
    """Let endpoints meet as ranks 0, 1, ...; return what each has found, or its error."""
    everybody = [one.peer for one in those] if members is None else members
    count = len(those) if ranks is None else ranks

    def run(rank: int, one: Endpoint) -> Mapping[int, Connection]:
        links = one.meet(group, [rank], count, everybody, seconds)
        for link in links.values():
            link.limit = LIMIT
        return links

    return at_once(*(lambda r=r, e=e: run(r, e) for r, e in enumerate(those)))  # type: ignore[misc]


def pair(buffer: int | None = None) -> tuple[socket.socket, socket.socket]:
    """Return a TCP connection over loopback, neither side of which blocks."""
    with socket.socket() as listener:
        if buffer:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        listener.bind((HOST, 0))
        listener.listen(1)
        one = socket.socket()
        if buffer:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        one.connect(listener.getsockname())
        other, _ = listener.accept()
        if buffer:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    one.setblocking(False)
    other.setblocking(False)
    return one, other


def open_files() -> set[tuple[str, str]]:
    """Return each file descriptor of this process with what it is open on.

    Two such sets are compared by what the second has more: that other tests of
    this process close their own files meanwhile is no matter of this one. Nor
    are connections to a JVM, which py4j opens whenever the garbage collector
    has it drop an object.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if not (target.startswith("socket:") and _is_py4j(int(name))):
                found.add((name, target))
    return found


def _is_py4j(file: int) -> bool:
    context = sys.modules.get("pyspark.core.context")
    gateway = context and context.SparkContext._gateway
    if not gateway:
        return False
    with socket.socket(fileno=os.dup(file)) as sock, suppress(OSError):
        return bool(sock.getpeername()[1:2] == (gateway.gateway_parameters.port,))
    return False
