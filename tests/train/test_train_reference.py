"""Training with Spark equals the same training in plain torch."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.data import as_dataset, digits, partitioned
from support.models import Everything, TwoTowers, VisitCounter, mlp
from support.no_jvm import with_jvm
from support.reference import (
    Partition,
    assert_bit_equal,
    dealt_rows,
    decomposed,
    iteration_rows,
    plain,
    relative_error,
    threads,
)
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.train import MaxEpoch, MaxIteration

OPTIMIZERS = {
    "sgd_momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-3),
}
SIZES = {"2": [400, 300], "3": [500, 0, 200], "7": [3, 250, 97, 1, 0, 300, 49]}
LOSS = nn.CrossEntropyLoss()
MODES: dict[str, dict[str, Any]] = {
    "driver": {"exchange": "driver"},
    "replicated": {"exchange": "replicated", "iterations_per_job": 4},
}
_mode: dict[str, Any] = {}


@pytest.fixture(params=MODES.values(), ids=MODES, autouse=True)
def _every_mode(request: pytest.FixtureRequest) -> None:
    _mode.clear()
    _mode.update(request.param)


def trainer(module: nn.Module, optimizer: Any, iterations: int, **options: Any) -> Trainer:
    settings = {"batch_size": 60, "seed": 3, "end_when": MaxIteration(iterations), "progress": False}
    options = settings | ({} if "num_shards" in options else _mode) | options
    return Trainer(module, loss=options.pop("loss", LOSS), optimizer=optimizer, **options)


@pytest.mark.parametrize("optimizer", with_jvm(OPTIMIZERS, "adam"))
def test_one_partition_is_plain_torch_to_the_bit(spark: Any, optimizer: Any) -> None:
    parts = partitioned([700])
    with as_dataset(spark, parts) as data:
        result = trainer(mlp(), optimizer, 14).fit(data)  # two more than an epoch
    with threads(2):
        expected = plain(mlp(), LOSS, optimizer, parts, 60, 14, seed=3)
    assert_bit_equal(result.module, expected)


UNEVEN = {
    f"{name}-{number}": (OPTIMIZERS[name], SIZES[number])
    for name, number in (("adam", "2"), ("sgd_momentum", "3"), ("adam", "7"))
}


@pytest.mark.parametrize("case", with_jvm(UNEVEN, "adam-7"))
def test_uneven_partitions_are_plain_torch_but_for_rounding(spark: Any, case: Any) -> None:
    optimizer, sizes = case
    parts = partitioned(sizes)
    with as_dataset(spark, parts) as data:
        result = trainer(mlp(), optimizer, 14).fit(data)
    expected = plain(mlp(), LOSS, optimizer, parts, 60, 14, seed=3)
    assert relative_error(result.module, expected) < 1e-6


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_batchnorm_dropout_tied_frozen_and_unused_weights(spark: Any, optimizer: Any) -> None:
    parts = partitioned([310, 120, 200])
    with as_dataset(spark, parts) as data:
        result = trainer(Everything(), optimizer, 12).fit(data)
    with threads(1):
        expected = decomposed(Everything(), LOSS, optimizer, parts, 60, 12, seed=3)
    assert_bit_equal(result.module, expected)
    assert result.module.tied_a.weight is result.module.tied_b.weight
    assert result.module.calls == 12


def test_unused_weights_do_not_decay(spark: Any) -> None:
    optimizer = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
    parts = partitioned([300])
    with as_dataset(spark, parts) as data:
        result = trainer(Everything(), optimizer, 4).fit(data)
    assert torch.equal(result.module.unused.weight, Everything().unused.weight)


@pytest.mark.parametrize("num_shards", [1, 3, 50])
def test_the_number_of_shards_changes_no_bit(spark: Any, num_shards: int) -> None:
    parts = partitioned([200, 100])
    optimizer = OPTIMIZERS["adam"]
    with as_dataset(spark, parts) as data:
        results = [trainer(mlp(), optimizer, 5, num_shards=n).fit(data) for n in (2, num_shards)]
    assert_bit_equal(results[0].module, results[1].module)


@pytest.mark.parametrize("_every_mode", [MODES["replicated"]], ids=["replicated"], indirect=True)
@pytest.mark.jvm
def test_two_runs_are_equal_to_the_bit(spark: Any) -> None:
    x, y = digits(500)
    results = []
    for _ in range(2):
        df = spark.createDataFrame(
            [(x[i].tolist(), int(y[i])) for i in range(len(y))], "pixels array<float>, digit long"
        )
        with Dataset.from_dataframe(df, features="pixels", label="digit", num_partitions=3) as data:
            results.append(trainer(Everything(), OPTIMIZERS["adam"], 10).fit(data))
    assert_bit_equal(results[0].module, results[1].module)
    assert results[0].history.column("loss") == results[1].history.column("loss")


def test_another_seed_gives_another_result(spark: Any) -> None:
    with as_dataset(spark, partitioned([300])) as data:
        a, b = (trainer(mlp(), OPTIMIZERS["adam"], 3, seed=seed).fit(data) for seed in (1, 2))
    assert relative_error(a.module, b.module) > 1e-6


def test_micro_batches_accumulate_to_the_same_gradient(spark: Any) -> None:
    parts = partitioned([300])
    with as_dataset(spark, parts) as data:
        result = trainer(mlp(), OPTIMIZERS["sgd_momentum"], 10, micro_batch_size=7).fit(data)
    expected = plain(mlp(), LOSS, OPTIMIZERS["sgd_momentum"], parts, 60, 10, seed=3)
    assert relative_error(result.module, expected) < 1e-6


@pytest.mark.parametrize(
    ("sizes", "batch_size"), [([17], 5), ([17], 40), ([1, 0, 9, 4], 3), ([1, 1, 1], 2), ([5, 6], 11)]
)
def test_every_row_is_visited_once_per_epoch(spark: Any, sizes: list[int], batch_size: int) -> None:
    rows = sum(sizes)
    starts = np.cumsum([0, *sizes])
    rdd = spark.sparkContext.parallelize(range(len(sizes)), len(sizes)).flatMap(
        lambda p: range(int(starts[p]), int(starts[p + 1]))
    )
    with Dataset.from_rdd(rdd, has_label=False, num_partitions="input") as data:
        result = Trainer(
            VisitCounter(rows),
            loss=lambda output, _: output.mean(),
            optimizer=partial(torch.optim.SGD, lr=1.0),
            batch_size=batch_size,
            end_when=MaxEpoch(1),
            progress=False,
            **_mode,
        ).fit(data)
    samples = result.history.column("samples")
    assert len(samples) == -(-rows // batch_size)
    assert sum(samples) == rows
    # A row visited once in an iteration of s samples has moved by exactly -1/s.
    moved = sorted(-result.module.visits.weight.detach().flatten().numpy())
    assert np.allclose(moved, sorted(1 / s for s in samples for _ in range(s)))


def test_keyword_inputs_dict_outputs_and_sample_weights(spark: Any) -> None:
    rng = np.random.default_rng(0)
    item, context = rng.integers(0, 10, 90), rng.normal(size=(90, 3)).astype(np.float32)
    label, weight = rng.normal(size=90).astype(np.float32), rng.random(90).astype(np.float32)

    def per_sample(output: Any, target: Any) -> Any:
        return (output["score"] - target) ** 2 + 0.01 * output["code"].square().sum(dim=-1)

    features = {"item": item, "context": context}
    optimizer = partial(torch.optim.SGD, lr=0.1)
    with Dataset.from_numpy(features, label, weight, spark=spark, num_partitions=2) as data:
        result = trainer(TwoTowers(), optimizer, 6, batch_size=30, loss=per_sample, shuffle=False).fit(data)

    module = TwoTowers()
    steps = optimizer(module.parameters())
    for t in range(6):
        rows = np.arange(30) + t % 3 * 30
        w = torch.from_numpy(weight[rows])
        output = module(torch.from_numpy(item[rows]), torch.from_numpy(context[rows]))
        steps.zero_grad()
        ((per_sample(output, torch.from_numpy(label[rows])) * w).sum() / w.sum()).backward()
        steps.step()
    assert relative_error(result.module, module) < 1e-6


def test_rows_of_weight_zero_change_nothing(spark: Any) -> None:
    x, y = digits(80)
    weight = np.ones(80, np.float32)
    weight[:40] = 0  # all rows of the first iteration
    with Dataset.from_numpy(x, y, weight, spark=spark, num_partitions=2) as data:
        loss = nn.CrossEntropyLoss(reduction="none")
        options: Any = {"loss": loss, "batch_size": 40, "shuffle": False}
        result = trainer(mlp(), OPTIMIZERS["adam"], 1, **options).fit(data)
        later = trainer(mlp(), OPTIMIZERS["adam"], 4, **options).fit(data)
    assert_bit_equal(result.module, mlp())
    losses = later.history.column("loss")
    assert np.isnan(losses[0])  # nothing is known yet
    assert losses[2] == losses[1] > losses[3]


def test_double_precision(spark: Any) -> None:
    x, y = digits(200)
    with Dataset.from_numpy(x, y, spark=spark, transform=lambda pixels: pixels.double()) as data:
        result = trainer(mlp().double(), OPTIMIZERS["adam"], 5).fit(data)
    expected = plain(
        mlp().double(),
        LOSS,
        OPTIMIZERS["adam"],
        [Partition(x.astype(np.float64), y)],
        60,
        5,
        seed=3,
        rows_of=dealt_rows,
    )
    assert relative_error(result.module, expected) < 1e-14


def test_several_outputs_and_labels(spark: Any) -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.digit, self.size = nn.Linear(64, 10), nn.Linear(64, 1)

        def forward(self, x: Any) -> Any:
            return self.digit(x), self.size(x).squeeze(-1)

    def loss(output: Any, label: Any) -> Any:
        return LOSS(output[0], label[0]) + nn.functional.mse_loss(output[1], label[1])

    x, y = digits(200)
    size = x.sum(axis=1)
    with Dataset.from_numpy(x, [y, size], spark=spark) as data:
        losses = trainer(TwoHeads(), OPTIMIZERS["adam"], 20, loss=loss).fit(data).history.column("loss")
    assert np.mean(losses[-10:]) < np.mean(losses[:10])


def test_optimizer_instance_with_groups(spark: Any) -> None:
    module = mlp()
    groups = [
        {"params": module[0].parameters(), "lr": 0.5},
        {"params": module[2].parameters(), "lr": 0.01, "weight_decay": 0.1},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    parts = partitioned([200])
    with as_dataset(spark, parts) as data:
        result = trainer(module, optimizer, 6).fit(data)

    def rebuild(_: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            [
                {"params": reference[0].parameters(), "lr": 0.5},
                {"params": reference[2].parameters(), "lr": 0.01, "weight_decay": 0.1},
            ],
            lr=0.1,
            momentum=0.9,
        )

    reference = copy.deepcopy(mlp())
    expected = _plain_in_place(reference, rebuild(None), parts)
    with threads(2):
        assert_bit_equal(result.module, expected)


def _plain_in_place(module: nn.Module, steps: torch.optim.Optimizer, parts: list[Partition]) -> nn.Module:
    with threads(2):
        for iteration in range(6):
            _, (rows,) = iteration_rows(parts, 60, iteration, seed=3)
            steps.zero_grad()
            LOSS(module(torch.from_numpy(parts[0].x[rows])), torch.from_numpy(parts[0].y[rows])).backward()
            steps.step()
    return module
