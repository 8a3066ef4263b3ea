"""Gradients that come one update late: what is updated when, and the same bits whatever is lost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.in_process import Faults
from support.ranks import Case, bits, classified, net, train
from support.reference import threads
from torch import nn

from sparkdl.allreduce.messages import Shard
from sparkdl.allreduce.update.shard import Finished, ShardUpdate, update_shard
from sparkdl.exceptions import ConfigError
from sparkdl.nn.embedding import EmbeddingVariable, embedding_variables
from sparkdl.optim import OptimizerSpec, Staleness
from sparkdl.optim.shard.optimizer import UpdateRule
from sparkdl.optim.staleness import LATE
from sparkdl.wire.layout import ParamLayout, lay_out
from sparkdl.wire.touched_rows import TouchedRows

LAYOUT = ParamLayout(lay_out([("table", (3, 1), 0), ("b", (1,), 0)]))
SGD = OptimizerSpec(partial(torch.optim.SGD, lr=1.0))


@pytest.fixture(autouse=True)
def local_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    with threads(1):
        yield


def late_at(*pairs: tuple[int, int]) -> Any:
    """Return a share whose draw makes exactly some pairs of iteration and source late."""

    class Chosen(Staleness):
        def is_late(self, source: int, iteration: int) -> bool:
            return (iteration, source) in pairs

    return Chosen


def updates(staleness: Staleness, steps: Any) -> list[list[float]]:
    """Return the weights after each of some updates by plain SGD; each has (source, weight, gradient)."""
    weights, found = np.zeros(4, np.float32), []
    rule = UpdateRule(SGD, staleness=staleness)
    state = None
    for iteration, sources in enumerate(steps):
        update = ShardUpdate(
            layout=LAYOUT, start=0, stop=4, rule=rule, weights=torch.from_numpy(weights), iteration=iteration
        )
        shards = [
            Shard.of(source, weight, np.array(gradient, np.float32), np.array([True, True]), rows)
            for source, weight, gradient, rows in sources
        ]
        made = update_shard(update, shards, update.optimizer(state))
        assert isinstance(made, Finished)
        weights, state = made.shard.held.value, made.state
        found.append(weights.tolist())
    return found


def dense(source: int, value: float, weight: float = 1.0) -> Any:
    return source, weight, [value] * 4, None


def test_a_late_gradient_has_its_share_of_the_mean_and_enters_one_update_later() -> None:
    staleness = late_at((0, 1))(decay=0.5)
    found = updates(staleness, [[dense(0, 4.0), dense(1, 8.0, 3.0)], [dense(0, 1.0), dense(1, 1.0)], []])
    # 4 has a quarter of the first mean; 8, its other three quarters, counts half in the second.
    assert [weights[3] for weights in found] == [-1.0, -1.0 - 3.0 - 1.0, -5.0]


def test_a_row_has_its_late_gradient_when_it_is_updated_next() -> None:
    def sparse(row: int) -> Any:
        gradient = [0.0] * 4
        gradient[row] = 1.0
        return 0, 1.0, gradient, TouchedRows(LAYOUT, {0: np.array([row])})

    staleness = late_at((0, 0), (1, 0), (2, 0), (3, 0))()
    found = updates(staleness, [[sparse(0)], [sparse(1)], [sparse(0)], [sparse(1)]])
    assert [weights[:3] for weights in found] == [[0, 0, 0], [0, 0, 0], [-1, 0, 0], [-1, -1, 0]]


def test_the_draw_follows_from_seed_iteration_and_partition() -> None:
    half = Staleness(share=0.5, seed=7)
    drawn = [half.is_late(source, iteration) for iteration in range(200) for source in range(3)]
    assert drawn == [half.is_late(source, iteration) for iteration in range(200) for source in range(3)]
    assert 0.42 < np.mean(drawn) < 0.58
    assert not any(Staleness(share=0.0).is_late(0, iteration) for iteration in range(50))
    assert all(Staleness(share=1.0).is_late(0, iteration) for iteration in range(50))


@pytest.mark.parametrize("options", [{"share": 1.5}, {"decay": -0.1}, {"seed": -1}, {"rows_only": 1}])
def test_values_that_cannot_work(options: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Staleness(**options)


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = EmbeddingVariable(3, seed=1, std=0.5, min_count=2, max_age=3, evict_every=2)
        self.plain = nn.Embedding(9, 3, sparse=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = (x[:, 0] * 4).long()
        return self.head(torch.cat([self.table(ids * 7919), self.plain(ids % 9)], 1))


OPTIMIZER = {
    "head*": partial(torch.optim.Adam, lr=0.01),
    "plain*": partial(torch.optim.SGD, lr=0.1),
    "*": partial(torch.optim.SparseAdam, lr=0.01),
}


def tabled(exchange: Any, **options: Any) -> Case:
    settings: dict[str, Any] = {"iterations": 6, "group": 4, "staleness": Staleness(share=0.5, seed=5)}
    return Case(Scores(), classified((40, 0, 46)), exchange, optimizer=OPTIMIZER, **settings | options)


def state(found: nn.Module) -> list[bytes]:
    return [
        values.tobytes()
        for table in embedding_variables(found).values()
        for values in table.store.entries().sorted().arrays("").values()
    ]


@pytest.mark.parametrize("rows_only", [False, True])
@pytest.mark.parametrize("exchange", ["replicated", "sharded"])
def test_faults_and_other_groups_change_no_bit(tmp_path: Path, exchange: Any, rows_only: bool) -> None:
    staleness = Staleness(share=0.5, decay=0.7, rows_only=rows_only, seed=5)
    of = tabled(exchange, staleness=staleness)
    whole = train(of, tmp_path / "whole")
    (table,) = embedding_variables(whole.module).values()
    assert LATE in table.store.state_names
    failed = 0
    for seed in range(4):
        faults = Faults(
            seed=seed, lose=0.01, repeat=0.05, move=0.05, lose_rows=0.002, absent=0.1, vanish=0.01
        )
        more: dict[str, Any] = {"in_memory": bool(seed % 2), "sites": 1 + seed % 3, "group": 1 + seed}
        found = train(replace(of, faults=faults, **more), tmp_path / str(seed))
        assert bits(found) == bits(whole), seed
        assert state(found.module) == state(whole.module), seed
        failed += found.transport.failed
    assert failed


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_plans_agree(tmp_path: Path, share: float) -> None:
    staleness = Staleness(share=share)
    parts = classified((40, 26))
    plain = Case(net(norm=False), parts, "replicated", staleness=staleness)
    expected = train(plain, tmp_path / "replicated")
    assert bits(train(replace(plain, exchange="sharded"), tmp_path / "sharded")) == bits(expected)
    assert bits(train(replace(plain, exchange="driver", group=1), tmp_path / "driver")) == bits(expected)
    on_time = train(replace(plain, staleness=None), tmp_path / "on time")
    assert bits(on_time) != bits(expected)
    # The weights of the first update are those of the beginning if all is late: so are two losses' weights.
    assert (on_time.losses[0], on_time.losses[1] == expected.losses[1]) == (expected.losses[0], False)


def test_tables_of_either_plan_agree(tmp_path: Path) -> None:
    found = [train(tabled(exchange), tmp_path / exchange) for exchange in ("replicated", "sharded")]
    assert bits(found[0]) == bits(found[1])
    assert state(found[0].module) == state(found[1].module)
