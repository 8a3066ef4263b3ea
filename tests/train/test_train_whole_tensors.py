"""Optimizers that need whole tensors, in a Trainer: plain torch, schedules, checkpoints, elastic resumes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data import as_dataset, partitioned
from support.models import mlp
from support.optimizers import Coupled, Shampoo, Split
from support.reference import assert_bit_equal, decomposed, plain, relative_error, threads
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from sparkdl import Trainer
from sparkdl.exceptions import OptimizerError
from sparkdl.train import Checkpoint, EveryIterations, MaxIteration, PerIteration

MUON, ADAMW = partial(torch.optim.Muon, lr=0.02), partial(torch.optim.AdamW, lr=1e-2)
OPTIMIZERS: dict[str, Any] = {
    "adafactor": partial(torch.optim.Adafactor, lr=0.05),
    "shampoo": Shampoo,
    "coupled": Coupled,
    "muon": {"*.weight": MUON, "*": ADAMW},
}
REFERENCES: dict[str, Any] = {
    "muon": lambda p: Split(list(p), (lambda t: t.ndim > 1, MUON), (lambda t: t.ndim == 1, ADAMW))
}
PLANS: dict[str, dict[str, Any]] = {
    "replicated": {"exchange": "replicated", "iterations_per_job": 4},
    "sharded": {"exchange": "sharded", "iterations_per_job": 4},
    "driver": {"exchange": "driver"},
}
PARTS = partitioned([90, 0, 110])
LOSS = nn.CrossEntropyLoss()


def trainer(optimizer: Any, iterations: int, **options: Any) -> Trainer:
    settings = {"batch_size": 60, "seed": 3, "end_when": MaxIteration(iterations), "progress": False}
    return Trainer(mlp(), loss=LOSS, optimizer=optimizer, **settings | options)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_fit_has_the_bits_of_torch(spark: Any, tmp_path: Path, name: str, plan: str) -> None:
    def made(iterations: int) -> Trainer:
        hooks = [Checkpoint(str(tmp_path), every=EveryIterations(3))]
        return trainer(OPTIMIZERS[name], iterations, hooks=hooks, **PLANS[plan])

    with as_dataset(spark, PARTS) as data:
        made(3).fit(data)
        found = made(7).fit(data, resume=True)
    with threads(1):
        factory = REFERENCES.get(name, OPTIMIZERS[name])
        assert_bit_equal(found.module, decomposed(mlp(), LOSS, factory, PARTS, 60, 7, seed=3))


def test_one_partition_is_plain_torch_to_the_bit(spark: Any) -> None:
    parts = partitioned([200])
    for factory in (Shampoo, partial(torch.optim.Adafactor, lr=0.05)):
        with as_dataset(spark, parts) as data:
            found = trainer(factory, 6).fit(data)
        with threads(2):
            assert_bit_equal(found.module, plain(mlp(), LOSS, factory, parts, 60, 6, seed=3))


@pytest.mark.parametrize("name", ["shampoo", "coupled"])
def test_another_number_of_partitions_and_plan_resume(spark: Any, tmp_path: Path, name: str) -> None:
    made = partial(trainer, OPTIMIZERS[name], batch_size=200)  # all rows, wherever they are
    hooks = [Checkpoint(str(tmp_path), every=EveryIterations(3))]
    with as_dataset(spark, PARTS) as data:
        made(3, hooks=hooks, **PLANS["sharded"]).fit(data)
        straight = made(6).fit(data)
    with as_dataset(spark, partitioned([200])) as data:
        found = made(6, hooks=hooks, **PLANS["replicated"]).fit(data, resume=True)
    assert relative_error(found.module, straight.module) < 1e-4


def test_a_schedule_sets_the_rate_of_muon(spark: Any) -> None:
    halving = PerIteration(partial(LambdaLR, lr_lambda=lambda n: 0.5**n))
    with as_dataset(spark, PARTS) as data:
        found = trainer({"*.weight": MUON, "*": ADAMW}, 3, schedule=halving).fit(data)
    assert found.history.column("lr") == pytest.approx([0.02, 0.01, 0.005])


def test_torch_s_lbfgs_is_refused_before_the_fit() -> None:
    with pytest.raises(OptimizerError, match=r"LBFGS cannot be trained with.*closure.*sparkdl\.optim\.LBFGS"):
        trainer(torch.optim.LBFGS, 1)
