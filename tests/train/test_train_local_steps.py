"""Partitions that step by themselves: as plain torch does it, with what they keep and lose."""

from __future__ import annotations

import copy
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data import as_dataset, partitioned
from support.models import mlp
from support.reference import Partition, assert_bit_equal, relative_error
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.data import sampler
from sparkdl.exceptions import ConfigError, NonFiniteError
from sparkdl.optim import ClipByNorm, ParamGroup
from sparkdl.train import (
    Checkpoint,
    DropStragglers,
    EveryIterations,
    Hook,
    Int8,
    LocalSteps,
    MaxEpoch,
    MaxIteration,
    PerIteration,
    TopK,
)

PARTS = partitioned([300, 200])
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=3e-3)
DILOCO = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
SEED = 3


def reference(
    parts: list[Partition], inner: Any, steps: LocalSteps, rounds: int, batch_size: int = 50
) -> nn.Module:
    """Local steps in plain torch: a module and an optimizer per partition, an outer optimizer."""
    module = mlp()
    outer = steps.outer(module.parameters())
    replicas = [copy.deepcopy(module) for _ in parts]
    optimizers = [inner(replica.parameters()) for replica in replicas]
    sizes, epoch, step = [len(p.x) for p in parts], 0, 0
    for _ in range(rounds):
        count = steps.at(epoch)
        of_epoch = sampler.iterations_per_epoch(sum(sizes), batch_size * count)
        ways, weights = [], []
        for p, (part, replica, optimizer) in enumerate(zip(parts, replicas, optimizers, strict=True)):
            replica.load_state_dict(module.state_dict())
            rows = sampler.rows_of(
                sizes[p], of_epoch, step, seed=SEED, epoch=epoch, partition=p, shuffle=True
            )
            for k in range(count):
                own = rows[k * len(rows) // count : (k + 1) * len(rows) // count]
                optimizer.zero_grad()
                output = replica(torch.from_numpy(part.x[own]))
                nn.functional.cross_entropy(output, torch.from_numpy(part.y[own])).backward()
                optimizer.step()
            pairs = zip(module.parameters(), replica.parameters(), strict=True)
            ways.append([(a - b).detach() for a, b in pairs])
            weights.append(len(rows))
        for index, parameter in enumerate(module.parameters()):
            shares = zip(weights, ways, strict=True)
            parameter.grad = sum(w / sum(weights) * way[index] for w, way in shares)  # type: ignore[assignment]
        outer.step()
        step += 1
        if step == of_epoch:
            epoch, step = epoch + 1, 0
    return module


def fit(spark: Any, parts: list[Partition] = PARTS, *, resume: Any = False, **options: Any) -> Any:
    with as_dataset(spark, parts) as data:
        return Trainer(
            options.pop("module", None) or mlp(),
            loss=nn.CrossEntropyLoss(),
            optimizer=options.pop("optimizer", SGD),
            batch_size=50,
            seed=SEED,
            progress=False,
            **{"end_when": MaxIteration(7), **options},
        ).fit(data, resume=resume)


def test_class_weights_that_cancel_over_the_steps_have_a_loss(spark: Any) -> None:
    """Each step divides by weights of its own; their sum over all steps was 0, and the loss NaN."""
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    y, weight = torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, -1.0])
    torch.manual_seed(0)
    start = nn.Linear(3, 2)
    trainer = Trainer(
        start,
        loss=nn.CrossEntropyLoss(weight=weight),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=2,
        local_steps=2,
        shuffle=False,
        end_when=MaxIteration(1),
        progress=False,
    )
    plain, losses = copy.deepcopy(start), []
    own = torch.optim.SGD(plain.parameters(), lr=0.1)
    for rows in (slice(0, 2), slice(2, 4)):
        own.zero_grad()
        loss = nn.functional.cross_entropy(plain(x[rows]), y[rows], weight)
        loss.backward()
        own.step()
        losses.append(loss.item())
    with Dataset.from_numpy(x.numpy(), y.numpy(), spark=spark, num_partitions=1) as data:
        found = trainer.fit(data)
    assert found.history.column("loss") == [pytest.approx(sum(losses) / 2)]
    torch.testing.assert_close(found.module.weight, plain.weight)


