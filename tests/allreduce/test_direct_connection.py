"""Connections: what is queued arrives, in whatever portions; what breaks the rules ends the connection."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest
from support.peers import LIMIT, open_files, pair

from sparkdl.allreduce.transport.direct.connection import END, FRAME, HELLO, ClosedError, Connection, Received

PEER = b"p" * 16
HEADER = struct.Struct("<BxxxIQQII")

Both = tuple[Connection, Connection]


def connected(buffer: int | None = None) -> Both:
    one, other = (Connection(sock, PEER) for sock in pair(buffer))
    one.limit = other.limit = LIMIT
    return one, other


@pytest.fixture
def both() -> Iterator[Both]:
    made = connected()
    yield made
    for one in made:
        one.close()


@pytest.fixture
def narrow() -> Iterator[Both]:
    made = connected(4096)
    yield made
    for one in made:
        one.close()


def carried(one: Connection, other: Connection, count: int) -> list[Received]:
    """Let so many messages go from one to the other."""
    found: list[Received] = []
    end = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < end
        one.flush()
        while len(found) < count and (message := other.receive()) is not None:
            found.append(message)
    assert one.flush()
    assert not one.queued
    return found


def raw(sock: socket.socket, kind: int, nbytes: int, data: bytes = b"") -> None:
    sock.send(HEADER.pack(kind, 0, 1, nbytes, 0, 0) + data)


def received(link: Connection) -> Received:
    for _ in range(2000):
        found = link.receive()
        if found is not None:
            return found
        time.sleep(0.001)
    raise AssertionError("nothing came")


def test_what_is_sent_arrives(both: Both) -> None:
    one, other = both
    one.queue(HELLO, 7, 5)
    one.queue(FRAME, 2**32 - 1, 2**64 - 1, [b"ab", bytearray(b"cd"), np.arange(3, dtype=np.uint8), b""])
    one.queue(FRAME, 1, 5)
    one.queue(END, 3, 5)
    first, frame, empty, last = carried(one, other, 4)
    assert (first.kind, first.number, first.group, bytes(first.data)) == (HELLO, 7, 5, b"")
    assert (frame.kind, frame.number, frame.group) == (FRAME, 2**32 - 1, 2**64 - 1)
    assert bytes(frame.data) == b"abcd\x00\x01\x02"
    assert (empty.kind, bytes(empty.data)) == (FRAME, b"")
    assert (last.kind, last.number) == (END, 3)
    assert other.receive() is None


@pytest.mark.parametrize("size", [1, 23, 24, 4095, 65536, 65537, (256 << 10) - 1, (256 << 10) + 1, 3 << 20])
def test_messages_of_any_size_pass_narrow_buffers(narrow: Both, size: int) -> None:
    one, other = narrow
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    for _ in range(3):
        one.queue(FRAME, 0, 1, [data])
    found = carried(one, other, 3)
    assert all(bytes(message.data) == data.tobytes() for message in found)


def test_many_small_messages(narrow: Both) -> None:
    one, other = narrow
    for number in range(5000):
        one.queue(FRAME, number, 1, [bytes([number % 256]) * (number % 90)] * (number % 4))
    for number, message in enumerate(carried(one, other, 5000)):
        assert message.number == number
        assert bytes(message.data) == bytes([number % 256]) * (number % 90) * (number % 4)


def test_many_parts_of_one_message(both: Both) -> None:
    one, other = both
    parts = [bytes([n % 256]) for n in range(5000)]
    one.queue(FRAME, 0, 1, parts)
    assert bytes(carried(one, other, 1)[0].data) == b"".join(parts)


def test_a_large_message(both: Both) -> None:
    one, other = both
    data = np.random.default_rng(0).integers(0, 2**63, 50_000_000 // 8)
    one.queue(FRAME, 0, 1, [data])
    (found,) = carried(one, other, 1)
    assert np.array_equal(np.frombuffer(found.data, np.int64), data)


def test_what_arrives_is_the_readers_own(both: Both) -> None:
    one, other = both
    for size in (100, 1 << 20):
        one.queue(FRAME, 0, 1, [bytes(size)])
        one.queue(FRAME, 0, 1, [b"\1" * size])
        first, second = carried(one, other, 2)
        kept = bytes(first.data)
        np.frombuffer(second.data, np.uint8)[:] = 9
        assert bytes(first.data) == kept


def test_a_message_of_the_limit_is_taken_and_a_longer_one_refused(both: Both) -> None:
    one, other = both
    other.limit = 100
    one.queue(FRAME, 0, 1, [bytes(100)])
    assert len(carried(one, other, 1)[0].data) == 100
    raw(one.sock, FRAME, 101)
    with pytest.raises(ClosedError, match="101 bytes"):
        received(other)


def test_a_huge_length_takes_no_memory(both: Both) -> None:
    raw(both[0].sock, FRAME, 2**63)
    with pytest.raises(ClosedError):
        received(both[1])


def test_no_message_is_taken_before_a_limit_is_set() -> None:
    one, other = (Connection(sock, PEER) for sock in pair())
    raw(one.sock, FRAME, 1, b"x")
    with pytest.raises(ClosedError):
        received(other)
    one.close()
    other.close()


@pytest.mark.parametrize("kind", [HELLO, END])
def test_only_frames_have_a_payload(both: Both, kind: int) -> None:
    raw(both[0].sock, kind, 1, b"x")
    with pytest.raises(ClosedError):
        received(both[1])


@pytest.mark.parametrize("kind", [0, 9, 255])
def test_an_unknown_kind_is_refused(both: Both, kind: int) -> None:
    raw(both[0].sock, kind, 0)
    with pytest.raises(ClosedError, match=f"kind {kind}"):
        received(both[1])


@pytest.mark.parametrize("sent", [0, 10, 24, 50, 24 + 300_000])
def test_a_peer_that_closes_in_the_middle(both: Both, sent: int) -> None:
    one, other = both
    data = HEADER.pack(FRAME, 0, 1, 1 << 20, 0, 0) + bytes(1 << 20)
    one.sock.setblocking(True)
    one.sock.sendall(data[:sent])
    one.close()
    with pytest.raises(ClosedError):
        received(other)


def test_sending_to_a_peer_that_is_gone(both: Both) -> None:
    one, other = both
    other.close()

    def send() -> None:
        for _ in range(1000):
            one.queue(FRAME, 0, 1, [bytes(1000)])
            one.flush()
            time.sleep(0.001)

    with pytest.raises(ClosedError):
        send()


def test_close_drops_what_waits() -> None:
    before = open_files()
    one, other = connected(4096)
    one.queue(FRAME, 0, 1, [bytes(10 << 20)])
    assert not one.flush()
    assert one.queued > 9 << 20
    one.close()
    other.close()
    assert one.fileno() == -1
    assert not open_files() - before


def test_a_peer_that_reads_nothing_for_long_is_not_lost(narrow: Both) -> None:
    # It computes, with its buffers full; how long it may do so is the mesh's patience. With TCP_USER_TIMEOUT
    # Linux would end the connection, although the other machine answers each probe.
    one, _ = narrow
    assert not one.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_connections_send_at_once_and_notice_dead_hosts(both: Both) -> None:
    sock = both[0].sock
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
