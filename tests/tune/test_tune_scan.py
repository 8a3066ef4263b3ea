"""Searches whose trials are tasks, on rows that stay in their files."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch import nn

from sparkdl import Dataset, Trainer, tune
from sparkdl.data import given
from sparkdl.exceptions import DataError
from sparkdl.train import MaxEpoch
from sparkdl.wire.private import local_folders

ROWS, SEED = 300, 3
LOSS = "val/loss"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, 4)).astype(np.float32)
    whole = pa.table({"x": list(x), "y": x @ np.arange(4, dtype=np.float32)})
    for number in range(3):
        parquet.write_table(whole.slice(100 * number, 100), tmp_path / f"{number}.parquet", row_group_size=25)
    return tmp_path


def dataset(table: Path, spark: Any, partitions: int, **options: Any) -> Dataset:
    return Dataset.from_parquet(
        table, features="x", label="y", num_partitions=partitions, spark=spark, window=4000, **options
    )


def make(params: dict[str, Any]) -> Trainer:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))
    optimizer = partial(torch.optim.Adam, lr=params["lr"])
    return Trainer(net, loss=nn.MSELoss(), optimizer=optimizer, batch_size=32, progress=False)


def tuner(**options: Any) -> tune.Tuner:
    space = {"lr": [1e-3, 1e-1]}
    found: dict[str, Any] = {"metric": LOSS, "seed": SEED, "trials": 2, "max_epochs": 2, "progress": False}
    return tune.Tuner(make, space, **found | {"search": "grid", "scheduler": None} | options)


def alone(lr: float, data: Dataset, part: given.RowShare | None, validation: Any) -> Any:
    """Fit on a share of the rows, in one partition."""
    trainer = make({"lr": lr})
    trainer.config = replace(trainer.config, end_when=MaxEpoch(2), seed=SEED)
    if part is None:
        return trainer.fit(data, data)
    with data.part(part) as train, data.part(validation) as held:
        return trainer.fit(train, held)


def shared_folders(spark: Any) -> list[str]:
    (found,) = (
        spark.sparkContext.parallelize([0], 1).map(lambda _: [str(f) for f in local_folders()]).collect()
    )
    return [name for folder in found for name in os.listdir(Path(folder) / "sparkdl") if "shared-" in name]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_trial_in_a_task_is_a_fit_on_one_partition_to_the_bit(
    table: Path, spark: Any, cache_bytes: int
) -> None:
    with dataset(table, spark, 2, cache_bytes=cache_bytes) as data:
        found = tuner().fit(data, 0.25)
        assert len(data) == ROWS  # the Dataset is the caller's
    assert shared_folders(spark) == []
    best = found.get_best()
    assert best.params["lr"] == 0.1
    with dataset(table, spark, 1) as data:
        expected = alone(0.1, data, *given.share_of(0.25, SEED))
    assert best.value == expected.scores[LOSS]
    for name, value in found.module().state_dict().items():
        np.testing.assert_array_equal(value, expected.module.state_dict()[name])


def test_folds_and_validation_sets_of_files(table: Path, spark: Any) -> None:
    with dataset(table, spark, 2) as data:
        by_folds = tuner().fit(data, folds=3).get_best()
        by_set = tuner().fit(data, data).get_best()
    with dataset(table, spark, 1) as data:
        scores = [alone(0.1, data, *pair).scores[LOSS] for pair in given.folds_of(3, SEED)]
        whole = alone(0.1, data, None, None).scores[LOSS]
    assert by_folds.value == pytest.approx(np.mean(scores), rel=1e-12)
    assert by_set.value == whole


def test_a_share_without_rows_is_refused_before_any_trial(table: Path, spark: Any) -> None:
    wanted = pytest.raises(DataError, match="no row is left for training or for validation")
    with dataset(table, spark, 1) as data, wanted:
        tuner().fit(data, 1e-9)
    assert shared_folders(spark) == []
