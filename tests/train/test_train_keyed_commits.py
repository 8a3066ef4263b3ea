"""Commits of embedding variables hold what has changed, and lead back to the same bits."""

from __future__ import annotations

from typing import Any

import pytest
from test_train_keyed import data, keyed, rows_of, trainer

from sparkdl import Dataset
from sparkdl.allreduce import row_layers
from sparkdl.allreduce.engine import Engine
from sparkdl.exceptions import TaskError
from sparkdl.train import MaxIteration
from sparkdl.train.recovery import Recovery

__all__ = ["data"]  # a fixture

CHANGING: dict[str, Any] = {"max_age": 12, "min_norm": 0.09, "evict_every": 3}


def fit(data: Dataset, module: Any) -> Any:
    options: dict[str, Any] = {"iterations_per_job": 1, "commit_every": 2, "batch_size": 4}
    return trainer(module, end_when=MaxIteration(14), **options).fit(data)


@pytest.mark.parametrize("most", [pytest.param(1, marks=pytest.mark.whole), 16])
def test_a_run_that_goes_back_to_any_commit_ends_with_the_same_bits(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    begin = trainer(keyed(**CHANGING), end_when=MaxIteration(4)).fit(data).module  # has rows of all ids
    whole = fit(data, begin)
    assert sum(whole.history.column("extras.users/evicted"))
    monkeypatch.setattr(row_layers, "MOST", most)
    layers: list[int] = []
    calls = 0
    run, layers_of = Engine.run, Recovery._layers

    def losing(self: Engine, steps: Any, model: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == lost:
            raise TaskError("both executors are lost")
        return run(self, steps, model)

    def counted(self: Recovery, model: Any) -> Any:
        found = layers_of(self, model)
        layers.append(len(found))
        return found

    monkeypatch.setattr(Engine, "run", losing)
    monkeypatch.setattr(Recovery, "_layers", counted)
    for lost in (3, 5, 6):
        calls = 0
        found = fit(data, begin)
        assert rows_of(found.module) == rows_of(whole.module), lost
        assert found.history.column("loss") == whole.history.column("loss")
    assert max(layers) > 1
