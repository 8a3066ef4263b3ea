"""The exchange of all with all: order, large messages both ways, and peers that are silent or gone."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.peers import LIMIT, at_once, pair

from sparkdl.allreduce import messages
from sparkdl.allreduce.messages.step import Shard
from sparkdl.allreduce.plan import Inbox, ToSelf
from sparkdl.allreduce.transport.direct.connection import ALL, END, FRAME, HELLO, Connection
from sparkdl.allreduce.transport.direct.mesh import Mesh
from sparkdl.allreduce.transport.direct.peer import LostPeerError
from sparkdl.allreduce.transport.direct.task import GroupTask, _Mine
from sparkdl.allreduce.update.combine import WeightedPart, weighted_mean
from sparkdl.compute.local_store import LocalStore
from sparkdl.wire import frame
from sparkdl.wire.layout import ParamLayout, lay_out

GROUP = 11


class Ring:
    """Ranks that are connected, each with each."""

    def __init__(self, ranks: int, buffer: int | None = None) -> None:
        self.links: list[dict[int, Connection]] = [{} for _ in range(ranks)]
        for a, b in combinations(range(ranks), 2):
            one, other = pair(buffer)
            self.links[a][b] = Connection(one, bytes([b]) * 16)
            self.links[b][a] = Connection(other, bytes([a]) * 16)
        for link in self.all():
            link.limit = LIMIT

    def all(self) -> Iterator[Connection]:
        for links in self.links:
            yield from links.values()

    def mesh(self, rank: int, patience: float = 20) -> Mesh:
        return Mesh(GROUP, [rank], self.links[rank], patience)

    def close(self) -> None:
        for link in self.all():
            link.close()


@contextlib.contextmanager
def ring(ranks: int, buffer: int | None = None) -> Iterator[Ring]:
    made = Ring(ranks, buffer)
    try:
        yield made
    finally:
        made.close()


def exchange(mesh: Mesh, sends: Any, number: int = 0) -> list[bytes]:
    (found,) = mesh.exchange(number, sends).values()
    return [bytes(data) for data in found]


@pytest.mark.parametrize("buffer", [None, 4096], ids=["wide", "narrow"])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_each_gets_what_others_have_sent_in_the_order_of_ranks(ranks: int, buffer: int | None) -> None:
    sizes = np.random.default_rng(ranks).integers(0, 70_000, (20, ranks, ranks, 2))

    def message(number: int, source: int, to: int, which: int) -> bytes:
        return bytes([number, source, to, which]) * int(sizes[number, source, to, which])

    def run(rank: int) -> list[list[bytes]]:
        mesh = made.mesh(rank)
        found = []
        for number in range(20):
            order = [(to, which) for which in range(2) for to in range(ranks) if to != rank]
            sends = ((rank, to, [message(number, rank, to, which)]) for to, which in order)
            found.append(exchange(mesh, sends, number))
        return found

    with ring(ranks, buffer) as made:
        for rank, found in enumerate(at_once(*(lambda r=r: run(r) for r in range(ranks)))):  # type: ignore[misc]
            others = [source for source in range(ranks) if source != rank]
            for number, got in enumerate(found):  # type: ignore[arg-type]
                assert got == [message(number, s, rank, which) for s in others for which in range(2)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_large_messages_both_ways_do_not_block_each_other(ranks: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, 20 << 20, np.uint8)

    def run(rank: int) -> list[bool]:
        mesh = made.mesh(rank)
        sends = ((rank, to, [data]) for to in range(ranks) if to != rank)
        found = mesh.exchange(0, sends)[rank]
        return [np.array_equal(np.frombuffer(got, np.uint8), data) for got in found]

    with ring(ranks) as made:
        found = at_once(*(lambda r=r: run(r) for r in range(ranks)))  # type: ignore[misc]
    assert found == [[True] * (ranks - 1)] * ranks


def test_a_rank_may_be_an_exchange_ahead() -> None:
    with ring(2, 4096) as made:
        one, other = made.mesh(0), made.mesh(1)
        # Rank 1 has sent two exchanges before rank 0 reads the first; both come in order.
        link = made.links[1][0]
        for number in (0, 1):
            link.queue(FRAME, number, GROUP, [bytes([number]) * 1000], source=1)
            link.queue(END, number, GROUP)
        link.flush()
        assert exchange(one, [], 0) == [bytes(1000)]
        assert exchange(one, [], 1) == [b"\1" * 1000]
        assert exchange(other, [], 0) == []


def test_one_rank_exchanges_with_nobody() -> None:
    assert Mesh(GROUP, [0], {}, 1).exchange(0, []) == {0: []}


def test_sending_begins_while_the_rank_computes() -> None:
    arrived: list[float] = []

    def slow() -> Iterator[tuple[int, int, list[bytes]]]:
        yield 0, 1, [bytes(300_000)]
        arrived.append(seen.wait(10))
        yield 0, ALL, [b"end"]

    seen = threading.Event()

    def watch() -> list[bytes]:
        select.select([made.links[1][0]], [], [], 10)
        seen.set()
        return exchange(made.mesh(1), [])

    with ring(2) as made:
        _, found = at_once(lambda: exchange(made.mesh(0), slow()), watch)
    assert arrived == [True]
    assert found == [bytes(300_000), b"end"]


@pytest.mark.parametrize("sends", [False, True], ids=["has nothing to send", "has much to send"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_silent_peer_is_lost_within_patience(ranks: int, sends: bool) -> None:
    def run(rank: int) -> float:
        begin = time.monotonic()
        out = [(rank, to, [bytes(20 << 20 if sends else 10)]) for to in range(ranks) if to != rank]
        with pytest.raises(LostPeerError, match="silent for") as lost:
            made.mesh(rank, patience=0.3).exchange(0, out)
        assert lost.value.rank == ranks - 1
        return time.monotonic() - begin

    with ring(ranks) as made:
        for seconds in at_once(*(lambda r=r: run(r) for r in range(ranks - 1))):  # type: ignore[misc]
            assert isinstance(seconds, float), seconds
            assert 0.25 < seconds < 10


@pytest.mark.parametrize("what", ["at once", "in the middle", "after all"])
def test_a_peer_that_closes_is_lost_at_once(what: str) -> None:
    def leave() -> None:
        link = made.links[1][0]
        if what != "at once":
            link.queue(FRAME, 0, GROUP, [bytes(1000)], source=1)
        if what == "after all":
            link.queue(END, 0, GROUP)
        link.flush()
        link.close()

    with ring(2) as made:
        begin = time.monotonic()
        out = [(0, 1, [bytes(20 << 20)])]  # more than fits into any buffer
        at_once(leave)
        with pytest.raises(LostPeerError) as lost:
            made.mesh(0).exchange(0, out)
        assert lost.value.rank == 1
        assert time.monotonic() - begin < 10


def test_a_peer_that_closes_after_all_has_arrived_is_not_missed_yet() -> None:
    with ring(2) as made:
        link = made.links[1][0]
        link.queue(FRAME, 0, GROUP, [b"all"], source=1)
        link.queue(END, 0, GROUP)
        link.flush()
        mesh = made.mesh(0)
        assert exchange(mesh, [], 0) == [b"all"]
        link.close()
        with pytest.raises(LostPeerError):
            exchange(mesh, [], 1)


@pytest.mark.parametrize(
    ("kind", "number", "group"),
    [(FRAME, 1, GROUP), (END, 2, GROUP), (FRAME, 0, GROUP + 1), (END, 0, GROUP - 1)],
)
def test_messages_of_another_exchange_end_the_group(kind: int, number: int, group: int) -> None:
    with ring(2) as made:
        link = made.links[1][0]
        link.queue(kind, number, group)
        link.flush()
        with pytest.raises(LostPeerError, match=f"exchange {number} of group {group} came for 0"):
            made.mesh(0).exchange(0, [])


@pytest.mark.parametrize(("source", "to"), [(0, 0), (2, 0), (1, 1), (1, 7)])
def test_messages_of_others_or_for_others_end_the_group(source: int, to: int) -> None:
    with ring(2) as made:
        link = made.links[1][0]
        link.queue(FRAME, 0, GROUP, [b"x"], source, to)
        link.flush()
        with pytest.raises(LostPeerError, match=f"a message from rank {source} to rank {to}"):
            made.mesh(0).exchange(0, [])


@pytest.mark.parametrize(
    "processes", [[(0, 1, 2)], [(0, 3), (1, 2)], [(2,), (0, 1, 4), (3,)]], ids=["one", "two", "three"]
)
def test_a_process_may_run_several_ranks(processes: list[tuple[int, ...]]) -> None:
    count = sum(map(len, processes))
    memory = [bytearray(3000) for _ in processes]  # of a replica, which ranks use in turn

    def sends(process: int, number: int) -> Iterator[tuple[int, int, list[Any]]]:
        for rank in processes[process]:
            memory[process][:] = bytes([number, rank, 0]) * 1000
            yield rank, ALL, [memory[process]]
            for to in range(count):
                if to != rank:
                    yield rank, to, [bytes([number, rank, to])]
            memory[process][:] = bytes(3000) if len(processes[process]) > 1 else memory[process][:]

    def run(process: int, made: Ring) -> None:
        own = processes[process]
        links = {
            rank: made.links[process][n]
            for n, those in enumerate(processes)
            if n != process
            for rank in those
        }
        mesh = Mesh(GROUP, own, links, 20)
        for number in range(5):
            found = mesh.exchange(number, sends(process, number))
            assert list(found) == list(own)
            for rank, arrived in found.items():
                expected = []
                for source in range(count):
                    if source != rank:
                        expected += [bytes([number, source, 0]) * 1000, bytes([number, source, rank])]
                assert list(map(bytes, arrived)) == expected

    with ring(len(processes)) as made:
        found = at_once(*(lambda n=n: run(n, made) for n in range(len(processes))))  # type: ignore[misc]
    assert found == [None] * len(processes)


def test_a_greeting_in_the_middle_of_a_group_is_no_message() -> None:
    # A peer that has given this group up greets for another one.
    with ring(2) as made:
        link = made.links[1][0]
        link.queue(HELLO, 0, GROUP)
        link.flush()
        with pytest.raises(LostPeerError, match="came for 0"):
            made.mesh(0).exchange(0, [])


def test_an_error_of_the_rank_itself_passes() -> None:
    def fails() -> Iterator[Any]:
        yield 0, 1, [b"x"]
        raise ValueError("mine")

    with ring(2) as made, pytest.raises(ValueError, match="mine"):
        made.mesh(0).exchange(0, fails())


def test_a_sleeping_rank_takes_no_processor_time() -> None:
    def run() -> float:
        begin = time.thread_time()  # other threads, of a Spark session, do not count
        with contextlib.suppress(LostPeerError):
            made.mesh(0, patience=0.5).exchange(0, [(0, 1, [bytes(20 << 20)])])
        return time.thread_time() - begin

    with ring(2) as made:
        assert run() < 0.3


def test_ranks_begin_with_different_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all sent to one rank first, its link would lose packets, and wait for them."""
    begun: dict[bytes, list[bytes]] = {}
    queue = Connection.queue

    def noted(self: Connection, kind: int, number: int, group: int, *more: Any) -> None:
        if kind == FRAME:
            begun.setdefault(bytes(more[0][0]), []).append(self.peer[:1])
        queue(self, kind, number, group, *more)

    monkeypatch.setattr(Connection, "queue", noted)
    with ring(4) as made:
        at_once(*(partial(exchange, made.mesh(n), [(n, ALL, [bytes([n])])]) for n in range(4)))
    orders = [[1, 2, 3], [2, 3, 0], [3, 0, 1], [0, 1, 2]]
    assert begun == {bytes([n]): [bytes([to]) for to in order] for n, order in enumerate(orders)}


