"""When commits are taken; that they bring a run back is tested on clusters."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from sparkdl.allreduce.directives import Step
from sparkdl.allreduce.engine import Engine
from sparkdl.allreduce.kept import Snapshot
from sparkdl.allreduce.state import ModelState
from sparkdl.train import recovery
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
    model = ModelState(weights, kept="kept", outdated=None)
    runs = Recovery(cast(Engine, steps), model, every, max_failures=0, window=1.0)
    for number in range(150):
        steps.seconds = 2.0 if number else first
        iteration = type("I", (), {"allowance": None, "iteration": 0})()
        runs.run([cast(Step, iteration)])
    assert steps.commits == commits
