"""Partitions that crowd on few executors after a loss, and when direct exchange is tried again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.access.stages import Host
from sparkdl.allreduce import messages
from sparkdl.allreduce.cluster import Spreading, in_excess
from sparkdl.allreduce.messages import Problems
from sparkdl.allreduce.plan import LONGEST_GROUP
from sparkdl.allreduce.transport.base import Group, GroupResult
from sparkdl.allreduce.transport.direct import transport
from sparkdl.allreduce.transport.direct.peer import Peer
from sparkdl.allreduce.transport.direct.task import Rendezvous
from sparkdl.allreduce.transport.direct.transport import DirectTransport
from sparkdl.compute.problems import LostPeer
from sparkdl.compute.start import ModelVersion, Start
from sparkdl.session import Executors
from sparkdl.wire import frame


@pytest.mark.parametrize(
    ("places", "executors", "excess"),
    [
        ("ab", 2, []),
        ("aa", 2, [1]),
        ("aa", 1, []),
        ("aaaa", 2, [2, 3]),
        ("aaba", 2, [3]),
        ("aab", 2, []),
        ("abcabca", 3, []),
        ("aabbbbc", 3, [5]),
        ("ab", 0, []),
    ],
)
def test_what_an_executor_holds_beyond_its_share_is_in_excess(
    places: str, executors: int, excess: list[int]
) -> None:
    assert in_excess(places, executors) == excess


class Cluster:
    """Executors that come and go, and partitions that go to the executor with the fewest."""

    def __init__(self, places: str, executors: str, *, stuck: bool = False) -> None:
        self.places, self.executors, self.stuck = list(places), executors, stuck
        self.looks = 0
        self.is_joining = False

    def count_executors(self, *, look: bool = False) -> int:
        return len(self.executors)

    def crowded(self, _: Any) -> list[int]:
        self.looks += 1
        return in_excess(self.places, len(self.executors))

    def forget(self, partition: int) -> None:
        if not self.stuck:
            self.places[partition] = min(self.executors, key=self.places.count)


def spreading(cluster: Cluster, built_on: str) -> Spreading:
    store: Any = SimpleNamespace(is_crowded=False, executors=SimpleNamespace(count=len(built_on)))
    each: Any = cluster
    return Spreading(each, store, cluster)


def test_partitions_move_to_executors_that_are_new() -> None:
    cluster = Cluster("aabb", "ab")
    found = spreading(cluster, "ab")
    assert not found.move()
    cluster.executors = "abcd"
    assert found.move()
    assert cluster.places == ["a", "c", "b", "d"]


def test_partitions_stay_until_an_executor_is_ready() -> None:
    cluster = Cluster("ab", "ab")
    found = spreading(cluster, "ab")
    cluster.places, cluster.executors = ["a", "a"], "a"
    assert not found.move()
    cluster.executors, cluster.is_joining = "ac", True
    assert not found.move()
    cluster.is_joining = False
    assert found.move()
    assert cluster.places == ["a", "c"]


def test_partitions_move_to_an_executor_that_has_come_in_place_of_another() -> None:
    cluster = Cluster("ab", "ab")
    found = spreading(cluster, "ab")
    assert not found.move()
    cluster.places, cluster.executors, cluster.is_joining = ["a", "a"], "ac", True  # as many as before
    assert not found.move()
    cluster.is_joining = False
    assert found.move()
    assert cluster.places == ["a", "c"]


def test_partitions_move_once_an_executor_is_back() -> None:
    cluster = Cluster("ab", "ab")
    found = spreading(cluster, "ab")
    assert not found.move()
    assert cluster.looks == 0  # nothing was lost
    cluster.places, cluster.executors = ["a", "a"], "a"
    assert not found.move()  # one executor is left
    assert not found.move()
    assert cluster.looks == 1
    cluster.executors = "ac"
    assert found.move()
    assert cluster.places == ["a", "c"]
    assert not found.move()
    looks = cluster.looks
    assert not found.move()
    assert cluster.looks == looks  # all is well again: no more jobs


def test_a_loss_that_a_group_has_noticed_is_one_though_all_executors_are_back() -> None:
    cluster = Cluster("aa", "ac")
    found = spreading(cluster, "ab")
    assert not found.move()
    found.lost()
    assert found.move()
    assert cluster.places == ["a", "c"]


def test_partitions_spread_over_the_executors_that_are_left() -> None:
    cluster = Cluster("aaabbb", "abc")
    found = spreading(cluster, "abcd")
    found.lost()
    assert found.move()
    assert sorted(cluster.places.count(name) for name in "abc") == [2, 2, 2]


def test_an_executor_that_takes_no_task_is_given_up() -> None:
    cluster = Cluster("aa", "ab", stuck=True)
    found = spreading(cluster, "ab")
    found.lost()
    assert [found.move() for _ in range(5)] == [True, True, True, False, False]


# -- when direct exchange is tried again -----------------------------------------------------------


class Chain:
    """Runs a group: all is well, or a rank is lost."""

    def __init__(self) -> None:
        self.loses = False
        self.tasks: list[int] = []
        self.patience: list[float] = []
        self.gathering: Gathering | None = Gathering(self)
        self.executors = "ab"

    def run(self, tasks: Sequence[Any], *_: Any, **__: Any) -> tuple[list[Any], None]:
        self.patience.append(tasks[0].rendezvous.patience)
        return self.run_on(2)

    def run_on(self, tasks: int) -> tuple[list[Any], None]:
        self.tasks.append(tasks)
        told = Problems([LostPeer(0, 1, "gone", begun=True)]) if self.loses else Problems([])
        return [frame.join(frame.parts(messages.encode(told)))], None


class Gathering:
    """Runs a group with one task."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    def executors(self) -> set[str]:
        return {*self.chain.executors}

    def hosts(self, _: int) -> list[Host]:
        return [Host("a", [b"", b""])]

    def run(self, _: Any, hosts: Any, *__: Any, **___: Any) -> tuple[list[Any], None]:
        return self.chain.run_on(len(hosts))


