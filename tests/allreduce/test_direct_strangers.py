"""Strangers at the door of a group: they neither disturb it nor learn anything."""

from __future__ import annotations

import hmac
import os
import random
import resource
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest
from support.peers import HOST, SECRET, at_once, endpoints, open_files

from sparkdl.allreduce.transport.direct.endpoint import Endpoint
from sparkdl.allreduce.transport.direct.mesh import Mesh
from sparkdl.allreduce.transport.direct.peer import LostPeerError

LEARNED = 64
"""A random number and a proof: more no stranger gets to see."""


class Stranger:
    """Connects to some ports over and over, and notes what it is told."""

    def __init__(self, ports: list[int], attack: Callable[[Stranger, socket.socket], None]) -> None:
        self.heard: list[bytes] = []
        self.tries = 0
        self._ports, self._attack = ports, attack
        self._kept: list[socket.socket] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Stranger:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        for sock in self._kept:
            self.heard.append(self.told(sock, 0))
            sock.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            sock = socket.socket()
            sock.settimeout(0.3)
            self._kept.append(sock)
            self.tries += 1
            with suppress(OSError):
                sock.connect((HOST, random.choice(self._ports)))
                self._attack(self, sock)
            if len(self._kept) > 200:
                old = self._kept.pop(0)
                self.heard.append(self.told(old, 0))
                old.close()
            time.sleep(0.001)

    def told(self, sock: socket.socket, seconds: float = 0.3, most: int = 1 << 20) -> bytes:
        """Return what a socket is sent."""
        data = b""
        with suppress(OSError):
            sock.settimeout(seconds)
            while len(data) < most and (more := sock.recv(most - len(data))):
                data += more
        return data


def silent(_: Stranger, sock: socket.socket) -> None:
    """Send nothing."""


def garbage(_: Stranger, sock: socket.socket) -> None:
    sock.sendall(secrets.token_bytes(random.randrange(1, 5000)))


def a_web_browser(_: Stranger, sock: socket.socket) -> None:
    sock.sendall(b"GET / HTTP/1.1\r\nHost: executor\r\n\r\n" * 10)


def half(_: Stranger, sock: socket.socket) -> None:
    sock.sendall(bytes(32))


def three_quarters(self: Stranger, sock: socket.socket) -> None:
    sock.sendall(bytes(32))
    answer = self.told(sock, most=LEARNED)
    self.heard.append(answer)
    sock.sendall(answer[:20])


