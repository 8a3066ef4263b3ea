"""Row-sparse gradients: rows alone are sent, and with ``exchange="replicated"`` rows alone are updated."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support.data import as_dataset
from support.models import Factors
from support.no_jvm import with_jvm
from support.reference import Partition, assert_bit_equal, decomposed, relative_error, threads
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.allreduce.choose import Exchange, Wanted
from sparkdl.exceptions import ConfigError, NonFiniteError
from sparkdl.nn.batch import Batch
from sparkdl.optim import ClipByNorm, ParamGroup
from sparkdl.train import (
    EMA,
    Checkpoint,
    EveryIterations,
    Hook,
    Int8,
    MaxIteration,
    PerIteration,
    Run,
)

USERS, ITEMS = 400, 90


GENERATOR = np.random.default_rng(0)
PAIRS = np.stack([GENERATOR.integers(0, USERS, 240), GENERATOR.integers(0, ITEMS, 240)], 1)
SCORES = GENERATOR.normal(size=240).astype(np.float32)
PARTS = [Partition(PAIRS[a:b], SCORES[a:b]) for a, b in pairwise([0, 130, 130, 240])]
ADAM = partial(torch.optim.Adam, lr=1e-2)
LAZY = {
    "user*": partial(torch.optim.SparseAdam, lr=1e-2),
    "item*": partial(torch.optim.Adagrad, lr=1e-2),
    "*": ADAM,
}


@pytest.fixture
def data(spark: Any) -> Any:
    with as_dataset(spark, PARTS) as data:
        yield data


def fit(data: Dataset, exchange: Exchange, module: nn.Module | None = None, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "loss": nn.MSELoss(),
        "optimizer": LAZY,
        "batch_size": 60,
        "seed": 3,
        "end_when": MaxIteration(8),
        "progress": False,
        "exchange": exchange,
    }
    resume = options.pop("resume", False)
    if exchange != "driver":
        settings["iterations_per_job"] = 4
    return Trainer(module or Factors(), **settings | options).fit(data, resume=resume)


OPTIONS: dict[str, dict[str, Any]] = {
    "several optimizers": {},
    "no state": {"optimizer": partial(torch.optim.SGD, lr=0.1)},
    "one at a time": {"iterations_per_job": 1},
    "a table that stays dense": {"optimizer": {"user*": LAZY["user*"], "*": ADAM}},
    "a schedule": {"schedule": PerIteration(partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9))},
    "a penalty": {"groups": [ParamGroup("item*", l2=0.1)]},
    "int8": {"gradient_codec": Int8(block=8)},
    "micro-batches and bf16": {"micro_batch_size": 7, "gradient_codec": "bf16"},
}


@pytest.mark.parametrize("options", with_jvm(OPTIONS, "several optimizers"))
def test_no_bit_changes(data: Dataset, options: dict[str, Any]) -> None:
    alone = {name: value for name, value in options.items() if name != "iterations_per_job"}
    if "gradient_codec" in options:  # blocks begin where rows do only with all of them
        alone["num_shards"] = 1
    expected = fit(data, "driver", **alone)
    found = fit(data, "replicated", **options)
    assert_bit_equal(found.module, expected.module)
    assert found.history.column("loss") == expected.history.column("loss")
    assert len(found.history) == found.state.iteration == 8
    if "iterations_per_job" not in options and "optimizer" not in options:
        first, *_, last = (row["bytes"]["state"] for row in found.history)
        assert last < 0.5 * first  # of some rows only


def test_norms_of_rows_are_those_of_all_up_to_rounding(data: Dataset) -> None:
    expected = fit(data, "driver", clip=ClipByNorm(0.01), num_shards=1)
    assert relative_error(fit(data, "replicated", clip=ClipByNorm(0.01)).module, expected.module) < 1e-6


def test_a_frozen_table_and_one_without_rows(data: Dataset) -> None:
    class Unused(Factors):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Embedding(7, 3, sparse=True)

    optimizers = {"other*": partial(torch.optim.SparseAdam, lr=0.1)} | LAZY
    expected = fit(data, "driver", Unused(), optimizer=optimizers)
    assert_bit_equal(fit(data, "replicated", Unused(), optimizer=optimizers).module, expected.module)


class Looks(Hook):
    """Notes weights and gradients, and replaces the weights once."""

    gradients = EveryIterations(3)

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_iteration_end(self, run: Run) -> None:
        if run.gradients():
            self.seen += [array.copy() for array in run.gradients().values()]
        if run.state.iteration == 6:
            snapshot = run.snapshot()
            self.seen.append(snapshot.params.copy())
            run.replace(replace(snapshot, params=snapshot.params * np.float32(0.5)))


def test_hooks_look_at_gradients_and_replace_weights(data: Dataset) -> None:
    expected, found = Looks(), Looks()
    results = [fit(data, "driver", hooks=[expected]), fit(data, "replicated", hooks=[found])]
    assert_bit_equal(results[1].module, results[0].module)
    assert len(found.seen) == len(expected.seen) > 10
    assert all(map(np.array_equal, found.seen, expected.seen))


@pytest.mark.slow
def test_checkpoints_and_resume_across_modes(data: Dataset, tmp_path: Any) -> None:
    expected = fit(data, "driver", num_shards=2)
    for first, then in (("replicated", "driver"), ("driver", "replicated"), ("replicated", "replicated")):
        folder = tmp_path / f"{first}-{then}"
        hooks = [Checkpoint(str(folder), EveryIterations(3))]
        fit(data, first, hooks=hooks, end_when=MaxIteration(6))
        found = fit(data, then, hooks=hooks, resume=True)
        assert_bit_equal(found.module, expected.module)


def test_what_fails_in_the_middle_of_a_group(data: Dataset) -> None:
    def step(module: nn.Module, batch: Batch) -> torch.Tensor:
        loss = nn.functional.mse_loss(module(batch.inputs), batch.label)
        return loss * torch.nan if batch.iteration > 6 else loss

    with pytest.raises(NonFiniteError, match="the loss became nan"):
        fit(data, "replicated", loss=None, step=step)


# -- what is sent ---------------------------------------------------------------------------------


def test_dense_embeddings_send_rows_with_a_gradient_only(spark: Any) -> None:
    module = Factors(sparse=False, users=4000)
    with as_dataset(spark, PARTS) as data:
        found = fit(data, "driver", module, optimizer=ADAM, num_shards=2)
    with threads(1):
        expected = decomposed(module, nn.MSELoss(), ADAM, PARTS, 60, 8, seed=3)
    assert_bit_equal(found.module, expected)
    whole = 3 * 4 * sum(p.numel() for p in module.parameters())
    assert found.history[0]["bytes"]["gradients"] < 0.2 * whole


# -- choice ---------------------------------------------------------------------------------------


def wanted(tables: Any = None, **options: Any) -> Wanted:
    trainer = Trainer(Factors(), loss=nn.MSELoss(), optimizer=LAZY)
    settings: dict[str, Any] = {
        "exchange": "auto",
        "layout": trainer._recipe.layout,
        "reductions": 0,
        "stateful": True,
        "averaging": False,
        "tables": trainer._recipe.tables if tables is None else tables,
        "weights_codec": "fp32",
        "num_shards": None,
        "stragglers": False,
    }
    return Wanted(**settings | options)


def test_large_tables_are_replicated_whatever_their_size(data: Dataset, monkeypatch: Any) -> None:
    tables = [wanted().layout.params[index].name for index in wanted().tables]
    assert tables == ["user.weight", "item.weight"]
    assert not wanted().suits_rows
    monkeypatch.setattr("sparkdl.allreduce.choose._TABLES_BYTES", 1024)
    monkeypatch.setattr("sparkdl.allreduce.choose._REPLICATED_BYTES", 0)
    assert wanted().suits_rows
    assert wanted().choose(data.access, 3) == "replicated"
    assert not wanted(()).suits_rows
    assert wanted(()).choose(data.access, 3) == "sharded"
    assert wanted(()).choose(data.access, 1) == "replicated"
    assert wanted((), elastic=True).choose(data.access, 1) == "sharded"
    assert wanted(num_shards=2).choose(data.access, 3) == "driver"


@pytest.mark.parametrize("option", [{"averaging": EMA(0.9)}, {"combine": "adasum"}, {"local_steps": 4}])
def test_what_changes_all_weights_updates_tables_as_a_whole(data: Dataset, option: dict[str, Any]) -> None:
    optimizer = ADAM if "local_steps" in option else LAZY
    one = {"module": Factors(sparse=optimizer is LAZY), "optimizer": optimizer, **option}
    expected = fit(data, "driver", **one, num_shards=1)
    assert_bit_equal(fit(data, "replicated", **one).module, expected.module)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_shards": 2}, "num_shards needs exchange='driver'"),
        ({"weights_codec": "bf16"}, "weights_codec='bf16' needs exchange='sharded'"),
    ],
)
def test_options_that_exclude_the_replicated_plan(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(Factors(), loss=nn.MSELoss(), exchange="replicated", **{"optimizer": LAZY} | options)
