"""A run goes on with other rows: weights, optimizer, schedule and counters stay, the old epoch ends."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.data import digits
from support.reference import assert_bit_equal
from torch import nn
from torch.optim.lr_scheduler import StepLR

from sparkdl import Dataset, Trainer
from sparkdl.data import sampler
from sparkdl.exceptions import ConfigError
from sparkdl.train import Checkpoint, EarlyStopping, Hook, MaxEpoch, MaxIteration, latest

ADAM = partial(torch.optim.Adam, lr=1e-2)
HALVE = partial(StepLR, step_size=1, gamma=0.5)
X, Y = digits(400)
OLD, NEW = slice(0, 200), slice(200, 330)  # 4 iterations an epoch, and 3


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 10)


def trainer(path: Any, end: Any, *hooks: Hook, **options: Any) -> Trainer:
    options = {"batch_size": 50, "shuffle": False, "progress": False, "schedule": HALVE} | options
    return Trainer(
        net(),
        loss=nn.CrossEntropyLoss(),
        optimizer=ADAM,
        end_when=end,
        hooks=[Checkpoint(str(path)), *hooks],
        **options,
    )


def rows(spark: Any, part: slice, partitions: int = 1) -> Dataset:
    return Dataset.from_numpy(X[part], Y[part], spark=spark, num_partitions=partitions)


def in_torch(*parts: tuple[slice, int]) -> nn.Module:
    """Train on some iterations of each part, which is one epoch, with one optimizer and schedule."""
    module = net()
    optimizer = ADAM(module.parameters())
    schedule = HALVE(optimizer)
    for part, iterations in parts:
        x, y = torch.from_numpy(X[part]), torch.from_numpy(Y[part])
        steps = sampler.iterations_per_epoch(len(x), 50)
        for step in range(iterations):
            batch = slice(step * len(x) // steps, (step + 1) * len(x) // steps)
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()
        schedule.step()
    return module


def test_it_goes_on_as_torch_does(spark: Any, tmp_path: Path) -> None:
    with rows(spark, OLD) as old, rows(spark, NEW) as new:
        trainer(tmp_path, MaxIteration(6)).fit(old)
        found = trainer(tmp_path, MaxEpoch(2)).fit(new, resume=True, rows="new")
    expected = in_torch((OLD, 4), (OLD, 2), (NEW, 3), (NEW, 3))
    assert_bit_equal(found.module, expected)
    assert (found.state.epoch, found.state.iteration, found.stopped_by) == (4, 12, "end_when")
    assert found.history.column("epoch") == [1, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4]
    assert found.history.column("lr")[::3] == [1e-2, 1e-2, 2.5e-3, 1.25e-3]
    (change,) = found.history.new_rows
    seconds = change.pop("seconds")
    assert 0 < seconds < found.state.seconds
    counts = {"epoch": 2, "iteration": 6, "samples": 300, "validations": 0}
    assert change == counts | {"rows": 200, "now": 130, "left": 100}
    found.history.to_jsonl(tmp_path / "history.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines[:2]] == ["new_rows", "iteration"]
    assert lines[0]["left"] == 100


def test_a_run_on_new_rows_can_itself_be_interrupted(spark: Any, tmp_path: Path) -> None:
    """``end_when`` goes on counting from the new rows; three days, the last of them in two runs."""

    class Fails(Hook):
        def on_iteration_end(self, run: Any) -> None:
            if run.state.iteration == 9:
                raise RuntimeError("lost the driver")

    with rows(spark, OLD) as old, rows(spark, NEW, 2) as new, rows(spark, OLD, 3) as third:
        for folder in ("straight", "stopped"):
            trainer(tmp_path / folder, MaxEpoch(1)).fit(old)
            trainer(tmp_path / folder, MaxEpoch(1)).fit(new, resume=str(tmp_path / folder), rows="new")
        straight = trainer(tmp_path / "straight", MaxEpoch(2)).fit(third, resume=True, rows="new")
        with pytest.raises(RuntimeError):
            trainer(tmp_path / "stopped", MaxEpoch(2), Fails()).fit(third, resume=True, rows="new")
        found = trainer(tmp_path / "stopped", MaxEpoch(2)).fit(third, resume=True)
    assert_bit_equal(found.module, straight.module)
    assert found.state.iteration == straight.state.iteration == 4 + 3 + 8
    assert [change["iteration"] for change in found.history.new_rows] == [4, 7]
    assert [change["left"] for change in found.history.new_rows] == [0, 0]


def test_scores_of_old_rows_do_not_count(spark: Any, tmp_path: Path) -> None:
    """Early stopping compares scores, and would bring the old rows' best weights back."""
    with rows(spark, OLD) as old, rows(spark, NEW) as new:
        first = trainer(tmp_path, MaxEpoch(6), EarlyStopping(9)).fit(old, validation=old)
        wrong = Dataset.from_numpy(X[NEW], (Y[NEW] + 1) % 10, spark=spark)
        with wrong:  # scores get worse than any before
            path = latest(str(tmp_path))
            second = trainer(tmp_path / "b", MaxEpoch(1), EarlyStopping(9)).fit(
                new, validation=wrong, resume=path, rows="new"
            )
    assert second.state.best_score == second.scores["val/loss"] > first.scores["val/loss"]
    assert second.state.stale == 0
    assert second.state.validations == 7