def hangs_up(_: Stranger, sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.sendall(bytes(random.randrange(1, 40)))
    sock.close()


def another_secret(self: Stranger, sock: socket.socket) -> None:
    number, own = secrets.token_bytes(32), b"I" * 16
    sock.sendall(number)
    answer = self.told(sock, most=LEARNED)
    self.heard.append(answer)
    proof = hmac.digest(b"another", b"dialer" + bytes(16) + number + answer[:32] + own, "sha256")
    sock.sendall(proof + own)


def reflects(self: Stranger, sock: socket.socket) -> None:
    sock.sendall(secrets.token_bytes(32))
    answer = self.told(sock, most=LEARNED)
    self.heard.append(answer)
    sock.sendall(answer[32:] + b"I" * 16)


def a_huge_length(_: Stranger, sock: socket.socket) -> None:
    sock.sendall(struct.pack("<BxxxIQQII", 2, 0, 1, 2**62, 0, 0) + bytes(200))


def replays(_: Stranger, sock: socket.socket) -> None:
    # What a member sent at the time: its number, proof and id, a greeting, a message.
    rng = random.Random(0)
    sock.sendall(rng.randbytes(32))
    time.sleep(0.01)
    sock.sendall(rng.randbytes(48) + struct.pack("<BxxxIQQII", 1, 1, 1, 0, 0, 0) + bytes(5000))


ATTACKS = (
    silent, garbage, a_web_browser, half, three_quarters, hangs_up, another_secret, reflects, a_huge_length,
    replays,
)  # fmt: skip


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    before = open_files()
    with ExitStack() as opened:
        yield opened
    assert not open_files() - before


def group(those: list[Endpoint], number: int, pause: float) -> None:
    """Let ranks meet, each a while after the one before, and exchange ten times; check what they get."""
    members, count = [one.peer for one in those], len(those)

    def run(rank: int) -> None:
        time.sleep(rank * pause)
        links = those[rank].meet(number, [rank], count, members, 10)
        for link in links.values():
            link.limit = 1 << 20
        mesh = Mesh(number, [rank], links, 10)
        for turn in range(10):
            sends = ((rank, to, [bytes([rank, to, turn]) * 10_000]) for to in links)
            got = [bytes(data) for data in mesh.exchange(turn, sends)[rank]]
            assert got == [bytes([other, rank, turn]) * 10_000 for other in range(count) if other != rank]
            time.sleep(pause / 10)

    found = at_once(*(lambda r=r: run(r) for r in range(count)))  # type: ignore[misc]
    assert found == [None] * count


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.__name__ for attack in ATTACKS])
def test_a_stranger_neither_disturbs_nor_learns(stack: ExitStack, attack: Any) -> None:
    those = [stack.enter_context(closing(one)) for one in endpoints(3)]
    with Stranger([one.peer.port for one in those], attack) as stranger:
        group(those, 1, 0.1)
        group(those, 2, 0.05)
    assert stranger.tries > 1
    assert all(len(data) <= LEARNED for data in stranger.heard)
    # What it is told is new each time.
    told = [data[:32] for data in stranger.heard if len(data) >= 32]
    assert len(set(told)) == len(told)


def test_a_dialogue_that_was_recorded_on_the_wire(stack: ExitStack) -> None:
    # A stranger between two members records what both say, and says it again.
    one, other = (stack.enter_context(closing(made)) for made in endpoints(2))
    if one.peer.id > other.peer.id:
        one, other = other, one  # the first dials
    between = stack.enter_context(socket.create_server((HOST, 0)))
    heard: list[bytes] = []

    def pass_on() -> None:
        near, _ = between.accept()
        far = socket.create_connection((HOST, other.peer.port))
        with near, far:
            for source, to, nbytes in ((near, far, 32), (far, near, 64), (near, far, 48)):
                data = b""
                while len(data) < nbytes and (more := source.recv(nbytes - len(data))):
                    data += more
                heard.append(data)
                to.sendall(data)
            time.sleep(0.2)

    behind = type(other.peer)(other.peer.id, HOST, between.getsockname()[1])
    at_once(
        pass_on,
        lambda: one.meet(1, [0], 2, [one.peer, behind], 0.5),
        lambda: other.meet(1, [1], 2, [one.peer, behind], 0.5),
    )
    assert [len(data) for data in heard] == [32, 64, 48]
    told: list[bytes] = []

    def replay() -> None:
        time.sleep(0.05)
        with socket.create_connection((HOST, other.peer.port)) as sock:
            sock.settimeout(1)
            sock.sendall(heard[0])
            told.append(sock.recv(64))
            sock.sendall(heard[2])
            sock.sendall(struct.pack("<BxxxIQQII", 1, 0, 2, 0, 0, 0))
            with suppress(OSError):
                told.append(sock.recv(100))

    _, found = at_once(replay, lambda: other.meet(2, [1], 2, [one.peer, other.peer], 0.5))
    assert isinstance(found, Exception)
    assert told[0][:32] != heard[1][:32]
    assert b"".join(told[1:]) == b""


