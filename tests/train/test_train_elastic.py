"""Runs that change their number of partitions see each row of an epoch once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.data import digits
from support.models import VisitCounter, mlp
from support.reference import assert_bit_equal
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.data import dataset
from sparkdl.data.store.build import PartitionStore
from sparkdl.data.store.partition import Token
from sparkdl.exceptions import ConfigError, TaskError
from sparkdl.train import Checkpoint, Elastic, EveryIterations, Hook, MaxEpoch, MaxIteration, Run
from sparkdl.train.groups import Epochs
from sparkdl.train.options.elastic import PartitionWatch
from sparkdl.train.state import TrainState

ROWS = 1030


class Executors(Hook):
    """Pretends that executors come and go: after iteration i there are ``counts[i]``."""

    def __init__(self, monkeypatch: Any, counts: dict[int, int]) -> None:
        self.counts, self.now = counts, 1
        self.resizes: list[tuple[int, int, int, int]] = []
        monkeypatch.setattr(
            "sparkdl.access.classic.ClassicAccess.count_executors", lambda access, look=False: self.now
        )
        monkeypatch.setattr("sparkdl.train.options.elastic._POLL", 0.0)

    def on_iteration_end(self, run: Run) -> None:
        self.now = self.counts.get(run.state.iteration, self.now)

    def on_resize(self, run: Run, before: int, after: int) -> None:
        self.resizes.append((run.state.epoch, run.state.step, before, after))


def count_visits(data: Dataset, **options: Any) -> tuple[Any, Any]:
    """Train a counter; return visits per row and the result."""
    counter = VisitCounter(ROWS)
    settings: dict[str, Any] = {"batch_size": 100, "seed": 5, "progress": False, "end_when": MaxEpoch(3)}
    result = Trainer(
        counter,
        loss=lambda output, _: output.mean(),
        optimizer=partial(torch.optim.SGD, lr=1.0),
        **settings | options,
    ).fit(data, **({"resume": True} if options.get("hooks", [None])[0].__class__ is Checkpoint else {}))
    # Each visit takes 1 / (rows of the batch) off, and batches differ little.
    samples = result.history.column("samples")
    return -result.module.visits.weight.detach().numpy()[:, 0] * np.mean(samples), result


def rows(spark: Any, **options: Any) -> Dataset:
    return Dataset.from_numpy(np.arange(ROWS), spark=spark, **options)


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_row_is_seen_once_an_epoch_however_partitions_change(
    spark: Any, monkeypatch: Any, shuffle: bool
) -> None:
    executors = Executors(monkeypatch, {3: 3, 7: 2, 13: 4, 22: 1})
    elastic = Elastic(settle=0, patience=0)
    with rows(spark) as data:
        visits, result = count_visits(data, elastic=elastic, hooks=[executors], shuffle=shuffle)
        assert len(data.store().partitions) == 1
        same, straight = count_visits(data, shuffle=shuffle)
    np.testing.assert_allclose(visits, same, rtol=1e-5)  # the same rows have shared each batch
    assert result.history.column("samples") == straight.history.column("samples")
    assert [resize[:2] for resize in executors.resizes] == [(0, 3), (0, 7), (1, 2), (2, 0)]
    assert [resize[2:] for resize in executors.resizes] == [(1, 3), (3, 2), (2, 4), (4, 1)]
    assert sum(result.history.column("samples")) == 3 * ROWS
    assert result.history.column("epoch") == [1] * 11 + [2] * 11 + [3] * 11
    np.testing.assert_allclose(visits, 3, atol=0.35)  # a missed or doubled visit would make it 2 or 4


def test_between_epochs_only(spark: Any, monkeypatch: Any) -> None:
    executors = Executors(monkeypatch, {3: 3})
    with rows(spark) as data:
        count_visits(data, elastic=Elastic(settle=0, patience=None), hooks=[executors])
    assert executors.resizes == [(1, 0, 1, 3)]


def test_without_it_partitions_stay(spark: Any, monkeypatch: Any) -> None:
    executors = Executors(monkeypatch, {3: 3})
    with rows(spark) as data:
        count_visits(data, hooks=[executors])
        assert len(data.store().partitions) == 1
    assert executors.resizes == []


def _stopped_and_resumed(data: Dataset, hook: Any, path: Path) -> tuple[Any, Any]:
    """Stop in an epoch whose batch size has changed, and go on with other partitions."""
    elastic = Elastic(settle=0, patience=0)
    for end, executors, own in ((MaxIteration(6), 1, hook), (MaxEpoch(3), 3, Hook())):
        hook.now = executors
        data.release()
        data._num_partitions = None
        with data.repartitioned(executors):
            pass
        found = count_visits(data, elastic=elastic, hooks=[Checkpoint(str(path)), own], end_when=end)
    return found


def test_a_hook_scales_batch_and_learning_rate(spark: Any, monkeypatch: Any, tmp_path: Path) -> None:
    class Scaling(Executors):
        def on_resize(self, run: Run, before: int, after: int) -> None:
            run.batch_size = run.batch_size * after // before
            run.learning_rate_scale *= after / before

    with rows(spark) as data:
        _, result = count_visits(
            data, elastic=Elastic(settle=0, patience=0), hooks=[Scaling(monkeypatch, {5: 2})]
        )
        _, resumed = _stopped_and_resumed(data, Scaling(monkeypatch, {5: 2}), tmp_path)
    np.testing.assert_allclose(
        resumed.module.visits.weight.detach(), result.module.visits.weight.detach(), rtol=1e-5
    )
    assert resumed.history.column("samples") == result.history.column("samples")
    history = result.history
    assert history.column("lr") == [1.0] * 5 + [2.0] * (len(history) - 5)
    assert history.column("epoch") == [1] * (5 + 3) + [2] * 6 + [3] * 6
    assert sum(history.column("samples")) == 3 * ROWS
    assert max(history.column("samples")) > 150


@pytest.mark.jvm
def test_optimizer_state_is_cut_anew(spark: Any, monkeypatch: Any) -> None:
    """One partition and many shards: what stays with them must move, or Adam would begin again."""
    x, y = digits(200)

    def run(executors: Hook | None) -> Any:
        with Dataset.from_numpy(x, y, spark=spark) as data:
            return Trainer(
                mlp(),
                loss=nn.CrossEntropyLoss(),
                optimizer=partial(torch.optim.Adam, lr=1e-3),
                batch_size=200,
                seed=1,
                progress=False,
                shuffle=False,
                end_when=MaxIteration(12),
                elastic=Elastic(settle=0, patience=0),
                hooks=[executors] if executors else [],
            ).fit(data)

    moved = run(Executors(monkeypatch, {2: 2, 4: 3, 6: 1}))
    straight = run(Executors(monkeypatch, {}))
    np.testing.assert_allclose(
        moved.history.column("loss"), straight.history.column("loss"), rtol=1e-5, atol=1e-6
    )


def test_resume_in_the_middle_of_a_moved_epoch(spark: Any, monkeypatch: Any, tmp_path: Path) -> None:
    def run(folder: str, iterations: int, executors: int, counts: dict[int, int]) -> Any:
        pretended = Executors(monkeypatch, counts)
        pretended.now = executors
        with rows(spark, num_partitions=None) as data:
            data.store()
            if executors > 1:
                with data.repartitioned(executors):
                    pass
            checkpoint = Checkpoint(str(tmp_path / folder), every=EveryIterations(5))
            return count_visits(
                data,
                elastic=Elastic(settle=0, patience=0),
                hooks=[checkpoint, pretended],
                end_when=MaxIteration(iterations),
            )

    visits, straight = run("straight", 22, 1, {3: 2})
    np.testing.assert_allclose(visits, 2, atol=0.35)
    run("stopped", 6, 1, {3: 2})
    _, same = run("stopped", 22, 2, {})
    assert_bit_equal(same.module, straight.module)
    assert same.history.column("loss") == straight.history.column("loss")
    run("other", 6, 1, {3: 2})
    visits, other = run("other", 22, 3, {})
    assert sum(other.history.column("samples")) == 2 * ROWS
    np.testing.assert_allclose(visits, 2, atol=0.35)


def test_resume_in_the_middle_of_an_epoch_with_other_partitions(spark: Any, tmp_path: Path) -> None:
    def run(iterations: int, partitions: int) -> Any:
        with rows(spark, num_partitions=partitions) as data:
            checkpoint = Checkpoint(str(tmp_path), every=EveryIterations(5))
            return count_visits(data, hooks=[checkpoint], end_when=MaxIteration(iterations))

    run(6, 2)
    visits, result = run(22, 5)
    assert result.state.epoch == 2
    np.testing.assert_allclose(visits, 2, atol=0.35)


def test_a_failed_move_leaves_the_run_as_it_was(spark: Any, monkeypatch: Any) -> None:
    executors = Executors(monkeypatch, {3: 3})
    failures: list[Any] = []
    real = dataset.build_store

    def fail(*arguments: Any) -> Any:
        failures.append(arguments)
        if len(failures) > 1:  # the first build is that of the Dataset itself
            raise TaskError("no space left on device")
        return real(*arguments)

    monkeypatch.setattr(dataset, "build_store", fail)
    with rows(spark) as data:
        visits, _ = count_visits(data, elastic=Elastic(settle=0, patience=0), hooks=[executors])
        assert len(data.store().partitions) == 1
    assert len(failures) > 2
    assert executors.resizes == []
    np.testing.assert_allclose(visits, 3, atol=0.35)


@pytest.mark.parametrize(("dealt", "step", "may"), [(3, 5, True), (0, 5, False), (0, 0, True)])
def test_rows_that_were_not_dealt_move_between_epochs(dealt: int, step: int, may: bool) -> None:
    """Which rows their epoch has left follows from their partitions."""
    tokens = tuple(Token("store", n, 40, "", "", dealt=dealt) for n in range(3))
    store: Any = SimpleNamespace(store=lambda: PartitionStore(None, tokens, None))
    assert Epochs(store).may_move(TrainState(step=step)) is may


def test_watch_waits_until_a_change_has_lasted() -> None:
    now, count = 0.0, 2
    watch = PartitionWatch(Elastic(settle=5, patience=60, max_partitions=4), lambda: count, lambda: now)

    def at(seconds: float, executors: int, *, between_epochs: bool = False) -> int | None:
        nonlocal now, count
        now, count = seconds, executors
        return watch.decide(2, between_epochs=between_epochs)

    assert at(0, 2) is None
    assert at(10, 3) is None
    assert at(14, 3, between_epochs=True) is None
    assert at(15, 3, between_epochs=True) == 3
    assert at(69, 3) is None
    assert at(70, 3) == 3
    assert at(71, 2) is None  # back again
    assert at(80, 9) is None
    assert at(200, 9) == 4
    assert at(300, 0) is None
    assert at(400, 0, between_epochs=True) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_partitions": 20161}, "at most 20160"),
        ({"min_partitions": 0}, r"Elastic\(min_partitions=0\)"),
        ({"max_partitions": 1.5}, r"Elastic\(max_partitions=1.5\)"),
        ({"min_partitions": 3, "max_partitions": 2}, "the lesser one first"),
        ({"settle": None}, r"Elastic\(settle=None\)"),
        ({"patience": -1}, r"Elastic\(patience=-1\)"),
    ],
)
def test_bad_options(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Elastic(**options)


def test_what_cannot_follow_the_cluster(spark: Any) -> None:
    with rows(spark, num_partitions=2) as data, pytest.raises(ConfigError, match="num_partitions=2"):
        count_visits(data, elastic=Elastic())
    with pytest.raises(ConfigError, match="elastic=True"):
        Trainer(mlp(), loss=nn.MSELoss(), optimizer=torch.optim.SGD, elastic=True)
