"""Embedding variables in a fit: the bits of nn.Embedding, validation, checkpoints, refusals."""

from __future__ import annotations

import os
import re
import signal
import time
import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.data import as_dataset
from support.reference import Partition, threads
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from sparkdl import Dataset, Trainer
from sparkdl.allreduce.plans import owned_rows
from sparkdl.allreduce.update import table
from sparkdl.compute import lookup
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.keyed.mix import initial_rows
from sparkdl.keyed.table import KeyedTable
from sparkdl.nn import CountingBloom, EmbeddingVariable
from sparkdl.optim import AdagradDecay, ClipByNorm, Ftrl
from sparkdl.optim.shard import lazy_rows
from sparkdl.train import (
    EMA,
    Checkpoint,
    EarlyStopping,
    EveryIterations,
    MaxIteration,
    PerIteration,
    load_weights,
)
from sparkdl.train.history import PHASES

USERS, ITEMS, FAR = 60, 40, 0x5DEECE66D123
ADAM = partial(torch.optim.Adam, lr=1e-2)
LAZY = {
    "head*": ADAM,
    "user*": partial(torch.optim.SparseAdam, lr=1e-2),
    "*": partial(torch.optim.Adagrad, lr=0.1),
}

GENERATOR = np.random.default_rng(0)
PAIRS = np.stack([GENERATOR.integers(0, USERS, 240), GENERATOR.integers(0, ITEMS, 240)], 1)
SCORES = GENERATOR.normal(size=240).astype(np.float32)
PARTS = [Partition(PAIRS[a:b] * FAR, SCORES[a:b]) for a, b in pairwise([0, 130, 130, 240])]


class Scores(nn.Module):
    """Scores pairs of a user and an item."""

    def __init__(self, users: nn.Module, items: nn.Module, divisor: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.users, self.items, self.divisor = users, items, divisor
        self.head = nn.Linear(8, 1)

    def forward(self, pair: Tensor) -> Tensor:
        ids = torch.div(pair, self.divisor, rounding_mode="floor")
        return self.head(torch.cat([self.users(ids[:, 0]), self.items(ids[:, 1])], 1)).squeeze(1)


def keyed(**options: Any) -> Scores:
    return Scores(EmbeddingVariable(4, seed=1, **options), EmbeddingVariable(4, seed=2, **options))


def dense() -> Scores:
    # torch adds up dense gradients of a batch's ids in one order, and sparse ones in another.
    module = Scores(nn.Embedding(USERS, 4), nn.Embedding(ITEMS, 4), FAR)
    with torch.no_grad():
        for table, seed in ((module.users, 1), (module.items, 2)):
            ids = np.arange(table.num_embeddings) * FAR
            table.weight.copy_(torch.from_numpy(initial_rows(seed, ids, 4, 0.05, np.dtype(np.float32))))
    return module


@pytest.fixture
def data(spark: Any) -> Any:
    with threads(1), as_dataset(spark, PARTS) as data:
        yield data


def trainer(module: nn.Module, **options: Any) -> Trainer:
    settings: dict[str, Any] = {
        "loss": nn.MSELoss(),
        "optimizer": LAZY,
        "batch_size": 60,
        "seed": 3,
        "end_when": MaxIteration(10),
        "progress": False,
        "iterations_per_job": 4,
    }
    return Trainer(module, **settings | options)


def rows_of(module: Any) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in module.state_dict().items()}


def check_same(data: Dataset, **options: Any) -> Any:
    """Fit tables of either kind, and compare them."""
    expected = trainer(dense(), **options).fit(data)
    found = trainer(keyed(), **options).fit(data)
    assert found.history.column("loss") == expected.history.column("loss")
    for name in ("users", "items"):
        saved = found.module.state_dict()
        numbers = saved[f"{name}.ids"] // FAR
        weight = getattr(expected.module, name).weight.detach()
        assert len(numbers) == len(np.unique(PAIRS[:, int(name == "items")]))
        assert torch.equal(saved[f"{name}.rows"], weight[numbers])
    assert torch.equal(found.module.head.weight, expected.module.head.weight)
    return found


@pytest.mark.parametrize("exchange", ["replicated", "sharded"])
def test_fit_gives_the_bits_of_tables_of_a_fixed_size(data: Dataset, exchange: Any) -> None:
    found = check_same(data, exchange=exchange)
    assert found.history.column("extras.users/rows")[-1] == len(np.unique(PAIRS[:, 0]))
    for row in found.history:
        assert sum(row["phases"].values()) == pytest.approx(row["seconds"])


