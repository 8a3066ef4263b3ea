"""A run that stops and goes on ends with the bits of one that never stopped."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.data import as_dataset, partitioned
from support.models import Everything, mlp
from support.no_jvm import with_jvm
from support.reference import assert_bit_equal, relative_error
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import ConfigError
from sparkdl.optim import LAMB, LBFGS, ClipByNorm, ParamGroup, Staleness
from sparkdl.train import (
    EMA,
    SWA,
    EarlyStopping,
    EveryIterations,
    Freeze,
    Hook,
    MaxIteration,
    PerIteration,
    Run,
    Unfreeze,
    latest,
    load_weights,
)
from sparkdl.train import Checkpoint as AnyCheckpoint

Checkpoint = partial(AnyCheckpoint, at_end=False)  # test_train_ending.py has the run's end
PARTS = partitioned([90, 0, 110])  # 4 iterations an epoch

SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {},
    "sgd": {"optimizer": partial(torch.optim.SGD, lr=0.1)},
    "amsgrad, groups": {
        "optimizer": partial(torch.optim.Adam, lr=1e-3, amsgrad=True),
        "groups": [ParamGroup("*.bias", lr=1e-2)],
    },
    "schedule": {"schedule": PerIteration(partial(LambdaLR, lr_lambda=lambda n: 0.9**n))},
    "plateau": {"schedule": partial(ReduceLROnPlateau, patience=0, threshold=0.2, factor=0.5)},
    "ema": {"averaging": EMA(0.9)},
    "swa": {"averaging": SWA(start_epoch=0), "optimizer": partial(torch.optim.SGD, lr=0.1)},
    "lamb, clip": {"optimizer": partial(LAMB, lr=1e-2), "clip": ClipByNorm(0.5), "num_shards": 2},
    "lbfgs": {"optimizer": partial(LBFGS, lr=0.5), "batch_size": 200},
    "late gradients": {"staleness": Staleness(share=0.5, seed=5)},
}


def trainer(path: Any, iterations: int, module: nn.Module | None = None, **options: Any) -> Trainer:
    options = {
        "optimizer": partial(torch.optim.Adam, lr=1e-3),
        "batch_size": 60,
        "seed": 3,
        "progress": False,
        "hooks": [Checkpoint(str(path), every=EveryIterations(3), keep=2)],
    } | options
    return Trainer(
        module or Everything(), loss=nn.CrossEntropyLoss(), end_when=MaxIteration(iterations), **options
    )


@pytest.fixture
def data(spark: Any) -> Any:
    with as_dataset(spark, PARTS) as data:
        yield data


@pytest.mark.parametrize("options", with_jvm(SETTINGS, next(iter(SETTINGS))))
def test_resumed_runs_are_bit_equal(data: Dataset, tmp_path: Path, options: Any) -> None:
    options = options | {"metrics": MulticlassAccuracy(10), "monitor": "loss"}
    straight = trainer(tmp_path / "straight", 9, **options).fit(data, validation=data)
    # In the middle of the second epoch: test_another_number_of_shards_goes_on stops a run.
    middle = str(tmp_path / "straight" / "iteration-00000006")
    result = trainer(tmp_path / "again", 9, **options).fit(data, validation=data, resume=middle)
    assert_bit_equal(result.module, straight.module)
    for name in ("loss", "lr", "samples", "epoch", "iteration"):
        assert result.history.column(name) == straight.history.column(name)
    assert result.history.validations == straight.history.validations
    assert result.scores == straight.scores
    for name in ("epoch", "iteration", "step", "samples", "loss", "validations", "best_score", "stale"):
        assert getattr(result.state, name) == getattr(straight.state, name)


def test_without_a_checkpoint_it_begins(data: Dataset, tmp_path: Path) -> None:
    result = trainer(tmp_path, 2).fit(data, resume=True)
    assert result.state.iteration == 2
    with pytest.raises(ConfigError, match="needs a Checkpoint"):
        trainer(tmp_path, 2, hooks=[]).fit(data, resume=True)


def test_another_number_of_shards_goes_on(data: Dataset, tmp_path: Path) -> None:
    straight = trainer(tmp_path / "a", 9, averaging=EMA(0.9)).fit(data)
    # Stopped after iteration 7: in the middle of an epoch, one iteration after a checkpoint.
    trainer(tmp_path / "b", 7, averaging=EMA(0.9), num_shards=3).fit(data)
    result = trainer(tmp_path / "b", 9, averaging=EMA(0.9), num_shards=2).fit(data, resume=True)
    assert_bit_equal(result.module, straight.module)


@pytest.mark.parametrize("exchange", ["replicated", "sharded", "driver"])
def test_a_run_that_goes_on_without_an_average_has_none(data: Dataset, tmp_path: Path, exchange: Any) -> None:
    """What is validated and saved is what is trained, also BatchNorm's statistics."""
    trainer(tmp_path, 8, averaging=EMA(0.99), exchange=exchange).fit(data)
    hooks = [Checkpoint(str(tmp_path), every=EveryIterations(6))]
    without = trainer(tmp_path, 12, exchange=exchange, hooks=hooks)
    result = without.fit(data, validation=data, resume=True)
    saved = Everything()
    load_weights(latest(tmp_path) or "", saved)
    assert_bit_equal(saved, result.module)
    assert result.scores["val/loss"] == pytest.approx(without.evaluate(data)["loss"])
    assert result.unaveraged is None