@pytest.mark.parametrize("count", [2000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("talks", [False, True], ids=["silent", "half a handshake"])
def test_many_strangers_at_once(stack: ExitStack, count: int, talks: bool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 1500:
        pytest.skip("too few files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 1500), hard))
    stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    those = [stack.enter_context(closing(one)) for one in endpoints(2)]
    strangers = stack.enter_context(ExitStack())

    def flood() -> int:
        opened = []
        for n in range(count):
            sock = strangers.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex((HOST, those[n % 2].peer.port))
            opened.append(sock)
            if talks and n >= 50:
                with suppress(OSError):
                    opened[n - 50].send(bytes(32))
        return len(opened)

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        time.sleep(0.05)
        group(those, 1, 0.1)  # while they come
        flooding.join(60)
        group(those, 2, 0.0)  # and while they are there
        newcomer = stack.enter_context(closing(Endpoint(SECRET, HOST)))
        members = [one.peer for one in those]
        found = at_once(
            lambda: newcomer.meet(3, [0], 2, members, 10), lambda: those[1].meet(3, [1], 2, members, 10)
        )
        assert not [one for one in found if isinstance(one, Exception)], found
    finally:
        flooding.join(60)


def test_a_stranger_at_a_members_old_address(stack: ExitStack) -> None:
    # It accepts, and says nothing, or garbage; the others know better.
    one, newcomer = (stack.enter_context(closing(made)) for made in endpoints(2))
    gone = stack.enter_context(socket.create_server((HOST, 0)))
    members = [one.peer, type(one.peer)(b"\xff" * 16, HOST, gone.getsockname()[1])]
    heard: list[bytes] = []

    def answer() -> None:
        gone.settimeout(1)
        with suppress(OSError):
            while True:
                sock, _ = gone.accept()
                with sock:
                    sock.settimeout(0.1)
                    heard.append(sock.recv(1000))
                    sock.sendall(bytes(64))
                    with suppress(OSError):
                        heard.append(sock.recv(1000))

    _, *found = at_once(
        answer, lambda: one.meet(1, [0], 2, members, 10), lambda: newcomer.meet(1, [1], 2, members, 10)
    )
    assert not [error for error in found if isinstance(error, Exception)], found
    assert {len(data) for data in heard} <= {0, 32}


@contextmanager
def no_more_files(room: int) -> Iterator[None]:
    """Let this process open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2 + room, hard))
    filled = []
    try:
        with suppress(OSError):
            while True:
                filled.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(room):
            os.close(filled.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in filled:
            os.close(fd)


def test_strangers_cannot_take_the_last_files(stack: ExitStack) -> None:
    those = [stack.enter_context(closing(one)) for one in endpoints(2)]
    strangers = [stack.enter_context(socket.socket()) for _ in range(100)]
    with no_more_files(room=20):  # for both endpoints
        for n, sock in enumerate(strangers):
            sock.setblocking(False)
            sock.connect_ex((HOST, those[n % 2].peer.port))
        group(those, 1, 0.1)


def test_no_files_at_all_take_no_processor_time_and_end_in_time(stack: ExitStack) -> None:
    one, other = (stack.enter_context(closing(made)) for made in endpoints(2))
    if one.peer.id < other.peer.id:
        one, other = other, one  # the other dials
    stranger = stack.enter_context(socket.socket())
    with no_more_files(room=0):
        stranger.connect((HOST, one.peer.port))
        begun = time.thread_time()
        with pytest.raises(LostPeerError, match="not found in time"):
            one.meet(1, [0], 2, [one.peer, other.peer], 0.5)
        assert time.thread_time() - begun < 0.2
        with pytest.raises(LostPeerError, match="Too many open files"):
            other.meet(1, [1], 2, [one.peer, other.peer], 0.5)
    group([one, other], 2, 0.0)


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_clock_that_is_set_disturbs_nobody(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    those = [stack.enter_context(closing(one)) for one in endpoints(3)]
    real, begun = time.time, time.monotonic()
    monkeypatch.setattr(time, "time", lambda: real() + jump * (time.monotonic() - begun))
    group(those, 1, 0.05)