@pytest.mark.parametrize("exchange", ["replicated", "sharded"])
@pytest.mark.parametrize("group", [1, 3])
def test_work_of_tables_counts_in_the_phase_that_it_belongs_to(
    spark: Any, monkeypatch: pytest.MonkeyPatch, exchange: Any, group: int
) -> None:
    def slow_down(where: Any, name: str, seconds: float) -> None:
        original = getattr(where, name)

        def slowed(*args: Any) -> Any:
            time.sleep(seconds)
            return original(*args)

        monkeypatch.setattr(where, name, slowed)

    slow_down(owned_rows, "update_table", 0.02)
    slow_down(KeyedTable, "look_up", 0.03)
    slow_down(lookup, "try_forward", 0.05)
    with Dataset.from_numpy(PAIRS * FAR, SCORES, spark=spark, num_partitions=1) as data:
        options: dict[str, Any] = {"end_when": MaxIteration(3), "iterations_per_job": group}
        history = trainer(keyed(), exchange=exchange, **options).fit(data).history
    found = {name: sum(history.column(f"phases.{name}")) for name in PHASES}
    assert found["update"] >= 3 * 2 * 0.02  # there are two tables
    assert found["weights_in"] >= 3 * 2 * 0.03
    assert found["compute"] >= (3 - 3 // group) * 0.05  # a job's first ids are asked for before its steps
    assert sum(found.values()) == pytest.approx(sum(history.column("seconds")))


def test_a_group_counts_each_entry_that_it_changes_once(spark: Any) -> None:
    with Dataset.from_numpy(PAIRS * FAR, SCORES, spark=spark, num_partitions=2) as data:
        history = trainer(keyed(), shuffle=False, iterations_per_job=2).fit(data).history
    changed = history.column("extras.users/changed")
    for begin in (2, 4, 6, 8):
        rows = PAIRS[begin % 4 * 60 :][:120]
        assert sum(changed[begin : begin + 2]) == len(np.unique(rows[:, 0]))


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(AdagradDecay, lr=0.1, decay_step=2, decay_rate=0.3, initial_accumulator_value=1e-3),
        partial(Ftrl, lr=0.1),
    ],
    ids=["accumulators that are cut down", "learning rates that change"],
)
def test_rows_that_were_not_met_for_some_steps_go_on_as_by_plain_torch(spark: Any, optimizer: Any) -> None:
    fall = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.3)
    options: dict[str, Any] = {"shuffle": False, "schedule": fall, "optimizer": optimizer}
    with Dataset.from_numpy(PAIRS * FAR, SCORES, spark=spark, num_partitions=2) as data:
        found = trainer(keyed(), **options).fit(data).module.state_dict()
    plain = dense()
    ours = optimizer(plain.parameters())
    schedule = fall(ours)
    for step in range(10):
        rows = slice(step % 4 * 60, step % 4 * 60 + 60)
        ours.zero_grad()
        nn.MSELoss()(plain(torch.from_numpy(PAIRS[rows] * FAR)), torch.from_numpy(SCORES[rows])).backward()
        ours.step()
        if step % 4 == 3:
            schedule.step()
    for name in ("users", "items"):
        expected = getattr(plain, name).weight.detach()[found[f"{name}.ids"] // FAR]
        torch.testing.assert_close(found[f"{name}.rows"], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.jvm
@pytest.mark.parametrize("transport", ["shuffle", "direct"])
def test_tasks_of_several_processes_give_the_same_bits(spark: Any, transport: Any) -> None:
    with threads(1), as_dataset(spark, [PARTS[0], PARTS[2]]) as data:
        found = check_same(data, transport=transport)
    assert any(found.history.column("direct")) == (transport == "direct")


class Large(Scores):
    """Has weights that Spark broadcasts: too many to be inside of tasks."""

    def __init__(self) -> None:
        super().__init__(EmbeddingVariable(4, seed=1), EmbeddingVariable(4, seed=2))
        self.offsets = nn.Parameter(torch.zeros(1 << 15))

    def forward(self, pair: Tensor) -> Tensor:
        return super().forward(pair) + self.offsets.mean()


@pytest.mark.jvm
def test_rows_of_an_earlier_group_can_be_read_when_its_weights_are_outdated(
    spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # The first group's tasks name the broadcast of the first weights, and its rows are below the second's.
    with threads(1), as_dataset(spark, PARTS) as data:
        one, two = (
            (trainer(Large(), iterations_per_job=n, end_when=MaxIteration(2)).fit(data)) for n in (1, 2)
        )
    assert "trying again" not in caplog.text
    assert rows_of(one.module) == rows_of(two.module)


class Dies(Scores):
    """Kills its process once, in a task."""

    def __init__(self, alive: Path, **options: Any) -> None:
        super().__init__(EmbeddingVariable(4, seed=1, **options), EmbeddingVariable(4, seed=2, **options))
        self.alive, self.passes = str(alive), 0

    def forward(self, pair: Tensor) -> Tensor:
        self.passes += self.training
        if self.passes > 11 and os.path.exists(self.alive):
            os.unlink(self.alive)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(pair)


@pytest.mark.whole
@pytest.mark.jvm
def test_bounded_memory_gives_the_same_bits_also_if_a_process_dies(spark: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"min_count": 2, "max_age": 4, "evict_every": 3}
    with threads(1), as_dataset(spark, PARTS) as data:
        whole = trainer(keyed(**options)).fit(data)
        alive = tmp_path / "alive"
        alive.touch()
        found = trainer(Dies(alive, **options), row_memory=1500).fit(data)
    assert not alive.exists()
    assert found.history.column("loss") == whole.history.column("loss")
    assert rows_of(found.module) == rows_of(whole.module)


def test_a_trained_module_evaluates_predicts_and_is_validated(data: Dataset) -> None:
    training = trainer(keyed(), end_when=MaxIteration(8))
    result = training.fit(data, validation={"same": data})
    assert result.scores["same/loss"] == pytest.approx(training.evaluate(data)["loss"], rel=1e-6)
    found = training.predict(data)
    x = torch.from_numpy(np.concatenate([part.x for part in PARTS]))
    with torch.no_grad():
        assert np.allclose(found, result.module.eval()(x).numpy(), atol=1e-6)
    again = keyed()
    again.load_state_dict(result.module.state_dict())
    assert rows_of(again) == rows_of(result.module)


def test_a_run_resumes_with_the_same_bits(data: Dataset, tmp_path: Path) -> None:
    options: dict[str, Any] = {"min_count": 2, "max_age": 4, "evict_every": 3}
    whole = trainer(keyed(**options)).fit(data)
    hooks = [Checkpoint(tmp_path, every=EveryIterations(5))]
    trainer(keyed(**options), hooks=hooks, end_when=MaxIteration(5)).fit(data)
    resumed = trainer(keyed(**options), hooks=hooks).fit(data, resume=True)
    assert rows_of(resumed.module) == rows_of(whole.module)
    copy = keyed(**options)
    load_weights(tmp_path / "iteration-00000010", copy)
    assert rows_of(copy) == rows_of(whole.module)
    with pytest.raises(ConfigError, match="min_count"):
        trainer(keyed(), hooks=[Checkpoint(tmp_path)]).fit(data, resume=True)


@pytest.mark.parametrize("kind", [AdagradDecay, Ftrl])
def test_rows_with_the_state_of_an_earlier_release_are_refused(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    options: dict[str, Any] = {"optimizer": {"head*": ADAM, "*": partial(kind, lr=0.1)}}
    hooks = [Checkpoint(tmp_path, every=EveryIterations(5))]
    trainer(keyed(), hooks=hooks, end_when=MaxIteration(5), **options).fit(data)
    now = lazy_rows.fresh_state
    more = lambda *given: {**now(*given), "later": np.zeros_like(given[-1])}  # noqa: E731
    monkeypatch.setattr(table, "fresh_state", more)
    had = "accumulator, rest" if kind is Ftrl else "decays, sum"
    with pytest.raises(ConfigError, match=rf"'users' have {had} .* later.* now: an earlier .*load_weights\("):
        trainer(keyed(), hooks=hooks, **options).fit(data, resume=True)


def test_counters_resume_with_the_same_bits(data: Dataset, tmp_path: Path) -> None:
    counters = CountingBloom(15, error=0.2)  # too few: it counts which ids share a counter
    options: dict[str, Any] = {"min_count": 4, "max_age": 6, "evict_every": 3, "counters": counters}
    hooks = [Checkpoint(tmp_path, every=EveryIterations(1), full_every=4, keep=None)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        whole = trainer(keyed(**options)).fit(data)
    found = [re.findall(r"'(\w+)' has met \d+ ids.* max_ids=15", str(one.message)) for one in told]
    assert sorted(found) == [["items"], ["users"]]  # once for each table
    ids, rows = (whole.history.column(f"extras.users/{name}") for name in ("ids", "rows"))
    assert any(0 < some < own for some, own in zip(rows, ids, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        trainer(keyed(**options), hooks=hooks, end_when=MaxIteration(5)).fit(data)  # 5: a change of 4
        resumed = trainer(keyed(**options), hooks=hooks).fit(data, resume=True)
    assert rows_of(resumed.module) == rows_of(whole.module)
    own, other = (run.module.users.store.entries().sorted().arrays("") for run in (whole, resumed))
    assert {k: v.tobytes() for k, v in own.items()} == {k: v.tobytes() for k, v in other.items()}
    options["counters"] = CountingBloom(16, error=0.2)
    with pytest.raises(ConfigError, match="max_ids"):
        trainer(keyed(**options), hooks=hooks).fit(data, resume=True)


def test_training_goes_on_with_the_rows_of_a_trained_module(data: Dataset) -> None:
    first = trainer(keyed(), end_when=MaxIteration(4)).fit(data)
    second = trainer(first.module, end_when=MaxIteration(4)).fit(data)
    assert second.history.column("loss")[-1] < first.history.column("loss")[0]
    assert set(first.module.state_dict()["users.ids"].tolist()) <= set(
        second.module.state_dict()["users.ids"].tolist()
    )


def test_ids_without_a_row_share_one_that_is_trained(data: Dataset) -> None:
    result = trainer(keyed(min_count=10), end_when=MaxIteration(8)).fit(data)
    assert 0 < result.history.column("extras.users/rows")[-1] < result.history.column("extras.users/ids")[-1]
    assert result.module.users.weight.abs().sum() > 0
    module = result.module.eval()
    with torch.no_grad():
        assert torch.equal(module.users(torch.tensor([12345])), module.users.weight)


@pytest.mark.parametrize("counters", [None, CountingBloom(1000)])
def test_rows_are_those_before_with_new_ones_and_without_those_evicted(data: Dataset, counters: Any) -> None:
    """Ids that wait for a row have none that could be evicted, however they are counted."""
    module = keyed(min_count=3, max_age=6, evict_every=4, counters=counters)
    history = trainer(module, batch_size=24, end_when=MaxIteration(20)).fit(data).history
    rows, new, gone = (history.column(f"extras.users/{name}") for name in ("rows", "new", "evicted"))
    assert sum(gone) > 0
    assert rows == [sum(new[:n]) - sum(gone[:n]) for n in range(1, len(rows) + 1)]


def test_a_table_that_is_frozen_stays_as_it_is(data: Dataset) -> None:
    module = keyed()
    module.users.weight.requires_grad_(False)
    saved = trainer(module).fit(data).module.state_dict()
    expected = initial_rows(1, saved["users.ids"].numpy(), 4, 0.05, np.dtype(np.float32))
    assert torch.equal(saved["users.rows"], torch.from_numpy(expected))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": ADAM}, "Adam changes rows without a gradient.*'users'"),
        ({"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9)}, "momentum=0.9"),
        ({"local_steps": 2}, "local_steps"),
        ({"exchange": "driver", "iterations_per_job": None}, "exchange='driver'"),
        ({"averaging": EMA(0.9)}, "averaging"),
        ({"gradient_codec": "bf16"}, "gradient_codec"),
        ({"clip": ClipByNorm(1.0)}, "ClipByNorm"),
        ({"hooks": [EarlyStopping(2)]}, "restore_best"),
    ],
)
def test_what_cannot_be_combined_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(keyed(), **options)


def test_a_schedule_gives_a_table_no_momentum(data: Dataset) -> None:
    """Rows without a gradient would move, as torch moves them; they were left where they are."""
    cycle = PerIteration(partial(OneCycleLR, max_lr=0.1, total_steps=20))
    sgd = partial(torch.optim.SGD, lr=0.1)
    with pytest.raises(ConfigError, match=r"schedule: momentum=0\.95 changes rows without a gradient"):
        trainer(keyed(), optimizer=sgd, schedule=cycle)
    late = trainer(keyed(), optimizer=sgd, schedule=PerIteration(LaterMomentum), end_when=MaxIteration(4))
    with pytest.raises(ConfigError, match=r"schedule: momentum=0\.9 changes rows.*'users'"):
        late.fit(data)


class LaterMomentum(LRScheduler):
    def get_lr(self) -> list[float]:
        for group in self.optimizer.param_groups:
            group["momentum"] = 0.9 * (self.last_epoch > 1)
        return [group["lr"] for group in self.optimizer.param_groups]


def test_memory_for_rows_needs_a_table() -> None:
    with pytest.raises(ConfigError, match="no embedding variable"):
        trainer(dense(), optimizer=ADAM, row_memory=1000)


def test_ids_that_do_not_follow_from_the_inputs_are_an_error(data: Dataset) -> None:
    class Draws(Scores):
        def forward(self, pair: Tensor) -> Tensor:
            return super().forward(pair + 2 * (self.users(pair[:, 0]).sum(1, keepdim=True) > 0).long())

    module = Draws(EmbeddingVariable(4, seed=1), EmbeddingVariable(4, seed=2))
    with pytest.raises(ModelError, match="must follow from the inputs alone"):
        trainer(module).fit(data)
