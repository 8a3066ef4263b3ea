"""A store that is built again from a source that has changed is noticed, with and without Spark."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl import Dataset, Trainer
from sparkdl._spark.jobs import FrameJobs
from sparkdl.data.columns import ColumnPlan
from sparkdl.data.store.manifest import Manifest, Unchanged, changed_error, check_same_rows, total
from sparkdl.data.store.partition import Token, write_partition
from sparkdl.exceptions import DataError
from sparkdl.train import MaxEpoch
from sparkdl.wire import frame

PLANS = (ColumnPlan("x", "x"),)


def token(partition: int, positions: Any, values: Any = None, batch: int = 3) -> Token:
    positions = np.asarray(positions, np.int64)
    values = np.asarray(positions if values is None else values, np.float32)
    cuts = range(0, len(positions), batch)
    batches = [(positions[i : i + batch], {"x": values[i : i + batch]}) for i in cuts]
    return write_partition("manifest", partition, "executor", PLANS, batches)


@pytest.fixture(autouse=True)
def _folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "spark" not in request.fixturenames:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))


def test_the_same_rows_are_as_expected_in_whatever_batches_they_come() -> None:
    manifest = Manifest.of([token(0, range(10)), token(1, range(10, 15)), token(2, [])])
    for again in (token(0, range(10), batch=4), token(1, range(10, 15), batch=1), token(2, [])):
        assert manifest.problem(again) is None
        assert not manifest.has_other_values(again)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (
            range(6),
            "partition 1 was built again and has 6 rows where it had 8: the source has",
        ),
        (range(1, 9), "partition 1 was built again and has 8 rows, but others than before: the source has"),
        ([], "has 0 rows where it had 8"),
    ],
)
def test_other_rows_are_a_problem(positions: Any, message: str) -> None:
    manifest = Manifest.of([token(0, []), token(1, range(8))])
    problem = manifest.problem(token(1, positions))
    error = changed_error(problem, "training")
    assert error.code == "data-changed"
    with pytest.raises(DataError, match=message):
        raise error


def test_a_partition_that_cannot_be_built_again_says_why() -> None:
    failed = Token("manifest", 0, 0, "", "executor", error="column 'x', row 3: null")
    problem = Manifest.of([token(0, range(8))]).problem(failed)
    assert "partition 0 cannot be built again: column 'x', row 3: null: the" in str(
        changed_error(problem, "a")
    )


def test_other_values_alone_are_no_problem_but_noticed() -> None:
    manifest = Manifest.of([token(0, range(8))])
    other = token(0, range(8), np.arange(8)[::-1])
    assert manifest.problem(other) is None
    assert manifest.has_other_values(other)


@settings(deadline=None, max_examples=25)
@given(st.permutations(list(range(0, 3 << 33, 1 << 32))), st.integers(1, 5))
def test_the_checksum_knows_neither_order_nor_partitions(positions: list[int], cut: int) -> None:
    whole = total([token(0, sorted(positions))])
    assert total([token(0, positions[:cut]), token(1, positions[cut:])]) == whole
    assert total([token(0, positions[1:])]) != whole
    assert total([token(0, [*positions[1:], 7])]) != whole


def test_other_partitions_must_hold_the_same_rows() -> None:
    before = [token(0, range(6)), token(1, range(6, 10))]
    check_same_rows(before, [token(0, range(3)), token(1, range(3, 6)), token(2, range(6, 10))])
    with pytest.raises(DataError, match="for 1 partitions, the source gives 9 rows where there were 10"):
        check_same_rows(before, [token(0, range(9))])
    with pytest.raises(DataError, match="the source gives other rows: it has changed"):
        check_same_rows(before, [token(0, range(1, 11))])


def test_a_task_over_other_rows_is_not_run() -> None:
    task = Unchanged(lambda partition, frames: list(frames), Manifest.of([token(0, range(8))]))
    sound, other = token(0, range(8)).to_frame(), token(0, range(5)).to_frame()
    assert list(task(0, iter([sound]))) == [sound]
    (problem,) = task(0, iter([other]))
    assert frame.unpack(frame.join(problem)).meta["kind"] == "changed"


# -- with Spark ---------------------------------------------------------------------------------


def source(spark: Any, file: Path) -> Any:
    """Return rows that a file says the number and the value of."""

    def rows(index: int, _: Any) -> Any:
        count, value = map(int, file.read_text().split())
        return [(np.full(2, value + row, np.float32), np.float32(row)) for row in range(count)][index::2]

    return spark.sparkContext.parallelize([0, 1], 2).mapPartitionsWithIndex(rows)


def lose(data: Dataset, partition: int) -> None:
    """Lose a partition as an executor would take it along; nothing is kept in a shuffle before it."""
    store = data.store()
    shutil.rmtree(store.partitions[partition].folder)
    FrameJobs(data.spark.sparkContext).drop_block(store.tokens.id(), partition)


def trainer(**options: Any) -> Trainer:
    module = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0))
    sgd = partial(torch.optim.SGD, lr=1e-4)
    options = {"batch_size": 16, "end_when": MaxEpoch(1), "progress": False} | options
    return Trainer(module, loss=torch.nn.MSELoss(), optimizer=sgd, **options)


@pytest.mark.parametrize("exchange", ["driver", "replicated"])
def test_a_source_that_has_shrunk_ends_training_and_sweeps(spark: Any, tmp_path: Path, exchange: str) -> None:
    file = tmp_path / "rows"
    file.write_text("64 0")
    with Dataset.from_rdd(source(spark, file), num_partitions="input") as data:
        data.store()
        file.write_text("40 0")
        lose(data, 1)
        with pytest.raises(
            DataError, match="partition 1 was built again and has 20 rows where it had 32"
        ) as e:
            trainer(exchange=exchange).fit(data)
        assert e.value.code == "data-changed"
        if exchange == "driver":
            with pytest.raises(DataError, match="evaluating: partition 1 was built again and has 20 rows"):
                trainer().evaluate(data)
            with pytest.raises(DataError, match="gives 40 rows where there were 64"), data.repartitioned(3):
                raise AssertionError("not reached")
            data.release()
            assert trainer().fit(data).state.iteration == 3


def test_a_source_with_other_values_is_warned_of(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text("64 0")
    with Dataset.from_rdd(source(spark, file), num_partitions="input") as data:
        data.store()
        file.write_text("64 1")
        lose(data, 0)
        with pytest.warns(UserWarning, match=r"partitions \[0\] of the store were built again.*other values"):
            trainer().fit(data)