@pytest.mark.parametrize("before", [{}, {"averaging": EMA(0.9)}], ids=["none", "ema"])
def test_another_average_begins_anew(data: Dataset, tmp_path: Path, before: dict[str, Any]) -> None:
    """The mean of the ends of epochs has no part of a moving average."""
    trainer(tmp_path, 9, **before).fit(data)
    ends: list[nn.Module] = []

    class Keep(Hook):
        def on_epoch_end(self, run: Run) -> None:
            ends.append(run.trained_module())

    hooks = [Checkpoint(str(tmp_path)), Keep()]
    result = trainer(tmp_path, 20, averaging=SWA(start_epoch=1), hooks=hooks).fit(data, resume=True)
    mean = AveragedModel(ends[0], use_buffers=True)
    for module in ends:
        mean.update_parameters(module)
    assert len(ends) == 3
    assert relative_error(result.module, mean.module) < 1e-6


def test_another_monitored_score_has_a_best_of_its_own(data: Dataset, tmp_path: Path) -> None:
    """A loss of 2 is no worse than an accuracy of 0.1."""
    accuracy = MulticlassAccuracy(10)
    every: Any = {"metrics": accuracy, "optimizer": partial(torch.optim.SGD, lr=0.0)}
    one = trainer(tmp_path, 8, mlp(), monitor="multiclass_accuracy", **every).fit(data, validation=data)
    assert one.state.stale == 1
    hooks = [Checkpoint(str(tmp_path)), EarlyStopping(3)]
    more = {**every, "hooks": hooks}
    two = trainer(tmp_path, 16, mlp(), monitor="loss", **more).fit(data, validation=data, resume=True)
    assert two.state.best_score == two.scores["val/loss"]
    assert (two.state.stale, two.stopped_by) == (2, "end_when")
    more = {**every, "hooks": [Checkpoint(str(tmp_path)), EarlyStopping(3)]}
    three = trainer(tmp_path, 40, mlp(), monitor="loss", **more).fit(data, validation=data, resume=True)
    assert (three.state.stale, three.stopped_by, three.state.epoch) == (3, "hook", 5)


def test_the_other_direction_of_a_score_has_a_best_of_its_own(data: Dataset, tmp_path: Path) -> None:
    """The least loss is the worst where larger values are better."""
    every: Any = {"monitor": "loss", "optimizer": partial(torch.optim.SGD, lr=0.1)}
    hooks = [Checkpoint(str(tmp_path))]
    trainer("", 8, mlp(), hooks=hooks, **every).fit(data, validation=data)
    more = {**every, "hooks": [EarlyStopping(2)], "monitor_mode": "max"}
    path = str(tmp_path / "iteration-00000004")
    result = trainer("", 40, mlp(), **more).fit(data, validation=data, resume=path)
    losses = [row["loss"] for row in result.history.validations]
    assert losses == sorted(losses, reverse=True)
    # The first one of its own is the best.
    assert (len(losses), result.state.stale, result.stopped_by) == (4, 2, "hook")
    assert result.state.best_score == result.scores["val/loss"] == losses[1]


