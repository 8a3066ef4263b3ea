"""However a run ends, its last state is written, goes on with the same bits, and its weights are not lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data import as_dataset, partitioned
from support.models import Everything
from support.reference import assert_bit_equal
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import SparkdlWarning
from sparkdl.train import (
    EMA,
    SWA,
    Checkpoint,
    EarlyStopping,
    EveryIterations,
    Hook,
    MaxIteration,
    PerEpoch,
    Run,
    Trigger,
)
from sparkdl.train.checkpoint import CheckpointFolder

PARTS = partitioned([90, 110])  # 4 iterations an epoch
END = 10

OPTIONS: dict[str, Any] = {
    "optimizer": partial(torch.optim.Adam, lr=1e-2),
    "loss": nn.CrossEntropyLoss(),
    "schedule": partial(ReduceLROnPlateau, patience=0, threshold=0.5, factor=0.5),
    "validate_when": EveryIterations(2),
    "metrics": MulticlassAccuracy(10),
    "monitor": "loss",
    "batch_size": 60,
    "seed": 3,
    "iterations_per_job": 3,
    "progress": False,
}


class When(Hook):
    """Does something at a turning point of one iteration; iterations count from 1."""

    def __init__(self, method: str, iteration: int, action: Callable[[Run], None]) -> None:
        def act(run: Run, *_: Any) -> None:
            if run.state.iteration == iteration:
                action(run)

        setattr(self, method, act)


def fail(run: Run) -> None:
    raise OSError(28, "No space left on device")


def press(times: int) -> Callable[[Run], None]:
    def action(run: Run) -> None:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)

    return action


def fit(data: Dataset, *hooks: Hook, iterations: int = END, resume: Any = False, **options: Any) -> Any:
    options = OPTIONS | {"end_when": MaxIteration(iterations), "hooks": hooks} | options
    return Trainer(options.pop("module", None) or Everything(), **options).fit(
        data, {"val": data, "more": data}, resume=resume
    )


def check_same(result: Any, straight: Any) -> None:
    assert_bit_equal(result.module, straight.module)
    for name in ("loss", "lr", "samples", "epoch", "iteration"):
        assert result.history.column(name) == straight.history.column(name)
    assert result.history.validations == straight.history.validations
    for name in ("epoch", "iteration", "step", "samples", "validations", "best_score", "stale"):
        assert getattr(result.state, name) == getattr(straight.state, name)


@pytest.fixture
def data(spark: Any) -> Any:
    with as_dataset(spark, PARTS) as data:
        yield data


# Iterations 1-2, 3-4, ... are groups, for validations end them; epochs end after 4 and 8.
ENDS: dict[str, tuple[When, int]] = {
    "Ctrl-C, in the middle of epoch and group": (When("on_iteration_end", 5, press(1)), 5),
    "a hook fails before a validation": (When("on_iteration_end", 6, fail), 6),
    "a hook fails at the end of an epoch, before its validation": (When("on_iteration_end", 4, fail), 4),
    "a second validation fails": (
        When("on_validation_begin", 4, lambda run: fail(run) if len(run.history.validations) % 2 else None),
        4,
    ),
    "a hook fails after an epoch": (When("on_epoch_end", 8, fail), 8),
    "a hook fails between": (When("on_iteration_begin", 7, fail), 7),
}


@pytest.mark.parametrize("options", [{}, {"averaging": EMA(0.5)}], ids=["last", "averaged"])
def test_scores_are_those_of_the_weights_that_early_stopping_goes_back_to(
    data: Dataset, options: dict[str, Any]
) -> None:
    worse = PerEpoch(partial(ExponentialLR, gamma=30))
    options = {"schedule": worse, "hooks": [EarlyStopping(3)], "end_when": MaxIteration(24), **options}
    trainer = Trainer(Everything(), **OPTIONS | options)
    with as_dataset(data.spark, partitioned([30])) as few:
        result = trainer.fit(data, {"val": few, "more": data})
        assert result.state.stale > 0
        assert result.scores["val/loss"] == result.state.best_score
        for name, rows in (("val", few), ("more", data)):
            for score, value in trainer.evaluate(rows, trainer.config.metrics).items():
                assert result.scores[f"{name}/{score}"] == pytest.approx(value, rel=1e-6)


def test_what_was_asked_for_and_never_happens_is_told(data: Dataset) -> None:
    trainer = Trainer(Everything(), **OPTIONS | {"schedule": None, "monitor": None})
    two = MaxIteration(2)
    for options, validation, message in (
        ({"averaging": SWA(start_epoch=9)}, None, r"SWA\(start_epoch=9.*no weights entered .* in 2"),
        ({"validate_when": EveryIterations(9)}, data, r"EveryIterations\(iterations=9\) never fired in 2"),
        ({"hooks": [EarlyStopping(2)]}, None, r"EarlyStopping: without validation it stops nothing"),
    ):
        with pytest.warns(SparkdlWarning, match=message) as found:
            trainer.with_options(end_when=two, **options).fit(data, validation)
        assert len(found) == 1


@pytest.mark.whole
@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(list(ENDS)[:2], id="on Spark", marks=pytest.mark.jvm),
        pytest.param(list(ENDS)[2:], id="here"),
    ],
)
def test_a_run_that_ends_goes_on_with_the_same_bits(data: Dataset, tmp_path: Path, ends: list[str]) -> None:
    straight = fit(data, EarlyStopping(50))
    for number, (how, (hook, iteration)) in enumerate((how, ENDS[how]) for how in ends):
        folder = tmp_path / str(number)
        hooks = (EarlyStopping(50), Checkpoint(folder), hook)
        if "Ctrl-C" in how:
            result = fit(data, *hooks)
            assert result.stopped_by == "interrupt"
        else:
            with pytest.raises(OSError, match="No space left") as caught:
                fit(data, *hooks)
            result = caught.value.result  # type: ignore[attr-defined]
            assert result.stopped_by == "error"
        assert result.state.iteration == len(result.history) == iteration, how
        assert list(CheckpointFolder(folder).complete())[-1] == iteration, how
        check_same(fit(data, EarlyStopping(50), Checkpoint(folder), resume=True), straight)


def test_a_limit_in_the_middle_of_an_epoch_and_what_is_there_already(
    data: Dataset, tmp_path: Path, monkeypatch: Any
) -> None:
    written: list[int] = []
    finish = CheckpointFolder.finish

    def counted(folder: Any, place: str, files: Any, *rest: Any) -> str:
        written.append(files.iteration)
        return finish(folder, place, files, *rest)

    monkeypatch.setattr(CheckpointFolder, "finish", counted)
    straight = fit(data)
    fit(data, Checkpoint(tmp_path), iterations=6)
    assert written == [4, 6]
    check_same(fit(data, Checkpoint(tmp_path), resume=True), straight)
    assert written == [4, 6, 8, 10]
    fit(data, Checkpoint(tmp_path), resume=True)  # has nothing to do
    fit(data, Checkpoint(tmp_path / "one", at_end=False), iterations=6)
    assert written == [4, 6, 8, 10, 4]


def test_a_checkpoint_within_an_epoch_has_the_validation_of_its_iteration(
    data: Dataset, tmp_path: Path
) -> None:
    hook = Checkpoint(tmp_path, EveryIterations(2), at_end=False)
    straight = fit(data)
    fit(data, hook, iterations=6)
    check_same(fit(data, hook, resume=True), straight)


def test_a_second_ctrl_c_ends_at_once_and_loses_nothing(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(data, Checkpoint(tmp_path), When("on_iteration_end", 5, press(2)))
    assert list(CheckpointFolder(tmp_path).complete()) == [4]
    result = caught.value.result  # type: ignore[attr-defined]
    assert (result.stopped_by, result.state.iteration) == ("interrupt", 5)
    assert_bit_equal(result.module, fit(data, iterations=5).module)


def test_the_error_that_ends_a_run_wins_over_that_of_its_last_checkpoint(
    data: Dataset, tmp_path: Path, monkeypatch: Any
) -> None:
    def full(*_: Any) -> str:
        raise OSError(28, "disk full")

    def break_disk(run: Run) -> None:
        monkeypatch.setattr(CheckpointFolder, "finish", full)

    hooks = (Checkpoint(tmp_path), When("on_epoch_begin", 4, break_disk))
    with pytest.raises(ZeroDivisionError) as caught:
        fit(data, *hooks, When("on_iteration_end", 5, lambda run: [][1 // 0]))
    assert "Checkpoint.on_boundary failed" in caught.value.__notes__[0]
    assert "disk full" in caught.value.__notes__[0]
    assert caught.value.result.state.iteration == 5  # type: ignore[attr-defined]
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="could not be written.*the newest is .*iteration-00000004"):
        result = fit(data, *hooks, iterations=6, resume=True)
    assert result.state.iteration == 6


class Broken(Trigger):
    def __call__(self, previous: Any, current: Any) -> bool:
        if current.iteration == 2:
            raise LookupError("broken trigger")
        return False


@pytest.mark.parametrize(
    ("options", "iteration"),
    [
        ({"end_when": Broken()}, 2),
        ({"validate_when": Broken()}, 2),
        ({"hooks": [When("on_train_end", 3, fail)], "end_when": MaxIteration(3)}, 3),
        ({"hooks": [When("on_iteration_begin", 1, lambda run: exit(3))]}, 1),
    ],
    ids=["end_when", "validate_when", "on_train_end", "exit"],
)
def test_whatever_leaves_fit_carries_what_was_trained(data: Dataset, options: Any, iteration: int) -> None:
    with pytest.raises((LookupError, OSError, SystemExit)) as caught:
        fit(data, **options)
    result = caught.value.result  # type: ignore[union-attr]
    assert result.state.iteration == len(result.history) == iteration


def test_after_an_error_older_checkpoints_stay(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        fit(data, Checkpoint(tmp_path, keep=1), When("on_iteration_end", 5, fail))
    assert list(CheckpointFolder(tmp_path).complete()) == [4, 5]


STOPPED = """
from functools import partial
import numpy as np
import torch
from torch import nn
from sparkdl import Dataset, Trainer, session
from sparkdl.exceptions import ConfigError
from sparkdl.train import Checkpoint, Hook, MaxIteration

class Stop(Hook):
    def on_iteration_end(self, run):
        if run.state.iteration == 4:
            run.data.spark.stop()

spark = session.builder("local[1]").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
x = np.ones((20, 4), np.float32)
data = Dataset.from_numpy(x, x[:, :1], spark=spark)
trainer = Trainer(nn.Linear(4, 1), loss=nn.MSELoss(), optimizer=partial(torch.optim.Adam, lr=0.1),
                  batch_size=10, end_when=MaxIteration(9), iterations_per_job=3,
                  hooks=[Checkpoint("{folder}"), Stop()], progress=False)
try:
    trainer.fit(data)
except Exception as error:
    print("iterations=%d" % error.result.state.iteration)
for use in (trainer.fit, trainer.predict, trainer.evaluate, len, Dataset.peek):
    try:
        use(data)
    except ConfigError as error:
        assert "was stopped" in str(error) and error.code == "config-cluster", error
        print("refused")
data.release()
"""


@pytest.mark.slow
def test_a_context_that_was_stopped(tmp_path: Path) -> None:
    """In the middle of a run, and before one."""
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED.replace("{folder}", str(tmp_path / "run")))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["iterations=4", *["refused"] * 4], done.stderr
