"""Owners of rows move when the cluster changes: the bits of a run that is stopped and goes on elsewhere."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.reference import threads
from test_train_elastic import Executors
from test_train_keyed import FAR, PAIRS, SCORES, keyed, rows_of, trainer

from sparkdl import Dataset
from sparkdl.nn import CountingBloom
from sparkdl.optim import Staleness
from sparkdl.train import Checkpoint, Elastic, EveryIterations, MaxIteration, load_weights
from sparkdl.train.checkpoint import CheckpointFolder

CHANGING: dict[str, Any] = {"min_count": 2, "max_age": 4, "min_norm": 0.09, "evict_every": 3}
END = 10


def dataset(spark: Any, partitions: int | None = None) -> Dataset:
    return Dataset.from_numpy(PAIRS * FAR, SCORES, spark=spark, num_partitions=partitions)


def fit(
    data: Dataset,
    end: int,
    *hooks: Any,
    resume: bool = False,
    counters: CountingBloom | None = None,
    **options: Any,
) -> Any:
    settings: dict[str, Any] = {"iterations_per_job": 2, "batch_size": 40, "end_when": MaxIteration(end)}
    module = keyed(**CHANGING, counters=counters)
    return trainer(module, hooks=hooks, **settings | options).fit(data, resume=resume)


def moved(spark: Any, monkeypatch: Any, counts: dict[int, int], *hooks: Any, **options: Any) -> Any:
    executors = Executors(monkeypatch, counts)
    with dataset(spark) as data:
        found = fit(data, END, *hooks, executors, elastic=Elastic(settle=0, patience=0), **options)
    assert len(executors.resizes) == len(counts)
    return found


def stopped(spark: Any, path: Path, counts: dict[int, int], **options: Any) -> Any:
    """Return what runs make of it that end at each move and go on with other partitions."""
    found: Any = None
    for (begin, partitions), (end, _) in pairwise([(0, 1), *counts.items(), (END, 0)]):
        hook = Checkpoint(path, EveryIterations(END), full_every=1)
        with dataset(spark, partitions) as data:
            found = fit(data, end, hook, resume=begin > 0, **options)
    return found


@pytest.mark.parametrize(
    ("exchange", "counts"),
    [("replicated", {1: 3}), ("replicated", {6: 2, 7: 3, 9: 1}), ("sharded", {4: 2, 6: 4})],
)
def test_a_move_has_the_bits_of_a_stop(
    spark: Any, monkeypatch: Any, tmp_path: Path, exchange: Any, counts: dict[int, int]
) -> None:
    """Within epochs of 6 iterations, between two of them, and one move after the other."""
    with threads(1):
        found = moved(spark, monkeypatch, counts, exchange=exchange)
        expected = stopped(spark, tmp_path, counts, exchange=exchange)
    assert found.history.column("loss") == expected.history.column("loss")
    assert rows_of(found.module) == rows_of(expected.module)
    assert sum(found.history.column("extras.users/evicted")) > 0


def test_bounded_memory_and_late_gradients_move_too(spark: Any, monkeypatch: Any, tmp_path: Path) -> None:
    counts, late = {3: 3, 7: 2}, Staleness(share=0.5)
    with threads(1):
        found = moved(spark, monkeypatch, counts, row_memory=1500, staleness=late)
        expected = stopped(spark, tmp_path, counts, staleness=late)
    assert rows_of(found.module) == rows_of(expected.module)


def test_counters_move_too(spark: Any, monkeypatch: Any, tmp_path: Path) -> None:
    counts, counters = {3: 3, 7: 2}, CountingBloom(200, error=0.3)
    with threads(1):
        found = moved(spark, monkeypatch, counts, row_memory=1500, counters=counters)
        expected = stopped(spark, tmp_path, counts, counters=counters)
    assert rows_of(found.module) == rows_of(expected.module)
    own, other = (run.module.users.store.entries().sorted().arrays("") for run in (found, expected))
    assert {k: v.tobytes() for k, v in own.items()} == {k: v.tobytes() for k, v in other.items()}


def test_checkpoints_of_changes_go_on_over_a_move(spark: Any, monkeypatch: Any, tmp_path: Path) -> None:
    hook = Checkpoint(tmp_path, EveryIterations(2), full_every=20, keep=None)
    with threads(1):
        found = moved(spark, monkeypatch, {3: 3, 7: 2}, hook)
    folder = CheckpointFolder(tmp_path)
    bases = {n: folder.describe(path, verify=True)["base"] for n, path in folder.complete().items()}
    assert bases == {2: None} | {n: n - 2 for n in range(4, END + 1, 2)}
    copy = keyed(**CHANGING)
    load_weights(folder.complete()[END], copy)
    assert rows_of(copy) == rows_of(found.module)
