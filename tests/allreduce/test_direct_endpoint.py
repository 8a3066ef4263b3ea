"""How the processes of a group find each other: all of them, or nobody for long."""

from __future__ import annotations

import random
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from support.peers import HOST, LIMIT, SECRET, at_once, endpoints, meet, open_files

from sparkdl.allreduce.transport.direct import endpoint
from sparkdl.allreduce.transport.direct.endpoint import Endpoint, close_endpoint, endpoint_of
from sparkdl.allreduce.transport.direct.handshake import Handshake
from sparkdl.allreduce.transport.direct.mesh import Mesh
from sparkdl.allreduce.transport.direct.peer import LostPeerError, Peer, own_address


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = open_files()
    yield
    assert not open_files() - before


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def some(stack: ExitStack, count: int) -> list[Endpoint]:
    return [stack.enter_context(closing(one)) for one in endpoints(count)]


def talk(links: list[Any], group: int = 1) -> None:
    """Let all ranks exchange, and check what each gets."""

    def run(rank: int) -> list[bytes]:
        mesh = Mesh(group, [rank], links[rank], 10)
        sends = ((rank, to, [bytes([rank, to]) * 1000]) for to in range(len(links)) if to != rank)
        return [bytes(data) for data in mesh.exchange(0, sends)[rank]]

    assert not [found for found in links if isinstance(found, Exception)], links
    found = at_once(*(lambda r=r: run(r) for r in range(len(links))))  # type: ignore[misc]
    for rank, got in enumerate(found):
        assert got == [bytes([other, rank]) * 1000 for other in range(len(links)) if other != rank]


@pytest.mark.parametrize("count", range(1, 9))
def test_all_find_each_other_and_again(stack: ExitStack, count: int) -> None:
    those = some(stack, count)
    links = meet(those)
    talk(links)
    first = [{rank: link.fileno() for rank, link in found.items()} for found in links]
    again = meet(those, group=2)
    talk(again, 2)
    assert [{rank: link.fileno() for rank, link in found.items()} for found in again] == first


def test_ranks_may_change_places(stack: ExitStack) -> None:
    those = some(stack, 5)
    members = [one.peer for one in those]
    for group in range(1, 6):
        random.Random(group).shuffle(those)
        talk(meet(those, members, group), group)


@pytest.mark.parametrize("kept", [False, True], ids=["at first", "later"])
def test_a_newcomer_is_found_by_all(stack: ExitStack, kept: bool) -> None:
    *old, replaced, newcomer = some(stack, 5)
    members = [one.peer for one in (*old, replaced)]
    if kept:
        talk(meet([*old, replaced], members))
    # The process that is replaced is there, but runs no task.
    talk(meet([*old, newcomer], members, 2), 2)
    # And is back in the next group, whose members are those of the last one.
    members = [one.peer for one in (*old, newcomer)]
    talk(meet([*old, replaced], members, 3), 3)


def test_a_member_that_is_idle_for_many_groups_comes_back(stack: ExitStack) -> None:
    *old, first, second = some(stack, 4)
    members = [one.peer for one in (*old, first)]
    talk(meet([*old, first], members))
    for group in range(2, 300):
        found = meet([*old, second], members, group)
        if group % 50 == 2:
            talk(found, group)
    talk(meet([*old, first], members, 300), 300)


def test_a_member_that_is_gone_is_replaced(stack: ExitStack) -> None:
    *old, gone, newcomer = some(stack, 4)
    members = [one.peer for one in (*old, gone)]
    talk(meet([*old, gone], members))
    gone.close()
    talk(meet([*old, newcomer], members, 2), 2)


def test_nobody_is_waited_for_longer_than_was_said(stack: ExitStack) -> None:
    those = some(stack, 3)
    begin = time.monotonic()
    found = meet(those[:2], [one.peer for one in those], seconds=0.4, ranks=3)
    assert 0.35 < time.monotonic() - begin < 10
    for error in found:
        assert isinstance(error, LostPeerError), error
        assert error.rank == 2


