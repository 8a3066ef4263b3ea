"""The direct transport on real processes, no JVM: the bits of ranks in one process, whatever is lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import Factors
from support.processes import Fault, Jobs, Processes, processes
from support.ranks import Case, Setting, Trained, bits, classified, net, train
from support.reference import Partition, threads
from torch import nn

from sparkdl.allreduce.transport.base import Group, GroupResult, Transport
from sparkdl.allreduce.transport.direct.task import Rendezvous
from sparkdl.allreduce.transport.direct.transport import DirectTransport
from sparkdl.allreduce.transport.stages import ShuffleTransport
from sparkdl.optim import LAMB, ClipByNorm
from sparkdl.wire.codec import TopK

SIZES = (40, 25, 31)


TWO_SLOTS_ARE_SLOW = pytest.mark.parametrize(
    "those",
    [pytest.param(1, id="one slot"), pytest.param(2, id="two slots", marks=pytest.mark.slow)],
    indirect=True,
    scope="module",
)


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, id="one slot"), pytest.param(2, id="two slots", marks=pytest.mark.whole)],
)
def those(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    executors = {1: 3, 2: 2}[request.param]
    with processes(tmp_path_factory.mktemp("executors"), executors, request.param) as made:
        yield made


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path / "executors", 3) as made:
        yield made


@pytest.fixture(autouse=True)
def local_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    with threads(1):
        yield


def case(exchange: Any, sizes: Any = SIZES, **options: Any) -> Case:
    return Case(options.pop("module", None) or net(), classified(sizes), exchange, **options)


class Mixed:
    """Carries each group by one of several transports."""

    longest_group = 1000
    is_joining = False

    def __init__(self, seed: int, *transports: Transport) -> None:
        self._random, self._transports = random.Random(seed), transports

    def run(self, group: Group) -> GroupResult:
        return self._random.choice(self._transports).run(group)

    def forget(self, partition: int) -> None:
        """Do nothing."""

    def release(self, forget: Callable[[], None] | None = None) -> bool:
        done = [transport.release(forget) for transport in self._transports]
        return any(done)


class Session:
    """Trains on processes."""

    def __init__(self, those: Processes, patience: float = 20, mixed: int | None = None) -> None:
        self.those = those
        self.results: list[GroupResult] = []
        self.ahead = 0.0
        self._patience, self._mixed = patience, mixed

    def train(self, of: Case, folder: Path, after_group: Callable[[int], None] = lambda _: None) -> Trained:
        of = replace(of, slots=self.those.slots, in_memory=self.those.slots == 1)
        self.fits: list[str] = []
        trained = train(of, folder, after_group, self._transport)
        for fit in self.fits:
            self.those.forget(fit)
        return trained

    def _transport(self, setting: Setting) -> Transport:
        self.fits.append(setting.fit.fit_id)
        store, fit = setting.store, setting.fit
        self.jobs = jobs = Jobs(self.those, store.tokens, {0: setting.spec})
        shuffles = ShuffleTransport(len(store.tokens), fit, jobs, 50)  # type: ignore[arg-type]
        rendezvous = Rendezvous(b"s" * 32, "127.0.0.1", 1.0, self._patience)
        self.direct = DirectTransport(
            jobs, store, fit, None, jobs, rendezvous, shuffles, clock=lambda: time.monotonic() + self.ahead  # type: ignore[arg-type]
        )  # fmt: skip
        run = self.direct.run

        def noted(group: Group) -> GroupResult:
            self.results.append(run(group))
            return self.results[-1]

        self.direct.run = noted  # type: ignore[method-assign]
        return self.direct if self._mixed is None else Mixed(self._mixed, self.direct, shuffles)

    @property
    def completed(self) -> int:
        """How many groups were completed directly."""
        return sum(result.direct and not result.problems for result in self.results)

    @property
    def failed(self) -> list[Any]:
        """Why groups were not completed."""
        return [result.problems for result in self.results if result.problems]


LAZY = {"user*": partial(torch.optim.SparseAdam, lr=1e-2), "*": partial(torch.optim.Adagrad, lr=1e-2)}


def pairs(sizes: Any = SIZES) -> list[Partition]:
    generator = np.random.default_rng(0)
    users, items = generator.integers(0, 400, sum(sizes)), generator.integers(0, 90, sum(sizes))
    both, y = np.stack([users, items], 1), generator.normal(size=sum(sizes)).astype(np.float32)
    ends = np.cumsum([0, *sizes])
    return [Partition(both[a:b], y[a:b]) for a, b in pairwise(ends)]


FEATURES: dict[str, Callable[[Any, Any], Case]] = {
    "momentum": partial(case, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3)),
    "adam": case,
    "lamb": partial(case, optimizer=partial(LAMB, lr=1e-2), clip=ClipByNorm(0.1)),
    "adasum": partial(case, combine="adasum"),
    "bf16": partial(case, codec="bf16"),
    "topk": partial(case, codec=TopK(0.2)),
    "local steps": partial(case, local_steps=3, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    "an average": partial(case, averaging=True, module=net(norm=False)),
    "frozen": partial(case, frozen={2: (0, 1), 3: (0, 1)}),
    "rows": lambda exchange, sizes: Case(Factors(), pairs(sizes), exchange, nn.MSELoss(), LAZY),
}


def undisturbed(those: Processes, of: Case, folder: Path) -> None:
    """Train directly from the first group to the last, to the bits of ranks in one process."""
    expected = train(replace(of, in_memory=those.slots == 1), folder)
    session = Session(those)
    found = session.train(of, folder)
    assert bits(found) == bits(expected)
    assert found.losses == expected.losses
    assert not session.failed
    assert session.completed == found.groups == len(session.jobs.runs)


MANY = (40, 25, 31, 36, 28, 33, 39)
"""Rows of more ranks than there are slots, so that processes run several."""


def in_turn(first: int, *features: str) -> pytest.MarkDecorator:
    """Parametrize by features and plans; from one feature to the next the other plan is the fast one."""
    params = [
        pytest.param(
            exchange,
            FEATURES[name],
            id=f"{exchange}-{name}",
            marks=[pytest.mark.slow] * ((n + m + first) % 2),
        )
        for n, name in enumerate(features or FEATURES)
        for m, exchange in enumerate(("sharded", "replicated"))
    ]
    return pytest.mark.parametrize(("exchange", "feature"), params)


@TWO_SLOTS_ARE_SLOW  # test_processes_of_an_executor_may_run_several_ranks has them, with more ranks
@in_turn(1)  # test_a_process_may_run_several_ranks has the others
def test_the_bits_are_those_of_ranks_in_one_process(
    those: Processes, tmp_path: Path, exchange: Any, feature: Callable[[Any, Any], Case]
) -> None:
    undisturbed(those, feature(exchange, SIZES), tmp_path)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("exchange", ["sharded", "replicated"])
def test_few_ranks(those: Processes, tmp_path: Path, exchange: Any, ranks: int) -> None:
    of = case(exchange, SIZES[:ranks], clip=ClipByNorm(0.1))
    session = Session(those)
    assert bits(session.train(of, tmp_path)) == bits(train(of, tmp_path))
    assert not session.failed


@pytest.mark.parametrize("those", [pytest.param(1, id="one slot")], indirect=True, scope="module")
@in_turn(0)
def test_a_process_may_run_several_ranks(
    those: Processes, tmp_path: Path, exchange: Any, feature: Callable[[Any, Any], Case]
) -> None:
    undisturbed(those, replace(feature(exchange, MANY), batch_size=49), tmp_path)


@TWO_SLOTS_ARE_SLOW
@in_turn(0, "adam", "rows", "lamb")
def test_executors_come_and_go_between_groups(
    those: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    exchange: Any,
    feature: Callable[[Any, Any], Case],
) -> None:
    of = replace(feature(exchange, SIZES), iterations=14, group=2)
    expected = train(of, tmp_path)
    counts = [those.executors, 1, 1, 2, those.executors, 1, those.executors]
    monkeypatch.setattr(Jobs, "count_executors", lambda *_, **__: counts[0])

    def passes(_: int) -> None:
        counts.pop(0)
        counts.append(those.executors)

    session = Session(those)
    found = session.train(of, tmp_path, passes)
    assert bits(found) == bits(expected)
    assert found.losses == expected.losses
    assert not [p for problems in session.failed for p in problems if p.kind == "peer"]
    assert session.completed == found.groups  # none by shuffles


@TWO_SLOTS_ARE_SLOW
@in_turn(1, "adam", "lamb", "rows", "topk", "local steps")
def test_transports_may_change_between_groups(
    those: Processes, tmp_path: Path, exchange: Any, feature: Callable[[Any, Any], Case]
) -> None:
    of = replace(feature(exchange, SIZES), iterations=10, group=2)
    expected = train(of, tmp_path)
    session = Session(those, mixed=int(exchange == "replicated"))
    found = session.train(of, tmp_path)
    assert bits(found) == bits(expected)
    assert 0 < len(session.results) < found.groups
    assert not session.failed


def seeds(fast: int, whole: int, count: int) -> list[Any]:
    """Return numbers up to a count: the first run always, the next with the mark whole."""
    marks = [()] * fast + [pytest.mark.whole] * whole
    marks += [pytest.mark.slow] * (count - len(marks))
    return [pytest.param(n, marks=mark) for n, mark in enumerate(marks)]


# -- losses ---------------------------------------------------------------------------------------


class Fate:
    """Draws from a seed what happens to the tasks of groups, once in every few."""

    def __init__(self, seed: int, kinds: tuple[str, ...], ranks: int, every: int = 4) -> None:
        self._random = random.Random(seed)
        self._kinds, self._ranks, self._every = kinds, ranks, every
        self._stage = 0
        self._drawn: tuple[int, Fault] | None = None
        self.done = 0

    def __call__(self, stage: int, rank: int) -> Fault | None:
        draw = self._random
        if stage != self._stage:
            self._stage, self._drawn = stage, None
            if not draw.randrange(self._every):
                fault = Fault(draw.choice(self._kinds), draw.randrange(1, 16), draw.random() < 0.5)
                self._drawn = draw.randrange(self._ranks), fault
        if self._drawn is None or self._drawn[0] != rank:
            return None
        self.done += 1
        return self._drawn[1]


def lossy(those: Processes, of: Case, fate: Fate | None, folder: Path, patience: float = 20) -> Session:
    """Train with faults; compare with an undisturbed run on one site."""
    session = Session(those, patience)
    expected = train(of, folder / "expected")
    begin = time.monotonic()
    if fate is not None:
        those.faults = fate
    try:
        found = session.train(of, folder)
    finally:
        those.faults = lambda stage, rank: None
    session.seconds = time.monotonic() - begin
    assert bits(found) == bits(expected)
    assert found.losses == expected.losses
    return session


@pytest.mark.parametrize("seed", seeds(1, 2, 50))
def test_processes_that_are_killed(those: Processes, tmp_path: Path, seed: int) -> None:
    exchange, feature = ("sharded", "replicated")[seed % 2], ["adam", "lamb", "rows"][seed % 3]
    of = replace(FEATURES[feature](exchange, SIZES), iterations=16, group=4)
    if seed % 5 == 2:
        of = replace(FEATURES[feature](exchange, MANY), iterations=16, group=4, batch_size=49)
    fate = Fate(seed, ("kill", "kill", "vanish"), 3)
    session = lossy(those, of, fate, tmp_path)
    # The pause after a second loss in a row may outlast so short a fit.
    assert session.completed or len(session.failed) > 1
    assert session.seconds < 120


@TWO_SLOTS_ARE_SLOW
@pytest.mark.parametrize("seed", seeds(2, 0, 20))
def test_processes_that_are_stopped(those: Processes, tmp_path: Path, seed: int) -> None:
    # Those that go on after everybody else has given them up find that they are alone.
    of = replace(case(("sharded", "replicated")[seed % 2]), iterations=12, group=4)
    session = lossy(those, of, Fate(seed, ("stop",), 3, every=2), tmp_path, patience=1)
    assert session.seconds < 120


@TWO_SLOTS_ARE_SLOW
@pytest.mark.parametrize("seed", seeds(2, 0, 20))
def test_tasks_that_raise(those: Processes, tmp_path: Path, seed: int) -> None:
    of = replace(case(("sharded", "replicated")[seed % 2]), iterations=12, group=4)
    session = lossy(those, of, Fate(seed, ("raise",), 3, every=2), tmp_path)
    assert session.seconds < 120


# -- between groups -------------------------------------------------------------------------------


@TWO_SLOTS_ARE_SLOW
@pytest.mark.parametrize("exchange", ["sharded", "replicated"])
def test_groups_may_be_undone(those: Processes, tmp_path: Path, exchange: Any) -> None:
    of = replace(case(exchange), undo=True, iterations=8, group=4)
    session = Session(those)
    assert bits(session.train(of, tmp_path)) == bits(train(replace(of, undo=False), tmp_path))


@TWO_SLOTS_ARE_SLOW
@pytest.mark.parametrize("exchange", ["sharded", "replicated"])
def test_a_process_is_replaced_between_two_groups(those: Processes, tmp_path: Path, exchange: Any) -> None:
    of = case(exchange, iterations=12, group=3)
    session = Session(those)

    def replaces(completed: int) -> None:
        if completed == 6:
            those.replace(those.all()[1])

    found = session.train(of, tmp_path, replaces)
    assert bits(found) == bits(train(of, tmp_path / "expected"))
    # The newcomer dials; nobody counts as lost.
    assert not [p for problems in session.failed for p in problems if p.kind == "peer"]
    assert session.completed >= 4


@pytest.mark.whole
@TWO_SLOTS_ARE_SLOW
def test_an_idle_membership_is_made_anew(those: Processes, tmp_path: Path) -> None:
    of = case("replicated", iterations=9, group=3)
    session = Session(those)

    def waits(completed: int) -> None:
        session.ahead += 100
        for process in those.all()[1:]:  # which Spark has ended meanwhile
            those.replace(process)

    found = session.train(of, tmp_path, waits)
    assert bits(found) == bits(train(of, tmp_path / "expected"))
    assert not [p for problems in session.failed for p in problems if p.kind == "peer"]


@TWO_SLOTS_ARE_SLOW
@pytest.mark.parametrize("exchange", ["sharded", "replicated"])
@pytest.mark.parametrize("ends", ["well", "with a loss", "idle"])
def test_nothing_is_left_after_a_fit(those: Processes, tmp_path: Path, exchange: Any, ends: str) -> None:
    of = case(exchange, iterations=9, group=3)
    session = Session(those, patience=2)
    session.train(of, tmp_path / "first")  # libraries have opened what they keep
    before = those.usage()

    def last(completed: int) -> None:
        if ends == "with a loss" and completed == 6:
            those.faults = lambda stage, rank: Fault("raise", 6) if rank == 1 else None
        session.ahead += 100 if ends == "idle" else 0

    session.train(of, tmp_path, last)
    those.faults = lambda stage, rank: None
    for (endpoints, files, count, _), was in zip(those.usage(), before, strict=True):
        assert (endpoints, files, count) == (0, was[1], was[2])


@pytest.mark.whole
@pytest.mark.parametrize("steps", [400, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("exchange", ["replicated", pytest.param("sharded", marks=pytest.mark.slow)])
def test_many_steps_take_no_more_of_anything(
    single: Processes, tmp_path: Path, exchange: Any, steps: int
) -> None:
    of = case(exchange, SIZES[:2], iterations=steps, group=steps // 10)
    session = Session(single)
    seen: list[list[tuple[int, int, int, int]]] = []

    def look(completed: int) -> None:
        if completed >= steps // 5:
            seen.append(single.usage()[:2])

    session.train(of, tmp_path, look)
    assert not session.failed
    for was, now in zip(seen[0], seen[-1], strict=True):
        assert now[:3] == was[:3]
        assert now[3] <= was[3] + 10


# At the end, so that pytest makes these processes once.
@pytest.mark.whole
@pytest.mark.parametrize("those", [pytest.param(2, id="two slots")], indirect=True, scope="module")
@in_turn(1)
def test_processes_of_an_executor_may_run_several_ranks(
    those: Processes, tmp_path: Path, exchange: Any, feature: Callable[[Any, Any], Case]
) -> None:
    undisturbed(those, replace(feature(exchange, MANY), batch_size=49), tmp_path)