class Frozen(Hook):
    """Writes down what is frozen in each epoch."""

    def __init__(self) -> None:
        self.by_epoch: dict[int, set[str]] = {}

    def on_iteration_begin(self, run: Run) -> None:
        self.by_epoch.setdefault(run.state.epoch, set()).update(n.partition(".")[0] for n in run.frozen)


FREEZES: dict[str, Any] = {
    "until": lambda: [Freeze("0.*", until_epoch=2)],
    "from": lambda: [Freeze("0.*", from_epoch=2)],
    "two": lambda: [Freeze("0.*", until_epoch=1), Freeze("0.bias", until_epoch=2)],
    "unfreeze": lambda: [Unfreeze("0.*", at_epoch=2)],
    "both": lambda: [Unfreeze("0.bias", at_epoch=1), Freeze("0.*", until_epoch=2)],
}


@pytest.mark.parametrize("make", FREEZES.values(), ids=FREEZES)
def test_layers_are_frozen_as_in_a_run_that_never_stopped(data: Dataset, tmp_path: Path, make: Any) -> None:
    def module() -> nn.Module:
        found = mlp()
        found[0].requires_grad_(make is not FREEZES["unfreeze"])  # type: ignore[operator, index]
        return found

    adamw, seen = partial(torch.optim.AdamW, lr=1e-2), Frozen()
    every = Checkpoint(str(tmp_path), every=EveryIterations(2), keep=None)
    straight = trainer("", 10, module(), optimizer=adamw, hooks=[*make(), seen, every]).fit(data)
    for end in (4, 6, 8):
        again, path = Frozen(), str(tmp_path / f"iteration-{end:08}")
        result = trainer("", 10, module(), optimizer=adamw, hooks=[*make(), again]).fit(data, resume=path)
        assert again.by_epoch == {e: names for e, names in seen.by_epoch.items() if e >= end // 4}
        assert_bit_equal(result.module, straight.module)


@pytest.mark.parametrize("after", [[], [Freeze("0.*", until_epoch=1)], [Freeze("2.*")]], ids=str)
@pytest.mark.parametrize("rows", ["same", "new"])
def test_what_a_freeze_of_the_run_before_held_is_trained(
    data: Dataset, tmp_path: Path, after: Any, rows: Any
) -> None:
    """The hooks of the run that goes on say what is frozen, as a second phase of fine-tuning wants."""
    every = Checkpoint(str(tmp_path), every=EveryIterations(4))
    trainer("", 4, mlp(), hooks=[Freeze("0.*"), every]).fit(data)
    hooks, seen = [*after, Checkpoint(str(tmp_path))], Frozen()
    result = trainer("", 8, mlp(), hooks=[*hooks, seen]).fit(data, resume=True, rows=rows)
    held = {"2"} if after and after[0].pattern == "2.*" else set()
    assert seen.by_epoch[1] == held
    changed = {n.partition(".")[0] for n, p in result.module.named_parameters() if not _same(p, n)}
    assert changed == {"0", "2"}


@pytest.mark.parametrize("trained", [True, False])
def test_a_module_that_is_unfrozen_or_frozen_by_hand_goes_on_so(
    data: Dataset, tmp_path: Path, trained: bool
) -> None:
    later, seen = Unfreeze("0.*", at_epoch=3), Frozen()
    before, after = mlp(), mlp()
    (after if trained else before)[0].requires_grad_(True)  # type: ignore[operator, index]
    (before if trained else after)[0].requires_grad_(False)  # type: ignore[operator, index]
    every = Checkpoint(str(tmp_path), every=EveryIterations(4))
    trainer("", 4, before, hooks=[later, every]).fit(data)
    hooks = [seen] if trained else [later, seen]
    trainer("", 16, after, hooks=[*hooks, Checkpoint(str(tmp_path))]).fit(data, resume=True)
    assert seen.by_epoch == {1: set() if trained else {"0"}, 2: set() if trained else {"0"}, 3: set()}


def test_hooks_that_unfreeze_are_known_by_their_arguments(data: Dataset, tmp_path: Path) -> None:
    def module() -> Any:
        found: Any = mlp()
        found[0].requires_grad_(False)
        return found

    one, two, seen = Unfreeze("0.weight", at_epoch=1), Unfreeze("0.bias", at_epoch=2), Frozen()
    every = Checkpoint(str(tmp_path), every=EveryIterations(8))
    trainer("", 8, module(), hooks=[one, two, every]).fit(data)
    after = module()
    after[0].weight.requires_grad_(True)
    hooks = [Unfreeze("0.bias", at_epoch=2), Checkpoint(str(tmp_path)), seen]
    trainer("", 12, after, hooks=hooks).fit(data, resume=True)
    assert seen.by_epoch == {2: set()}


def _same(trained: torch.Tensor, name: str) -> bool:
    return torch.equal(trained, mlp().state_dict()[name])


def test_other_partitions_go_on_at_an_epochs_border(spark: Any, tmp_path: Path) -> None:
    def run(path: str, iterations: int, sizes: list[int], **options: Any) -> Any:
        with as_dataset(spark, partitioned(sizes)) as data:
            made = trainer(tmp_path / path, iterations, mlp(), **options)
            return made.fit(data, resume=True)

    every = [Checkpoint(str(tmp_path / "cut"), every=EveryIterations(4))]
    run("cut", 8, [90, 110], hooks=every)
    result = run("cut", 12, [60, 70, 70], hooks=every)
    assert result.state.epoch == 3
    straight = run("straight", 12, [90, 110])
    # The third epoch has another order of rows, so the two can only be alike.
    assert 0 < relative_error(result.module, straight.module) < 0.05
    middle = [Checkpoint(str(tmp_path / "middle"), every=EveryIterations(3))]
    run("middle", 3, [90, 110], hooks=middle)
    with pytest.raises(ConfigError, match="rows lay in partitions of 90, 110 rows"):
        run("middle", 12, [60, 70, 70], hooks=middle)


def test_what_must_be_the_same_is_checked(data: Dataset, tmp_path: Path) -> None:
    trainer(tmp_path, 3).fit(data)
    for options, words in (
        ({"batch_size": 50}, "batch_size is 50 now and was 60"),
        ({"seed": 4}, "seed is 4"),
    ):
        with pytest.raises(ConfigError, match=words):
            trainer(tmp_path, 6, **options).fit(data, resume=True)
    with pytest.raises(ConfigError, match=r"another module: 0\.weight has shape"):
        trainer(tmp_path, 6, mlp()).fit(data, resume=True)
    for optimizer, words in (
        (partial(torch.optim.SGD, lr=0.1), "optimizer is SGD now and was Adam"),
        (partial(torch.optim.RMSprop, lr=0.1), "optimizer is RMSprop now and was Adam"),
        (partial(torch.optim.Adam, lr=1e-3, amsgrad=True), "keeps .*max_exp_avg_sq"),
    ):
        with pytest.raises(ConfigError, match=words):
            trainer(tmp_path, 6, optimizer=optimizer).fit(data, resume=True)
    result = trainer(tmp_path, 4, optimizer=partial(torch.optim.Adam, lr=0.5)).fit(data, resume=True)
    assert result.history.column("lr") == [1e-3] * 3 + [0.5]


def test_momentum_may_be_switched_on_and_off(data: Dataset, tmp_path: Path) -> None:
    for iterations, momentum in ((3, 0.0), (6, 0.9), (9, 0.0)):
        optimizer = partial(torch.optim.SGD, lr=0.01, momentum=momentum)
        result = trainer(tmp_path, iterations, optimizer=optimizer).fit(data, resume=True)
        assert result.state.iteration == iterations


def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(data: Dataset, tmp_path: Path) -> None:
    straight = trainer(tmp_path / "straight", 8).fit(data)
    for damaged in ("model.safetensors", "training.safetensors", "state.json"):
        folder = tmp_path / damaged
        trainer(folder, 6).fit(data)
        file = folder / "iteration-00000006" / damaged
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0x55
        file.write_bytes(bytes(content[: -10 if damaged == "state.json" else None]))
        with pytest.warns(UserWarning, match="set aside"):
            result = trainer(folder, 8).fit(data, resume=True)
        assert_bit_equal(result.module, straight.module)
        assert {p.name for p in folder.iterdir()} == {
            "iteration-00000003",
            "iteration-00000006",
            "damaged-iteration-00000006",
        }


def test_one_checkpoint_can_be_named(data: Dataset, tmp_path: Path) -> None:
    straight = trainer(tmp_path / "a", 8).fit(data)
    path = tmp_path / "a" / "iteration-00000003"
    result = trainer(tmp_path / "b", 8, hooks=[]).fit(data, resume=str(path))
    assert_bit_equal(result.module, straight.module)
    assert json.loads((path / "state.json").read_text())["state"]["iteration"] == 3


class Lose(Hook):
    """Takes the state of the shards from the executors, as if both that held it were lost."""

    def __init__(self, iterations: set[int]) -> None:
        self.iterations = set(iterations)

    def on_iteration_end(self, run: Run) -> None:
        if run.state.iteration in self.iterations:
            self.iterations.discard(run.state.iteration)
            sc = run.data.spark.sparkContext
            for rdd in dict(sc._jsc.getPersistentRDDs()).values():
                if rdd.rdd().isLocallyCheckpointed() if hasattr(rdd, "rdd") else False:
                    rdd.unpersist(True)
            sc.parallelize(range(2), 2).foreach(_delete_replicas)


def _delete_replicas(_: int) -> None:
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        shutil.rmtree(Path(folder, "sparkdl-fits"), ignore_errors=True)


@pytest.mark.jvm
@pytest.mark.parametrize(
    ("exchange", "commit_every"),
    [("driver", 4), ("replicated", 1), ("sharded", None)],
)
def test_lost_optimizer_state_is_replayed_from_a_commit(
    data: Dataset, commit_every: Any, exchange: Any
) -> None:
    def run(**options: Any) -> Any:
        options |= {"averaging": EMA(0.9), "commit_every": commit_every, "exchange": exchange}
        return trainer("", 7, mlp(), **options).fit(data)

    straight = run(hooks=[])
    result = run(hooks=[Lose({2, 5})])  # before the first commit of some, and after it
    assert_bit_equal(result.module, straight.module)
    assert result.history.column("loss") == straight.history.column("loss")
    assert len(result.history) == 7


@pytest.mark.jvm
def test_without_commits_a_loss_ends_the_run_with_what_there_is(data: Dataset) -> None:
    from sparkdl.exceptions import TaskError

    options = {"commit_every": 0, "max_failures": 2, "exchange": "driver"}
    with pytest.raises(TaskError, match="iteration 4") as caught:
        trainer("", 7, hooks=[Lose({3})], **options).fit(data)
    assert caught.value.result is not None
    assert caught.value.result.state.iteration == 3
    straight = trainer("", 3, hooks=[]).fit(data)
    assert_bit_equal(caught.value.result.module, straight.module)
    assert np.isfinite(caught.value.result.history.column("loss")).all()


@pytest.mark.jvm
def test_weights_that_are_lost_with_all_executors_are_said_to_be_lost(data: Dataset) -> None:
    from sparkdl.exceptions import TaskError

    options = {"commit_every": 0, "max_failures": 1, "exchange": "sharded", "iterations_per_job": 1}
    with pytest.raises(TaskError, match="fetch") as caught:
        trainer("", 7, hooks=[Lose({3})], **options).fit(data)
    assert caught.value.result is None
    assert "The last weights cannot be fetched any more" in caught.value.__notes__[0]