class Distance(nn.Module):
    """Takes two columns by position, which mean different things."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (self.first(x.unsqueeze(1)) - self.second(y.unsqueeze(1))).squeeze(1)
        return found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (
            {"features": ["b", "a"], "label": "c"},
            "'b' is features_0 now and was features_1; 'a' is features_1",
        ),
        ({"features": ["a", "c"], "label": "b"}, "'c' is features_1 now and was label; 'b' is label now"),
        ({"features": ["a", "b"], "label": "d", "weight": "c"}, ""),
        ({"features": ["d", "b"], "label": "c"}, ""),
    ],
    ids=["swapped", "label", "weight", "renamed"],
)
def test_columns_in_another_order_are_refused(spark: Any, tmp_path: Path, given: Any, found: str) -> None:
    """Nothing else tells them: they have the same types. Columns of other names may be the same ones."""
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 4)) ** 2, columns=[*"abcd"]).astype("f4")

    def fit(resume: bool, **columns: Any) -> None:
        loss = nn.MSELoss(reduction="none")
        options = {"batch_size": 20, "progress": False, "hooks": [Checkpoint(str(tmp_path))]}
        Trainer(Distance(), loss=loss, optimizer=ADAM, end_when=MaxEpoch(1), **options).fit(
            table, resume=resume, rows="new" if resume else "same", **columns
        )

    fit(False, features=["a", "b"], label="c")
    fit(True, features=["a", "b"], label="c")
    if not found:
        fit(True, **given)
        return
    with pytest.raises(ConfigError, match=f"those of the checkpoint in another order: {found}") as caught:
        fit(True, **given)
    assert caught.value.code == "config-resume"


def test_mistakes(spark: Any, tmp_path: Path) -> None:
    with rows(spark, OLD) as old:
        with pytest.raises(ConfigError, match="rows='other': expected 'same' or 'new'"):
            trainer(tmp_path, MaxEpoch(1)).fit(old, rows="other")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="rows='new' goes on from a checkpoint") as caught:
            trainer(tmp_path, MaxEpoch(1)).fit(old, rows="new")
        assert caught.value.code == "config-resume"
        trainer(tmp_path, MaxEpoch(1)).fit(old, resume=True, rows="new")  # the first day
        with (
            rows(spark, NEW) as new,
            pytest.raises(ConfigError, match="resume: rows is 130 now and was 200.*rows='new'"),
        ):
            trainer(tmp_path, MaxEpoch(1)).fit(new, resume=True)
        with (
            rows(spark, slice(100, 300)) as others,
            pytest.raises(ConfigError, match="gives rows of other values.*rows='new'"),
        ):
            trainer(tmp_path, MaxEpoch(2)).fit(others, resume=True)
        with (
            rows(spark, slice(100, 300), 3) as others,
            pytest.raises(ConfigError, match="gives rows of other values than.*rows='new'"),
        ):
            trainer(tmp_path, MaxEpoch(2)).fit(others, resume=True)
        with (
            rows(spark, slice(0, 250)) as grown,
            pytest.raises(ConfigError, match="was 200.*the table has grown, or.*rows='new'"),
        ):
            trainer(tmp_path, MaxEpoch(2)).fit(grown, resume=True)
        with rows(spark, NEW) as new, pytest.raises(ConfigError, match="resume: batch_size is 25"):
            trainer(tmp_path, MaxEpoch(1), batch_size=25).fit(new, resume=True, rows="new")