@pytest.mark.parametrize("exchange", ["driver", "replicated"])
@pytest.mark.parametrize(
    ("optimizer", "steps"),
    [
        pytest.param(SGD, LocalSteps(4), id="local SGD"),
        pytest.param(ADAMW, LocalSteps(3, DILOCO), id="DiLoCo", marks=pytest.mark.jvm),
        pytest.param(ADAMW, LocalSteps({0: 1, 1: 5}), id="post-local"),
    ],
)
def test_as_plain_torch(spark: Any, exchange: str, optimizer: Any, steps: LocalSteps) -> None:
    rounds = 14 if isinstance(steps.steps, dict) else 7
    found = fit(
        spark, optimizer=optimizer, local_steps=steps, exchange=exchange, end_when=MaxIteration(rounds)
    )
    assert relative_error(found.module, reference(PARTS, optimizer, steps, rounds)) < 1e-6
    assert found.history.column("lost") == [0] * rounds


def test_one_partition_and_plain_averaging_are_plain_training(spark: Any) -> None:
    local = fit(spark, partitioned([400]), local_steps=4, end_when=MaxEpoch(2), shuffle=False)
    plain = fit(spark, partitioned([400]), end_when=MaxEpoch(2), shuffle=False)
    assert len(local.history) == 4
    assert len(plain.history) == 16
    assert relative_error(local.module, plain.module) < 1e-6


def test_groups_and_shards_give_the_same_bits(spark: Any) -> None:
    options: Any = {
        "optimizer": ADAMW,
        "local_steps": LocalSteps(3, DILOCO),
        "clip": ClipByNorm(1.0),
        "groups": [ParamGroup("*.bias", weight_decay=0.0, lr=1e-2)],
        "schedule": PerIteration(partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.8)),
        "gradient_codec": "bf16",
    }
    one = fit(spark, exchange="driver", **options)
    several = fit(spark, exchange="replicated", iterations_per_job=3, **options)
    assert_bit_equal(several.module, one.module)
    assert several.history.column("loss") == one.history.column("loss")
    assert one.history.column("lr")[:2] == pytest.approx([3e-3, 3e-3 * 0.8])


@pytest.mark.jvm
def test_rounds_are_undone_with_what_partitions_keep(spark: Any) -> None:
    class Stops(Hook):
        def on_iteration_end(self, run: Any) -> None:
            if run.state.iteration == 5:
                run.stop("enough")

    steps = LocalSteps(3, DILOCO)
    once = fit(spark, optimizer=ADAMW, local_steps=steps, end_when=MaxIteration(5), exchange="driver")
    for codec in ("fp32", "int8"):
        options: Any = {"optimizer": ADAMW, "local_steps": steps, "gradient_codec": codec}
        stopped = fit(spark, hooks=[Stops()], exchange="replicated", iterations_per_job=4, **options)
        whole = fit(spark, end_when=MaxIteration(5), exchange="replicated", iterations_per_job=1, **options)
        assert_bit_equal(stopped.module, whole.module)
        if codec == "fp32":
            assert_bit_equal(stopped.module, once.module)


def test_a_partition_without_rows_passes_its_state_on(spark: Any) -> None:
    parts = partitioned([300, 3])  # the second has rows in three of seven rounds
    steps = LocalSteps(1)
    found = fit(spark, parts, optimizer=ADAMW, local_steps=steps, end_when=MaxEpoch(2))
    assert found.history.column("lost") == [0] * 14
    assert [hi - lo for lo, hi in (sampler.share(3, 7, t) for t in range(7))] == [0, 0, 1, 0, 1, 0, 1]


class Loses(Hook):
    """Deletes what partitions have kept after an iteration."""

    def __init__(self, after: int) -> None:
        self.after = after

    def looks(self, previous: Any, state: Any) -> bool:
        return bool(state.iteration == self.after)

    def on_iteration_end(self, run: Any) -> None:
        if run.state.iteration == self.after:
            for folder in run.data.spark.sparkContext.parallelize(range(2), 2).flatMap(files).collect():
                shutil.rmtree(folder, ignore_errors=True)