@pytest.mark.parametrize("local", [True, False])
def test_what_a_rank_sends_itself_is_not_what_the_next_one_writes(tmp_path: Path, local: bool) -> None:
    """Ranks of one process compute one after the other, in the same memory."""
    values, files = np.ones(3, np.float32), LocalStore(str(tmp_path))
    shard = Shard.of(0, 1.0, values, np.ones(1, np.bool_))
    mine = _Mine(0, files, local, copies=True)
    with files.holding():
        mine.send(ToSelf("gradient-0", [shard], lent=True))
        mine.send_all(shard)
        files.keep_lent()
        values[:] = 7
        found: list[Any] = [*mine.read(), *mine.sent]
    assert [one.coded.arrays["gradient"].tolist() for one in found] == [[1.0] * 3] * 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_was_sent_to_several_ranks_of_a_process_is_not_overwritten(ranks: int) -> None:
    """A mean takes the memory of what has arrived: with several ranks the next one would see the mean."""
    layout = ParamLayout(lay_out([("p", (4,), 0)]))
    given = [np.full(4, value, np.float32) for value in (1.0, 3.0)]
    used = np.ones(1, np.bool_)
    sent = [Shard.of(n, 1.0, own, used) for n, own in enumerate(given)]
    packed = [bytearray(frame.join(messages.encode(message))) for message in sent]

    def exchange(number: int, sends: Iterator[Any]) -> dict[int, Any]:
        assert list(sends) == []
        return dict.fromkeys(range(ranks), packed)

    worker = SimpleNamespace(files=None, end_task=lambda: None)
    hosted: Any = [
        SimpleNamespace(token=token, worker=worker, inbox=Inbox([], list), me=lambda: None)
        for token in [SimpleNamespace(partition=n) for n in range(ranks)]
    ]
    nothing: Any = None
    task = GroupTask(nothing, [], 3, 0, False, nothing, 1, [], False)
    mesh: Any = SimpleNamespace(exchange=exchange)
    task._exchange(0, lambda me, inbox: iter(()), hosted, mesh)
    for rank in hosted:
        parts = [WeightedPart(s.source, s.weight, s.values(layout, 0, 4)) for s in rank.inbox.of(Shard)]
        mean = weighted_mean(parts)
        assert mean.tolist() == [2.0] * 4
        assert any(mean is part.array for part in parts) == (ranks == 1)
