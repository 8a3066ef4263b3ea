"""When commits are taken; that they bring a run back is tested on clusters."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.data import digits
from support.reference import assert_bit_equal
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.allreduce.engine import Engine
from sparkdl.allreduce.plan import Step
from sparkdl.allreduce.shard_states import Snapshot
from sparkdl.allreduce.state import ModelState
from sparkdl.exceptions import TaskError
from sparkdl.train import Checkpoint, EveryIterations, MaxIteration, recovery
from sparkdl.train.recovery import Recovery


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Steps:
    """Stands for an engine: iterations and commits take as long as they are told to."""

    def __init__(self, clock: Clock, commit: float) -> None:
        self.clock, self.commit = clock, commit
        self.commits: list[int] = []
        self.completed = 0
        self.seconds = 0.0

    def run(self, iterations: Any, model: Any) -> Any:
        self.clock.now += self.seconds * len(iterations)
        self.completed += len(iterations)
        return model, [None] * len(iterations)

    def fetch(self, _: Any) -> list[Any]:
        self.clock.now += self.commit
        self.commits.append(self.completed)
        return []

    def fetch_changes(self, model: Any, since: int) -> list[Any]:
        return [self.fetch(model)]

    def let_go(self, before: Any, after: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("every", "first", "commits"),
    [
        (None, 40.0, [1, 60, 119]),  # 3 % of the time of 59 iterations of 2 s are 3.54 s
        (None, 2.0, [1, 60, 119]),
        (50, 40.0, [1, 51, 101]),
        (0, 40.0, []),
    ],
)
def test_commits_take_three_percent_of_the_time_after_the_first_iteration(
    monkeypatch: pytest.MonkeyPatch, every: int | None, first: float, commits: list[int]
) -> None:
    clock = Clock()
    monkeypatch.setattr(recovery, "perf_counter", clock)
    steps = Steps(clock, commit=3.5)
    nothing = np.zeros(0)
    weights = type("W", (), {"snapshot": Snapshot(nothing, nothing, nothing)})()
    model = ModelState(weights, persisted="kept", outdated=None)
    runs = Recovery(cast(Engine, steps), model, every, max_failures=0, window=1.0)
    for number in range(150):
        steps.seconds = 2.0 if number else first
        iteration = type("I", (), {"allowance": None, "iteration": 0})()
        runs.run([cast(Step, iteration)])
    assert steps.commits == commits


class Lossy:
    """Stands for an engine whose executors are lost: each step fails that ``failing`` says."""

    def __init__(self, failing: set[int]) -> None:
        self.failing, self.steps = failing, 0

    def model(self, iteration: int) -> Any:
        weights = SimpleNamespace(snapshot=iteration)
        return SimpleNamespace(weights=weights, persisted="kept", average_buffers=None, iteration=iteration)

    def run(self, iterations: Any, model: Any) -> Any:
        self.steps += 1
        if self.steps in self.failing:
            raise TaskError("an executor is lost")
        return self.model(model.iteration + len(iterations)), [None] * len(iterations)

    def fetch(self, model: Any) -> list[Any]:
        return []

    def restore(self, snapshot: int, *_: Any) -> Any:
        return self.model(snapshot)

    def let_go(self, *_: Any) -> None:
        pass

    release = discard = let_go


def test_going_back_that_ends_half_way_is_ended_before_anything_is_read() -> None:
    """A last checkpoint would have the weights of the commit, and the number of a later iteration."""
    engine = Lossy(failing={4, 5})  # the fourth iteration, and those that run again
    runs = Recovery(cast(Engine, engine), engine.model(0), every=100, max_failures=1, window=1e9)
    steps = [SimpleNamespace(allowance=None, iteration=n, broadcasts=()) for n in range(4)]
    for step in steps[:3]:
        runs.run([cast(Step, step)])
    with pytest.raises(TaskError, match="an executor is lost"):
        runs.run([cast(Step, steps[3])])
    assert runs.snapshot() == cast(Any, 3)
    assert cast(Any, runs.model).iteration == 3


def test_as_long_as_a_commit_does_not_pay_a_run_goes_back_to_its_beginning() -> None:
    """The driver has the model before the first iteration; a large state takes long to come to it."""

    class Large(Lossy):
        fetched = 0

        def run(self, iterations: Any, model: Any) -> Any:
            after, outcomes = super().run(iterations, model)
            return after, [SimpleNamespace(bytes={"state": 10**10}) for _ in outcomes]

        def fetch(self, model: Any) -> list[Any]:
            self.fetched += 1
            return []

        def restore(self, snapshot: Any, *_: Any) -> Any:
            assert snapshot is first
            return self.model(0)

    engine, first = Large(failing={4}), Snapshot(np.zeros(3), np.zeros(0), np.zeros(0))
    model = engine.model(0)
    model.persisted, model.weights.snapshot = None, first
    runs = Recovery(cast(Engine, engine), model, None, max_failures=1, window=1e9)
    for n in range(5):
        runs.run([cast(Step, SimpleNamespace(allowance=None, iteration=n, broadcasts=()))])
    assert cast(Any, runs.model).iteration == 5
    assert engine.steps == 7  # five, one that failed, and the three before it again as one group
    assert engine.fetched == 0


def test_the_first_commit_waits_until_its_job_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small model there is nearly nothing to send, but a job is a job: 0.1 s are 3 % of 3.3 s."""
    clock = Clock()
    monkeypatch.setattr(recovery, "perf_counter", clock)

    class Quick(Lossy):
        def run(self, iterations: Any, model: Any) -> Any:
            clock.now += 0.5
            after, outcomes = super().run(iterations, model)
            return after, [SimpleNamespace(bytes={"state": 1000}) for _ in outcomes]

        def fetch(self, model: Any) -> list[Any]:
            committed.append(model.iteration)
            return []

    committed: list[int] = []
    engine, nothing = Quick(failing=set()), np.zeros(3)
    model = engine.model(0)
    model.persisted, model.weights.snapshot = None, Snapshot(nothing, nothing, nothing)
    runs = Recovery(cast(Engine, engine), model, None, max_failures=0, window=1.0)
    for n in range(7):
        assert not committed
        runs.run([cast(Step, SimpleNamespace(allowance=None, iteration=n, broadcasts=()))])
    assert committed == [7]


def test_an_error_of_the_driver_in_a_commit(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint at its end is of the iteration that it names, though a job of several has run."""
    x, y = digits(96)

    def fit(folder: Path) -> nn.Module:
        torch.manual_seed(0)
        with Dataset.from_numpy(x, y, spark=spark, num_partitions=2) as data:
            trainer = Trainer(
                nn.Linear(64, 10),
                loss=nn.CrossEntropyLoss(),
                optimizer=partial(torch.optim.Adam, lr=1e-2),
                batch_size=24,
                end_when=MaxIteration(6),
                iterations_per_job=3,
                commit_every=2,
                hooks=[Checkpoint(folder, EveryIterations(100))],
                progress=False,
            )
            return trainer.fit(data, resume=True).module

    layers, commits = Recovery._layers, iter(range(100))

    def failing(self: Recovery, model: ModelState) -> Any:
        if next(commits) == 1:
            raise MemoryError
        return layers(self, model)

    right = fit(tmp_path / "right")
    monkeypatch.setattr(Recovery, "_layers", failing)
    with pytest.raises(MemoryError):
        fit(tmp_path / "run")
    assert_bit_equal(fit(tmp_path / "run"), right)