def files(_: int) -> list[str]:
    """Return the folders of what partitions keep on the executor that runs this."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return [str(found) for folder in local for found in Path(folder, "sparkdl-fits").glob("*/partitions")]


@pytest.mark.parametrize("exchange", ["driver", "replicated"])
def test_what_is_lost_is_counted_and_tolerated(spark: Any, exchange: str) -> None:
    lost = fit(spark, optimizer=ADAMW, local_steps=3, exchange=exchange, hooks=[Loses(4)])
    assert lost.history.column("lost") == [0, 0, 0, 0, 2, 0, 0]
    kept = fit(spark, optimizer=ADAMW, local_steps=3, exchange=exchange)
    assert relative_error(lost.module, kept.module) < 0.1


def test_a_resumed_run_begins_with_fresh_states(spark: Any, tmp_path: Path) -> None:
    def run(rounds: int, resume: bool) -> Any:
        hooks = [Checkpoint(str(tmp_path), every=EveryIterations(4))]
        return fit(
            spark,
            optimizer=ADAMW,
            local_steps=3,
            hooks=hooks,
            resume=resume,
            end_when=MaxIteration(rounds),
        )

    run(4, False)
    assert run(7, True).history.column("lost") == [0, 0, 0, 0, 2, 0, 0]
    with pytest.raises(ConfigError, match="local_steps is 2 now and was 3"):
        fit(spark, optimizer=ADAMW, local_steps=2, hooks=[Checkpoint(str(tmp_path))], resume=True)


def test_a_resumed_run_begins_without_what_a_codec_has_left_out(spark: Any, tmp_path: Path) -> None:
    def run(iterations: int, folder: str, codec: Any) -> Any:
        hooks = [Checkpoint(str(tmp_path / folder))]
        options = {"hooks": hooks, "gradient_codec": codec, "end_when": MaxIteration(iterations)}
        return fit(spark, resume=True, **options)

    run(4, "left out", "int8")
    assert run(7, "left out", "int8").history.column("lost") == [0, 0, 0, 0, 2, 0, 0]
    plain = Int8(error_feedback=False)
    run(4, "nothing", plain)
    resumed, straight = run(7, "nothing", plain), run(7, "straight", plain)
    assert_bit_equal(resumed.module, straight.module)
    assert resumed.history.column("lost") == [0] * 7


@pytest.mark.parametrize("codec", ["int8", TopK(0.05)])
def test_what_a_codec_leaves_out_comes_later(spark: Any, codec: Any) -> None:
    options: Any = {"end_when": MaxEpoch(6), "optimizer": partial(torch.optim.SGD, lr=0.2)}
    full = fit(spark, **options)
    for exchange in ("driver", "replicated"):
        coded = fit(spark, gradient_codec=codec, exchange=exchange, **options)
        assert coded.history[-1]["loss"] < 1.2 * full.history[-1]["loss"] + 0.05
        share = coded.history[-1]["bytes"]["gradients"] / full.history[-1]["bytes"]["gradients"]
        assert share < 0.4
        assert coded.history.column("lost") == [0] * len(full.history)


def test_gradients_that_are_not_finite_are_found(spark: Any) -> None:
    class Bad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Any) -> Any:
            return self.inner(x) * (float("nan") if self.training and len(x) > 2 else 1.0)

    with pytest.raises(NonFiniteError, match="loss"):
        fit(spark, module=Bad(), local_steps=2)


@pytest.mark.jvm
def test_all_files_are_deleted(spark: Any) -> None:
    for exchange in ("driver", "replicated"):
        fit(spark, optimizer=ADAMW, local_steps=2, exchange=exchange, end_when=MaxIteration(2))
        assert not spark.sparkContext.parallelize(range(2), 2).flatMap(files).collect()


def test_options_that_cannot_be() -> None:
    for steps in (0, -1, True, 1.5, {1: 4}, {0: 0}, {0: 1, -1: 2}, {0.5: 1, 0: 1}, {}):
        with pytest.raises(ConfigError, match="LocalSteps: steps"):
            LocalSteps(steps)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="outer=3"):
        LocalSteps(2, outer=3)  # type: ignore[arg-type]
    options: Any = {"loss": nn.MSELoss(), "optimizer": SGD}
    with pytest.raises(ConfigError, match="local_steps=0"):
        Trainer(mlp(), local_steps=0, **options)
    with pytest.raises(ConfigError, match="drop_stragglers"):
        Trainer(mlp(), local_steps=2, drop_stragglers=DropStragglers(), **options)
    assert LocalSteps({0: 1, 5: 8, 2: 4}).at(4) == 4
    assert [LocalSteps({0: 1, 5: 8}).at(e) for e in (0, 4, 5, 50)] == [1, 1, 8, 8]
