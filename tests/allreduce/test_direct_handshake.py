"""The handshake: who knows the secret comes in, nobody else, and nobody learns anything by trying."""

from __future__ import annotations

import hmac
import socket
import time
from collections.abc import Iterator

import pytest
from support.peers import SECRET, pair

from sparkdl.allreduce.transport.direct.handshake import Handshake, RefusedError

LISTENER, DIALER = b"L" * 16, b"D" * 16
ANSWER = 64
"""A listener tells a stranger a number and a proof, of 32 bytes each."""


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, socket.socket]]:
    both = pair()
    yield both
    for sock in both:
        sock.close()


Wire = tuple[socket.socket, socket.socket]


def advance(side: Handshake) -> bytes | None:
    """Advance a side once its bytes are there."""
    for _ in range(200):
        found = side.advance()
        if found is not None:
            return found
        time.sleep(0.001)
    return None


def received(sock: socket.socket, nbytes: int) -> bytes:
    sock.settimeout(5)
    data = b""
    while len(data) < nbytes:
        data += sock.recv(nbytes - len(data))
    return data


def to_and_fro(dialer: Handshake, listener: Handshake) -> None:
    for _ in range(200):
        listener.advance()
        dialer.advance()
        time.sleep(0.001)


def listening(sock: socket.socket, secret: bytes = SECRET, listener: bytes = LISTENER) -> Handshake:
    return Handshake(sock, secret, listener)


def dialling(sock: socket.socket, secret: bytes = SECRET) -> Handshake:
    return Handshake(sock, secret, LISTENER, DIALER)


def run(dialer: Handshake, listener: Handshake) -> tuple[bytes | None, bytes | None]:
    """Return whom each side has found, however their steps are interleaved."""
    dialer.begin()
    whom: list[bytes | None] = [None, None]
    for _ in range(500):
        for n, side in enumerate((dialer, listener)):
            whom[n] = whom[n] or side.advance()
        if all(whom):
            break
        time.sleep(0.001)
    return whom[0], whom[1]


def test_both_sides_find_each_other(wire: Wire) -> None:
    assert run(dialling(wire[0]), listening(wire[1])) == (LISTENER, DIALER)
    # Neither has read a byte of what follows.
    wire[0].send(b"what follows")
    assert received(wire[1], 12) == b"what follows"


def test_a_listener_with_another_secret_is_refused_and_gets_no_proof(wire: Wire) -> None:
    dialer, listener = dialling(wire[0]), listening(wire[1], b"another")
    dialer.begin()
    with pytest.raises(RefusedError, match="listener does not know"):
        to_and_fro(dialer, listener)
    wire[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        wire[1].recv(1)


def test_a_dialer_with_another_secret_is_refused(wire: Wire) -> None:
    dialer, listener = dialling(wire[0], b"another"), listening(wire[1])
    dialer.begin()
    listener.advance()
    number, proof = received(wire[0], 32), received(wire[0], 32)
    assert len(number + proof) == ANSWER
    wire[0].send(bytes(48))
    with pytest.raises(RefusedError, match="dialer does not know"):
        advance(listener)


def test_another_listener_at_the_address_is_refused(wire: Wire) -> None:
    # It knows the secret, but is not who was there before.
    dialer, listener = dialling(wire[0]), listening(wire[1], listener=b"another listener")
    dialer.begin()
    with pytest.raises(RefusedError):
        to_and_fro(dialer, listener)


def test_a_recorded_dialogue_opens_nothing() -> None:
    recorded: list[bytes] = []
    one, other = pair()
    dialer, listener = dialling(one), listening(other)
    dialer.begin()

    def record(side: Handshake) -> None:
        original = side._send

        def send(data: bytes) -> None:
            recorded.append(data)
            original(data)

        side._send = send  # type: ignore[method-assign]

    record(dialer)
    record(listener)
    whom: list[bytes | None] = [None, None]
    for _ in range(500):
        for n, side in enumerate((dialer, listener)):
            whom[n] = whom[n] or side.advance()
    assert whom == [LISTENER, DIALER]
    for sock in (one, other):
        sock.close()
    first = dialer._number
    from_listener, from_dialer = recorded
    # Replayed to a listener.
    one, other = pair()
    listener = listening(other)
    one.send(first)
    assert listener.advance() is None
    one.send(from_dialer)
    with pytest.raises(RefusedError):
        advance(listener)
    assert received(one, 32) != from_listener[:32]  # it draws its number anew
    for sock in (one, other):
        sock.close()
    # Replayed to a dialer.
    one, other = pair()
    dialer = dialling(one)
    dialer.begin()
    other.send(from_listener)
    with pytest.raises(RefusedError):
        advance(dialer)
    for sock in (one, other):
        sock.close()


def test_ones_own_proof_sent_back_is_worth_nothing(wire: Wire) -> None:
    listener = listening(wire[1])
    wire[0].send(bytes(32))
    listener.advance()
    answer = received(wire[0], ANSWER)
    wire[0].send(answer[32:] + DIALER)
    with pytest.raises(RefusedError):
        advance(listener)


def test_ones_own_number_sent_back_is_worth_nothing(wire: Wire) -> None:
    # A stranger at a member's address has the member itself answer the number that it was sent.
    dialer = dialling(wire[0])
    dialer.begin()
    number = received(wire[1], 32)
    wire[1].send(number + hmac.digest(b"?", number, "sha256"))
    with pytest.raises(RefusedError):
        advance(dialer)


def test_both_sides_dialling_or_listening_come_to_nothing(wire: Wire) -> None:
    both = dialling(wire[0]), dialling(wire[1])
    for side in both:
        side.begin()
    time.sleep(0.001)
    assert both[0].advance() is None  # 32 bytes have come of 64
    others = pair()
    assert listening(others[0]).advance() is None
    for sock in others:
        sock.close()


@pytest.mark.parametrize("nbytes", [0, 1, 31, 32, 33, 79])
def test_half_a_handshake(wire: Wire, nbytes: int) -> None:
    listener = listening(wire[1])
    wire[0].send(bytes(nbytes))
    time.sleep(0.001)
    assert listener.advance() is None
    told = 0 if nbytes < 32 else ANSWER
    wire[0].settimeout(0.02)
    learned = b""
    try:
        while len(learned) <= ANSWER:
            learned += wire[0].recv(100)
    except TimeoutError:
        pass
    assert len(learned) == told
    wire[0].close()
    with pytest.raises(RefusedError):
        advance(listener)


@pytest.mark.parametrize("size", [80, 200, 1 << 16])
def test_garbage(wire: Wire, size: int) -> None:
    listener = listening(wire[1])
    wire[0].send(b"GET / HTTP/1.1\r\n" * (size // 16))
    with pytest.raises(RefusedError):
        advance(listener)


def test_no_two_numbers_are_equal(wire: Wire) -> None:
    assert len({listening(wire[0])._number for _ in range(100)}) == 100