class Shuffles:
    longest_group = 50

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def run(self, group: Group) -> GroupResult:
        self.lengths.append(len(group.steps))
        return GroupResult([], None, 0.0, {"job": 0.2 * len(group.steps)})


class Stand:
    """A direct transport over two ranks, and a clock that stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        self.chain, self.shuffles = Chain(), Shuffles()
        peers = [Peer(bytes([n] * 16), "127.0.0.1", 9) for n in range(2)]
        access: Any = SimpleNamespace(
            count_executors=lambda: len(self.chain.executors),
            describe=lambda _: None,
            begin_everywhere=lambda *_, **__: self.begin(),
            run_everywhere=lambda *_, **__: self.assemble(peers),
        )
        self.assembled = self.begun = 0
        self.ready = True
        store: Any = SimpleNamespace(partitions=(0, 1), executors=Executors(count=2, cores=1))
        fit: Any = SimpleNamespace(in_memory=False, fit_id="fit")
        chain: Any = self.chain
        shuffles: Any = self.shuffles
        rendezvous = Rendezvous(b"secret", "127.0.0.1", 3.0, 1.0)
        self.transport = DirectTransport(
            access, store, fit, None, chain, rendezvous, shuffles, clock=lambda: self.now
        )

    def begin(self) -> Any:
        self.begun += 1
        return SimpleNamespace(is_done=lambda: self.ready, cancel=lambda: None)

    def assemble(self, peers: Sequence[Peer]) -> list[bytes]:
        self.assembled += 1
        return [frame.join(frame.parts(peer.pack())) for peer in peers]

    def run(self, most: int = 1000) -> bool:
        """Run a group as long as may be; return whether it exchanged directly."""
        steps: Sequence[Any] = [None] * min(most, self.transport.longest_group)
        traits = SimpleNamespace(message_bytes=0, persisted_bytes=None)
        plan: Any = SimpleNamespace(phases=lambda *_: [], traits=traits)
        start: Any = Start(ModelVersion(0, 0), 0, None, False, None, (), True)  # type: ignore[arg-type]
        return self.transport.run(Group(plan, start, steps, None, [], "fit")).direct


def test_after_a_loss_direct_exchange_is_tried_at_once() -> None:
    stand = Stand()
    assert stand.run()
    stand.chain.loses = True
    assert stand.run()
    stand.chain.loses = False
    assert stand.run()
    assert stand.shuffles.lengths == []


def test_groups_that_failed_make_ranks_little_more_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    stand, seconds = Stand(), itertools.count(step=100.0)  # each group takes 100
    clock = SimpleNamespace(time=time.time, time_ns=time.time_ns, perf_counter=seconds.__next__)
    monkeypatch.setattr(transport, "time", clock)
    for loses in (True, True, True, True, False, False):
        stand.chain.loses = loses
        stand.now += 60
        assert stand.run(most=1)
    assert stand.chain.patience == [1, 2, 4, 4, 4, 20 * 100]


def test_fewer_tasks_run_all_ranks_while_an_executor_is_away() -> None:
    stand = Stand()
    assert stand.run()
    assembled = stand.assembled
    stand.chain.executors = "a"
    assert stand.run()
    lengths = []
    for _ in range(3):
        assert stand.run()
        lengths.append(stand.transport._pace.short)
    assert lengths == [1, 2, 4]  # it may be back soon
    assert stand.chain.tasks == [2, 1, 1, 1, 1]
    assert stand.assembled == assembled  # one task needs no others
    stand.chain.executors, stand.ready = "ac", False
    assert stand.run()
    assert stand.transport.is_joining
    assert stand.chain.tasks == [2, 1, 1, 1, 1, 1]  # it starts its Python process meanwhile
    stand.ready = True
    assert not stand.transport.is_joining
    assert stand.run()
    assert stand.chain.tasks[-1] == 2
    assert stand.assembled == assembled + 1  # the new executor's process is a member
    assert stand.begun == 1
    assert stand.shuffles.lengths == []
    stand.chain.executors = "a"
    assert stand.run()
    stand.chain.executors = "ad"
    assert not stand.transport.is_joining
    assert stand.begun == 2  # each time anew


def test_an_executor_in_place_of_another_is_not_waited_for() -> None:
    stand = Stand()
    assert stand.run()
    stand.chain.executors, stand.ready = "ac", False  # as many as before
    assert stand.run()
    assert stand.transport.is_joining
    assert stand.run()
    assert stand.chain.tasks == [2, 1, 1]
    stand.ready = True
    assert stand.run()
    assert stand.chain.tasks[-1] == 2
    stand.chain.executors, stand.ready = "de", False  # nobody is ready
    assert not stand.transport.is_joining
    assert stand.run()
    assert stand.chain.tasks[-1] == 2
    assert stand.begun == 1


def test_executors_that_come_while_others_get_ready() -> None:
    stand = Stand()
    assert stand.run()
    stand.chain.executors, stand.ready = "ac", False
    assert stand.run()
    stand.chain.executors = "ad"  # and the first has gone
    assert stand.transport.is_joining
    stand.ready = True
    assert not stand.transport.is_joining
    assert stand.begun == 2


def test_groups_go_by_shuffles_where_a_task_cannot_have_several_ranks() -> None:
    stand = Stand()
    stand.chain.gathering, stand.chain.executors = None, "a"
    assert stand.transport.longest_group == 50  # nothing was lost: there are too few slots
    assert not stand.run()
    stand.chain.executors = "ab"
    assert stand.run()
    stand.chain.executors = "a"
    assert not stand.run()
    assert not stand.run()
    assert stand.shuffles.lengths == [50, 5, 5]  # a second of what a step took at last


def test_the_pause_doubles_with_each_loss_in_a_row_and_ends_with_a_group() -> None:
    stand = Stand()
    stand.chain.loses = True
    pauses = []
    for _ in range(9):
        assert stand.run()
        before = stand.now
        while stand.transport.longest_group != LONGEST_GROUP:
            assert not stand.run()
            stand.now += 0.5
        pauses.append(stand.now - before)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    stand.chain.loses = False
    for _ in range(7):
        assert stand.run()
    stand.chain.loses = True
    assert stand.run()
    assert stand.transport.longest_group == LONGEST_GROUP