def test_somebody_alone_waits_no_longer_either(stack: ExitStack) -> None:
    (one,) = some(stack, 1)
    begin = time.monotonic()
    with pytest.raises(LostPeerError, match=r"not found in time: \[0, 1\]"):
        one.meet(1, [2], 3, [one.peer], 0.3)
    assert time.monotonic() - begin < 10


def test_a_newcomer_whom_nobody_awaits_gives_up_at_once(stack: ExitStack) -> None:
    *gone, newcomer = some(stack, 4)
    for one in gone:
        one.close()
    begin = time.monotonic()
    with pytest.raises(LostPeerError, match="refused"):
        newcomer.meet(1, [0], 4, [one.peer for one in gone], 30)
    assert time.monotonic() - begin < 20


def test_of_a_member_that_has_died_only_a_successor_is_waited_for(stack: ExitStack) -> None:
    one, *others = some(stack, 3)
    members = [end.peer for end in (one, *others)]
    talk(meet([one, *others], members))
    others[1].close()
    begin = time.monotonic()
    found = meet([one, others[0]], members, 2, seconds=30, ranks=3)
    assert 0.4 < time.monotonic() - begin < 10
    assert any(error.gone for error in found)
    assert {error.rank for error in found} == {2}


def test_a_member_that_has_died_before_it_dialled_is_not_awaited(stack: ExitStack) -> None:
    dead, alive = sorted(some(stack, 2), key=lambda one: one.peer.id)  # who has the smaller id dials
    dead.close()
    begin = time.monotonic()
    with pytest.raises(LostPeerError, match="refused") as caught:
        alive.meet(1, [1], 2, [dead.peer, alive.peer], 30)
    assert 0.4 < time.monotonic() - begin < 10
    assert caught.value.gone
    assert caught.value.rank == 0


def test_a_member_that_lives_and_has_not_dialled_is_awaited(stack: ExitStack) -> None:
    late, one = sorted(some(stack, 2), key=lambda one: one.peer.id)
    members = [late.peer, one.peer]
    begin = time.monotonic()
    with pytest.raises(LostPeerError) as caught:
        one.meet(1, [1], 2, members, 1.2)
    assert time.monotonic() - begin > 1.1
    assert not caught.value.gone
    talk(meet([one, late], members, 2), 2)


@pytest.mark.parametrize("waits", range(3), ids=["at once", "before its proof", "after its proof"])
def test_a_member_that_is_turned_away_as_a_stranger_dials_again(stack: ExitStack, waits: int) -> None:
    """Whom a flood of strangers pushes out may have proved everything, but was not read yet."""
    dials, hears = sorted(some(stack, 2), key=lambda one: one.peer.id)
    members = [dials.peer, hears.peer]

    def turns_away_first() -> Any:
        select.select([hears._listener], [], [], 5)
        sock, _ = hears._listener.accept()
        with sock:
            sock.setblocking(False)
            handshake = Handshake(sock, SECRET, hears.peer.id)
            for _ in range(waits):
                select.select([sock], [], [], 5)
                if not handshake._others:
                    handshake.advance()  # the proof may have come by now
        return hears.meet(1, [1], 2, members, 5)

    found: list[Any] = at_once(lambda: dials.meet(1, [0], 2, members, 5), turns_away_first)
    for links in found:
        assert not isinstance(links, Exception), found
        for link in links.values():
            link.limit = LIMIT
    talk(found)


def test_a_member_that_lives_may_come_late(stack: ExitStack) -> None:
    """Another job may have its slot: that it is late says nothing of its process."""
    one, late = some(stack, 2)
    members = [one.peer, late.peer]
    talk(meet([one, late], members))
    begin = time.monotonic()
    (error,) = meet([one], members, 2, seconds=1.2, ranks=2)
    assert time.monotonic() - begin > 1.1
    assert not error.gone


def test_an_address_that_leads_nowhere(stack: ExitStack) -> None:
    (one,) = some(stack, 1)
    nowhere = [
        Peer(bytes(16), "::1" if socket.has_ipv6 else HOST, 1),
        Peer(bytes(15) + b"x", "255.255.255.255", 9),
    ]
    with pytest.raises(LostPeerError):
        one.meet(1, [0], 3, nowhere, 0.3)


