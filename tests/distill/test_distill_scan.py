"""Students of teachers on rows that stay in Parquet files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from pyarrow import parquet
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Column, Dataset
from sparkdl.data.streams import RowShare
from sparkdl.distill import Distiller, Teacher
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.train import MaxEpoch

pytestmark = pytest.mark.jvm
ROWS = 230
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 6)).astype(np.float32)
WIDE = RANDOM.normal(size=(ROWS, 9)).astype(np.float32)
PIXELS = RANDOM.integers(0, 256, (ROWS, 2, 3)).astype(np.uint8)
Y = RANDOM.integers(0, 4, ROWS)
WEIGHT = RANDOM.uniform(0.5, 2, ROWS).astype(np.float32)
ROOM = 1 << 20


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    texts = [list(range(1, 2 + n % 4)) for n in range(ROWS)]
    columns = {"n": np.arange(ROWS), "x": list(X), "wide": list(WIDE), "y": Y, "w": WEIGHT, "text": texts}
    columns["pixels"] = [row.tobytes() for row in PIXELS]
    whole = pa.table(columns)
    for number in range(2):
        parquet.write_table(whole.slice(115 * number, 115), folder / f"{number}.parquet", row_group_size=30)
    return folder


def scan(table: Path, spark: Any, **options: Any) -> Dataset:
    defaults = {"features": "x", "label": "y", "num_partitions": 2, "cache_bytes": ROOM}
    return Dataset.from_parquet(table, spark=spark, **defaults | options)


def distiller(inputs: int = 6, teachers: Any = None, **options: Any) -> Distiller:
    torch.manual_seed(1)
    student, big = nn.Linear(inputs, 4), nn.Sequential(nn.Linear(inputs, 9), nn.Tanh(), nn.Linear(9, 4))
    defaults: dict[str, Any] = {"optimizer": partial(torch.optim.Adam, lr=0.05), "batch_size": 50}
    defaults |= {"end_when": MaxEpoch(2), "progress": False, "seed": 4}
    return Distiller(student, big if teachers is None else teachers, **defaults | options)


def bits(result: Any) -> list[np.ndarray]:
    return [value.numpy() for value in result.module.state_dict().values()]


def assert_same(one: Any, other: Any) -> None:
    for a, b in zip(bits(one), bits(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("partitions", "keep"), [(2, "all"), (1, 2)])
def test_a_student_learns_as_on_the_same_rows_of_the_driver(
    table: Path, spark: Any, keep: Any, partitions: int
) -> None:
    distill = distiller(keep=keep)
    with scan(table, spark, num_partitions=partitions, weight="w") as data:
        result = distill.fit(data)
    with Dataset.from_numpy(X, Y, WEIGHT, spark=spark, num_partitions=partitions) as data:
        assert_same(result, distiller(keep=keep).fit(data))
    assert distill.cost is not None
    assert distill.cost.rows == ROWS
    assert distill.cost.teachers > 0


def test_rows_of_a_filter_alone(table: Path, spark: Any) -> None:
    some = Y > 1
    with scan(table, spark, filter=pc.field("y") > 1) as data:
        result = distiller().fit(data)
    with Dataset.from_numpy(X[some], Y[some], spark=spark, num_partitions=2) as data:
        assert_same(result, distiller().fit(data))


def test_bytes_and_columns_that_a_teacher_alone_reads(table: Path, spark: Any) -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layer = nn.Linear(6, 4)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layer(pixels.flatten(1).float() / 255)
            return found

    teachers = [Teacher(Pixels(), inputs="pixels"), Teacher(nn.Linear(9, 4), inputs="wide")]
    label = {"label": "y", "pixels": Column("pixels", (2, 3), "uint8"), "wide": "wide"}
    with scan(table, spark, label=label) as data:
        result = distiller(teachers=teachers).fit(data)
    arrays = {"label": Y, "pixels": PIXELS, "wide": WIDE}
    with Dataset.from_numpy(X, arrays, spark=spark, num_partitions=2) as data:
        assert_same(result, distiller(teachers=teachers).fit(data))


def test_rows_that_differ_in_length(table: Path, spark: Any) -> None:
    class Mean(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.table = nn.Embedding(9, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids).sum(1)

    from sparkdl.data import Pad

    results = []
    for rows in (
        scan(table, spark, features="text", collate=Pad(lengths=False)),
        Dataset.from_dataframe(
            spark.read.parquet(str(table)).repartition(1).orderBy("n"),
            features="text",
            label="y",
            num_partitions=2,
            collate=Pad(lengths=False),
        ),
    ):
        options: dict[str, Any] = {"end_when": MaxEpoch(1), "batch_size": ROWS, "shuffle": False}
        options["optimizer"] = partial(torch.optim.SGD, lr=0.5)
        distill = Distiller(Mean(1), Mean(2), progress=False, seed=4, **options)
        with rows as data:
            results.append(distill.fit(data))
    assert_same(*results)


@pytest.mark.parametrize("keep", ["all", None])
def test_a_share_of_the_rows_is_held_out(table: Path, spark: Any, keep: Any) -> None:
    metrics = {"accuracy": MulticlassAccuracy(num_classes=4, average="micro")}
    label = {"label": "y", "wide": "wide"}
    teachers = Teacher(nn.Linear(9, 4), inputs="wide")
    with scan(table, spark, label=label) as data:
        result = distiller(teachers=teachers, keep=keep, metrics=metrics).fit(data, 0.3)
        with data.part(RowShare(0.0, 0.3, False, 4)) as held_out:
            rows = held_out.source.manifest(held_out.plan).mask  # type: ignore[attr-defined]
    places = np.concatenate([rows(group) for group in range(8)])
    assert 0 < places.sum() < ROWS
    output = result.module(torch.from_numpy(X[places]))
    right = float((output.argmax(1) == torch.from_numpy(Y[places])).float().mean())
    assert result.scores["val/accuracy"] == pytest.approx(right)


def test_logits_need_room_beside_the_rows(table: Path, spark: Any) -> None:
    with scan(table, spark, cache_bytes=0) as data:
        with pytest.raises(ConfigError, match=r"cache_bytes=9,200 or more.*keep=None"):
            distiller().fit(data)
        distiller(keep=None).fit(data)
    with (
        scan(table, spark, cache_bytes=9_199) as data,
        pytest.raises(ConfigError, match="found cache_bytes=9,199"),
    ):
        distiller().fit(data)
    with scan(table, spark, cache_bytes=9_200) as data:
        distiller().fit(data)


def test_a_row_that_is_wrong_is_named(tmp_path: Path, spark: Any) -> None:
    y = np.where(np.arange(ROWS) == 77, np.nan, Y)
    parquet.write_table(pa.table({"x": list(X), "y": y}), tmp_path / "0.parquet", row_group_size=50)
    with (
        scan(tmp_path, spark) as data,
        pytest.raises(DataError, match="row 27 of row group 1 of .*0.parquet"),
    ):
        distiller().fit(data)