def test_a_group_that_is_over_does_not_disturb_a_later_one(stack: ExitStack) -> None:
    # An attempt that Spark has given up comes late; the processes are connected.
    late, a, b, newcomer = some(stack, 4)
    members = [one.peer for one in (late, a, b)]
    talk(meet([late, a, b], members))
    results = at_once(
        lambda: late.meet(2, [0], 3, members, 0.5),
        lambda: newcomer.meet(3, [0], 3, members, 10),
        lambda: a.meet(3, [1], 3, members, 10),
        lambda: b.meet(3, [2], 3, members, 10),
    )
    assert isinstance(results[0], LostPeerError)
    for link in (link for found in results[1:] for link in found.values()):  # type: ignore[union-attr]
        link.limit = 1 << 20
    talk(results[1:], 3)


@pytest.mark.parametrize("seed", range(10))
def test_two_attempts_of_a_task_end_in_bounded_time(stack: ExitStack, seed: int) -> None:
    # Either all ranks choose the same one, or nobody begins.
    those, ranks = some(stack, 4), [0, 1, 1, 2]
    members = [one.peer for one in those]
    random.Random(seed).shuffle(members)

    def run(one: Endpoint, rank: int) -> list[bytes]:
        try:
            links = one.meet(1, [rank], 3, members, 0.2)
            for link in links.values():
                link.limit = 1000
            sends = ((rank, to, [bytes([rank])]) for to in links)
            return [bytes(data) for data in Mesh(1, [rank], links, 20).exchange(0, sends)[rank]]
        except LostPeerError:
            one.close()
            raise

    begin = time.monotonic()
    found = at_once(*(lambda n=n, r=r: run(those[n], r) for n, r in enumerate(ranks)))  # type: ignore[misc]
    assert time.monotonic() - begin < 15, found
    for rank, got in zip(ranks, found, strict=True):
        if not isinstance(got, Exception):
            assert got == [bytes([other]) for other in range(3) if other != rank]


def test_an_attempt_that_dies_after_its_greeting_is_replaced_by_the_next(stack: ExitStack) -> None:
    first, second, *others = some(stack, 4)
    members = [one.peer for one in (first, *others)]

    def dies() -> None:
        with pytest.raises(LostPeerError):
            first.meet(1, [0], 3, members, 0.3)
        first.close()

    def comes_later() -> Any:
        time.sleep(0.5)
        return second.meet(1, [0], 3, members, 10)

    def late() -> Any:
        time.sleep(0.6)  # until then the other one has to wait
        return others[1].meet(1, [2], 3, members, 10)

    _, *found = at_once(dies, comes_later, lambda: others[0].meet(1, [1], 3, members, 10), late)
    assert not [one for one in found if isinstance(one, Exception)], found
    for link in (link for links in found for link in links.values()):  # type: ignore[union-attr]
        link.limit = 1 << 20
    talk(found)


def test_another_secret_finds_nobody(stack: ExitStack) -> None:
    those = some(stack, 2)
    other = stack.enter_context(closing(Endpoint(b"another", HOST)))
    members = [one.peer for one in (*those, other)]
    found = meet([*those, other], members, seconds=0.4)
    assert all(isinstance(error, LostPeerError) for error in found)


def test_after_close_the_port_refuses(stack: ExitStack) -> None:
    those = some(stack, 3)
    meet(those)
    for one in those:
        one.close()
        one.close()
    for one in those:
        with socket.socket() as sock:
            assert sock.connect_ex((HOST, one.peer.port))


def test_there_is_one_endpoint_of_a_fit() -> None:
    first = endpoint_of("fit", SECRET, "localhost")
    assert endpoint_of("fit", SECRET, "localhost") is first
    again = endpoint_of("fit", b"after a resize", "localhost")
    assert again is not first
    other = endpoint_of("another", SECRET, "localhost")
    assert {close_endpoint("fit"), close_endpoint("another")} == {again.peer.id, other.peer.id}
    assert close_endpoint("fit") is None
    assert not endpoint._endpoints


def test_an_unknown_driver_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match=r".*"):
        own_address("no such host.invalid")
    assert own_address("127.0.0.1") == "127.0.0.1"
