"""A model learns each batch of a stream once, wherever the program dies, and is published meanwhile."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.data import digits
from support.ratings import keyed, pairs
from support.reference import assert_bit_equal
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Column, Dataset, Trainer
from sparkdl.data import Pad, sampler
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml import TorchModel
from sparkdl.online import OnlineTrainer, Publisher
from sparkdl.online.commit import Ledger
from sparkdl.serve import Predictor
from sparkdl.train import Checkpoint, Hook, MaxEpoch, MaxIteration

X, Y = digits(330)
PARTS = [slice(0, 120), slice(120, 150), slice(150, 151), slice(151, 330)]
ADAM = partial(torch.optim.Adam, lr=1e-2)
HALVE = partial(StepLR, step_size=1, gamma=0.8)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 10)


def plain(**options: Any) -> Trainer:
    given = {"batch_size": 50, "shuffle": False, "progress": False, "schedule": HALVE} | options
    return Trainer(net(), loss=nn.CrossEntropyLoss(), optimizer=ADAM, **given)


def rows(part: int, kind: str, spark: Any, partitions: int = 2) -> Dataset:
    x, y = (X[PARTS[part]], Y[PARTS[part]]) if kind == "plain" else pairs(part)
    return Dataset.from_numpy(x, y, spark=spark, num_partitions=partitions)


TRAINERS = {"plain": plain, "keyed": keyed}


def stream(online: OnlineTrainer, kind: str, spark: Any, first: int = 0, last: int = 4) -> None:
    for part in range(first, last):
        with rows(part, kind, spark) as data:
            online.learn(data, part)


def test_it_is_torch_batch_by_batch(spark: Any, tmp_path: Path) -> None:
    """Optimizer, schedule and counters go on; scores are those of the weights before."""
    online = OnlineTrainer(
        plain(metrics=MulticlassAccuracy(10, average="micro")), tmp_path, per_batch=MaxEpoch(2)
    )
    expected, scores = net(), []
    optimizer = ADAM(expected.parameters())
    schedule = HALVE(optimizer)
    for number, part in enumerate(PARTS):
        x, y = torch.from_numpy(X[part]), torch.from_numpy(Y[part])
        with torch.no_grad():
            scores.append(float((expected(x).argmax(1) == y).float().mean()))
        for _ in range(2):
            steps = sampler.iterations_per_epoch(len(x), 50)
            for step in range(steps):
                batch = slice(step * len(x) // steps, (step + 1) * len(x) // steps)
                optimizer.zero_grad()
                nn.functional.cross_entropy(expected(x[batch]), y[batch]).backward()
                optimizer.step()
            schedule.step()
        with rows(number, "plain", spark, 1) as data:
            assert online.learn(data, number)
    assert_bit_equal(online.module, expected)
    found = online.history
    assert [row["multiclass_accuracy"] for row in found] == pytest.approx(scores)
    assert [row["rows"] for row in found] == [120, 30, 1, 179]
    assert found[-1]["iteration"] == 2 * (3 + 1 + 1 + 4)
    mean = np.average(scores, weights=[120, 30, 1, 179])
    assert online.scores()["multiclass_accuracy"] == pytest.approx(mean)
    assert online.scores(1)["multiclass_accuracy"] == pytest.approx(scores[-1])


def test_a_stream_that_counts_from_zero_again_is_told(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    online = OnlineTrainer(plain(), tmp_path)
    for number, learned in [(0, True), (1, True), (1, False)]:  # the last one comes again after a crash
        with rows(number, "plain", spark) as data:
            assert online.learn(data, number) == learned
    assert not [record for record in caplog.records if "not learned" in record.getMessage()]
    with rows(2, "plain", spark) as data:
        assert not online.learn(data, 0)
    (told,) = [record.getMessage() for record in caplog.records if "not learned" in record.getMessage()]
    assert "batch 0 of stream '' is not learned: batch 1 of it was" in told
    assert "stream=" in told
    with rows(2, "plain", spark) as data:
        assert online.learn(data, 0, stream="anew")
    assert [row["batch"] for row in online.history] == [0, 1, 0]


class Crash(BaseException):
    """The program dies: nothing catches this."""


def crash_in(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
    """Let a function of the package raise, before or after its work."""
    real = getattr(owner, name)

    def dies(*arguments: Any, **options: Any) -> Any:
        if after:
            real(*arguments, **options)
        raise Crash(name)

    monkeypatch.setattr(owner, name, dies)


class Dies(Hook):
    """Dies after an iteration of a run, if it is told to."""

    at = 0

    def on_iteration_end(self, run: Any) -> None:
        if self.at and run.state.iteration - run.begin.iteration == self.at:
            raise Crash("iteration")


@pytest.mark.parametrize("kind", TRAINERS)
def test_it_dies_anywhere_and_ends_with_the_same_bits(kind: str, spark: Any, tmp_path: Path) -> None:
    from sparkdl.online import publisher as publishing
    from sparkdl.train.checkpoint.folder import CheckpointFolder

    def online(folder: str, *hooks: Hook) -> OnlineTrainer:
        example = rows(0, kind, spark).peek()["features"]
        make = partial(TorchModel.from_module, example=example, featuresCol="x")
        publisher = Publisher(tmp_path / folder / "models", make, seconds=None, full_every=1)
        return OnlineTrainer(TRAINERS[kind](hooks=hooks), tmp_path / folder, publisher=publisher, keep=2)

    straight = online("straight")
    stream(straight, kind, spark)
    wanted, history = straight.module, straight.history

    points = [
        (Trainer, "evaluate", False),
        (Trainer, "evaluate", True),
        (CheckpointFolder, "begin", False),
        (CheckpointFolder, "begin", True),
        (CheckpointFolder, "finish", True),
        (Publisher, "publish", False),
        (publishing, "save_local", True),
        (Publisher, "_point", False),
        (Publisher, "_point", True),
        (CheckpointFolder, "prune", False),
    ]
    stream(online("crashed"), kind, spark, 0, 1)
    for number, (owner, name, after) in enumerate(points):
        with pytest.MonkeyPatch.context() as patch, rows(1, kind, spark) as data:
            crash_in(patch, owner, name, after=after)
            with pytest.raises(Crash):
                online("crashed").learn(data, 1)
        learned = len(online("crashed").history) == 2
        assert learned == (number > 3), name
    dies = Dies()
    dying = online("crashed", dies)
    dies.at = 1
    with rows(3, kind, spark) as data, pytest.raises(Crash):
        dying.learn(data, 2)
    again = online("crashed")
    with rows(1, kind, spark) as data:
        assert not again.learn(data, 1)  # Spark gives the last batch again
    stream(again, kind, spark, 2)
    assert_bit_equal(again.module, wanted)
    assert again.history == history
    names = [sorted(p.name for p in (tmp_path / f / "models").iterdir()) for f in ("straight", "crashed")]
    assert names[0] == names[1]  # nothing half


def test_a_first_batch_that_died(spark: Any, tmp_path: Path) -> None:
    """Before the first commit the folder is as good as new."""
    dies = Dies()
    dies.at = 2
    with rows(0, "plain", spark) as data:
        with pytest.raises(Crash):
            OnlineTrainer(plain(hooks=[dies]), tmp_path / "a").learn(data, 0)
        for folder in "ab":
            assert OnlineTrainer(plain(), tmp_path / folder).learn(data, 0)
    assert_bit_equal(
        OnlineTrainer(plain(), tmp_path / "a").module, OnlineTrainer(plain(), tmp_path / "b").module
    )


def test_batches_of_another_stream_count_anew(spark: Any, tmp_path: Path) -> None:
    online = OnlineTrainer(plain(), tmp_path)
    with rows(0, "plain", spark) as data:
        assert online.learn(data, 5, stream="a")
        assert not online.learn(data, 4, stream="a")
        assert online.learn(data, 0, stream="b")
    assert [row["batch"] for row in online.history] == [5, 0]


def test_each_of_several_streams_is_learned_once(spark: Any, tmp_path: Path) -> None:
    """After a crash Spark sends the last batch of each query again, whichever was committed last."""
    order = [("a", 0), ("b", 0), ("", 3), ("a", 1), ("b", 1)]
    for stream_of, number in order:
        with rows(1, "plain", spark) as data:
            assert OnlineTrainer(plain(), tmp_path).learn(data, number, stream=stream_of)
    online = OnlineTrainer(plain(), tmp_path)
    for stream_of, number in order:
        with rows(1, "plain", spark) as data:
            assert not online.learn(data, number, stream=stream_of)
    assert len(online.history) == len(order)


def test_fewer_rows_than_partitions(spark: Any, tmp_path: Path) -> None:
    """New ids come, and one row has a partition without any beside it."""
    online = OnlineTrainer(keyed(), tmp_path)
    x, y = pairs(0)
    for number, size in enumerate((90, 1, 2)):
        with Dataset.from_numpy(x[:size] + number, y[:size], spark=spark, num_partitions=4) as data:
            assert online.learn(data, number)
    assert [row["rows"] for row in online.history] == [90, 1, 2]


def test_it_begins_where_a_fit_has_ended(spark: Any, tmp_path: Path) -> None:
    """With its checkpoint also with the optimizer's state; without with its weights alone."""
    warm = plain(hooks=[Checkpoint(str(tmp_path / "warm"))], end_when=MaxEpoch(3))
    with rows(0, "plain", spark) as old, rows(3, "plain", spark) as new:
        fitted = warm.fit(old)
        online = OnlineTrainer(warm, tmp_path / "a", begin=tmp_path / "warm")
        assert_bit_equal(OnlineTrainer(warm, tmp_path / "c").module, fitted.module)
        before = warm.evaluate(new)["loss"]
        online.learn(new, 0)
        assert online.history[0]["loss"] == pytest.approx(before)
        expected = plain(hooks=[Checkpoint(str(tmp_path / "b"))]).fit(
            new, resume=str(tmp_path / "warm"), rows="new"
        )
    assert_bit_equal(online.module, expected.module)


def test_a_folder_that_begins_with_anothers_checkpoint_has_batches_of_its_own(
    spark: Any, tmp_path: Path
) -> None:
    first = OnlineTrainer(plain(), tmp_path / "a")
    with rows(0, "plain", spark) as data, rows(3, "plain", spark) as more:
        for number, stream_of in ((0, ""), (1, ""), (4, "query")):
            assert first.learn(data, number, stream=stream_of)
        second = OnlineTrainer(plain(), tmp_path / "b", begin=tmp_path / "a" / "commits")
        assert not second.learn(more, 4, stream="query")
        assert second.learn(more, 0)
        straight = OnlineTrainer(plain(), tmp_path / "a")
        straight.learn(more, 2)
        assert not OnlineTrainer(plain(), tmp_path / "b").learn(more, 4, stream="query")
    assert_bit_equal(second.module, straight.module)
    assert [(row["batch"], row["rows"]) for row in second.history] == [(0, 179)]
    assert second.scores() == second.scores(1) == straight.scores(1)


def test_the_history_does_not_grow(spark: Any, tmp_path: Path) -> None:
    """Checkpoints keep the last rows; schedules go on all the same."""
    short = OnlineTrainer(plain(), tmp_path / "short", history=2)
    long = OnlineTrainer(plain(), tmp_path / "long", per_batch=MaxIteration(2))
    shorter = OnlineTrainer(plain(), tmp_path / "shorter", per_batch=MaxIteration(2), history=1)
    full = OnlineTrainer(plain(), tmp_path / "full")
    for online in (short, long, shorter, full):
        stream(online, "plain", spark)
        stream(online, "plain", spark, 3)  # learned already
    assert_bit_equal(short.module, full.module)
    assert_bit_equal(shorter.module, long.module)
    assert [row["batch"] for row in short.history] == [2, 3]
    assert short.scores() == full.scores()
    assert short.scores() != short.scores(2) == full.scores(2)


def test_versions_and_rollback(spark: Any, tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "models", seconds=None, batches=2, keep=2)
    online = OnlineTrainer(plain(), tmp_path / "run", publisher=publisher, keep=1)
    assert publisher.current() is None
    weights = {}
    predictor: Any = None
    for number in range(7):
        with rows(1, "plain", spark) as data:
            online.learn(data, number)
        weights[number + 1] = online.module
        predictor = predictor or Predictor.load(publisher.path)
        assert predictor.refresh() == (number in (2, 4, 6))
    assert [*publisher.versions()] == [5, 7]
    found = predictor.predict(X[:3])
    assert np.array_equal(found, weights[7](torch.from_numpy(X[:3])).detach().numpy())

    online.rollback(5)
    assert [*publisher.versions()] == [5]
    assert_bit_equal(online.module, weights[5])
    assert predictor.refresh()
    assert not predictor.refresh()
    assert np.array_equal(predictor.predict(X[:3]), weights[5](torch.from_numpy(X[:3])).detach().numpy())
    with rows(1, "plain", spark) as data:
        assert online.learn(data, 7)  # the batches between are gone
    assert_bit_equal(online.module, weights[6])
    online.publish()
    assert publisher.current().iteration == 6  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"rollback\(3\).*iterations 5, 6"):
        online.rollback(3)


@pytest.mark.parametrize("every", [1, 3])
def test_batches_between_versions_are_counted_from_the_one_gone_back_to(
    every: int, spark: Any, tmp_path: Path
) -> None:
    publisher = Publisher(tmp_path / "models", seconds=None, batches=every, keep=9)
    online = OnlineTrainer(plain(), tmp_path / "run", publisher=publisher, keep=9)

    def learn(first: int, last: int) -> list[int]:
        found = []
        for number in range(first, last):
            with rows(1, "plain", spark) as data:
                online.learn(data, number)
            current = publisher.current()
            assert current is not None
            found.append(current.batches)
        return found

    due = [1 + number // every * every for number in range(2 * every + 1)]
    assert learn(0, len(due)) == due
    online.rollback(1)
    assert publisher.current() is not None
    assert learn(len(due), 2 * len(due) - 1) == due[1:]


def test_means_over_no_batches_are_refused(tmp_path: Path) -> None:
    online = OnlineTrainer(plain(), tmp_path)
    for last in (0, -2, 1.5, True):
        with pytest.raises(ConfigError, match=rf"scores\(last={last}\): expected an integer of at least 1"):
            online.scores(last)  # type: ignore[arg-type]


def test_a_full_disk_keeps_the_last_version(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(tmp_path / "models", seconds=None)
    online = OnlineTrainer(plain(), tmp_path / "run", publisher=publisher)
    with rows(1, "plain", spark) as data:
        online.learn(data, 0)
        with monkeypatch.context() as patch:

            def full(*_: Any) -> None:
                raise OSError("No space left on device")

            patch.setattr(Publisher, "_save", full)
            with pytest.warns(UserWarning, match="could not be published.*No space left"):
                assert online.learn(data, 1)
        assert publisher.current().iteration == 1  # type: ignore[union-attr]
        assert online.learn(data, 2)
    assert publisher.current().iteration == 3  # type: ignore[union-attr]


def test_scores_of_your_own_and_rows_without(spark: Any, tmp_path: Path) -> None:
    found: list[Any] = [math.nan, 0.5, 1.0]
    online = OnlineTrainer(plain(), tmp_path, score=lambda module, rows: {"hit": found[len(rows) % 3]})
    for number in range(3):
        with Dataset.from_numpy(X[: 6 + number], Y[: 6 + number], spark=spark, num_partitions=1) as data:
            online.learn(data, number)
    assert online.scores() == pytest.approx({"hit": (7 * 0.5 + 8 * 1.0) / 15})
    assert math.isnan(online.history[0]["hit"])


def test_other_rows_beside_a_batch(spark: Any, tmp_path: Path) -> None:
    """It trains on what is mixed in, and scores and counts the batch alone."""

    def mix(batch: Dataset, number: int) -> Dataset:
        assert len(batch) == len(Y[PARTS[number]])
        old = slice(0, PARTS[number].stop)
        return Dataset.from_numpy(X[old], Y[old], spark=spark, num_partitions=2)

    mixed = OnlineTrainer(plain(), tmp_path / "mixed", mix=mix)
    stream(mixed, "plain", spark)
    straight, scores = OnlineTrainer(plain(), tmp_path / "straight"), []
    for number, part in enumerate(PARTS):
        with rows(number, "plain", spark) as data:
            scores.append(plain().evaluate(data, module=straight.module)["loss"])
        old = slice(0, part.stop)
        with Dataset.from_numpy(X[old], Y[old], spark=spark, num_partitions=2) as data:
            straight.learn(data, number)
    assert_bit_equal(mixed.module, straight.module)
    assert [row["rows"] for row in mixed.history] == [120, 30, 1, 179]
    assert [row["loss"] for row in mixed.history] == scores


def test_the_ledger_is_checked() -> None:
    good = Ledger().added("q", 3, 10, 4, {"loss": 0.5}, 5).state_dict()
    assert Ledger.read(good).rows() == [{"batch": 3, "rows": 10, "iteration": 4, "loss": 0.5}]
    for name, value in {
        "batch": "x",
        "numbers": np.zeros(4),
        "score.loss": np.zeros(3),
        "total.loss": 1,
        "other.r": "x",
    }.items():
        with pytest.raises(ConfigError, match="list of the stream's batches"):
            Ledger.read({**good, name: value})


class Forgets(nn.Module):
    """Keeps no argument of its constructor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        return found


class Keeps(Forgets):
    """Does what the advice says."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.width = width


def test_advice_for_a_module_that_cannot_be_published(spark: Any, tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "models", seconds=None)
    with rows(0, "plain", spark) as data:
        with pytest.raises(ConfigError, match=r"keep it there, self\.width = width in the constructor\. "):
            publisher.check(Forgets(10), data)
        publisher.check(Keeps(10), data)


def halved(features: torch.Tensor) -> torch.Tensor:
    return features / 2


def test_a_model_without_the_transform_is_not_published(spark: Any, tmp_path: Path) -> None:
    """Who serves it would give the module rows that it has never seen."""
    given = {"spark": spark, "num_partitions": 1, "transform": halved}
    with Dataset.from_numpy(X[:60], Y[:60], **given) as data:
        online = OnlineTrainer(plain(), tmp_path / "a", publisher=Publisher(tmp_path / "models"))
        with pytest.raises(ConfigError, match=r"Publisher\(model=None\): the rows go through a transform"):
            online.learn(data, 0)
        assert not (tmp_path / "a" / "commits").exists()
        make = partial(TorchModel.from_module, example=X[:2], featuresCol="x")
        online = OnlineTrainer(plain(), tmp_path / "a", publisher=Publisher(tmp_path / "models", make))
        assert online.learn(data, 0)
    table = pd.DataFrame({"x": list(X[:60]), "y": Y[:60]})
    online = OnlineTrainer(plain(), tmp_path / "b", publisher=Publisher(tmp_path / "padded"))
    with pytest.raises(ConfigError, match="the rows go through collate"):
        online.learn(table, 0, features="x", label="y", collate=Pad(lengths=False))


def test_a_stream_goes_on_with_its_columns_in_their_order(spark: Any, tmp_path: Path) -> None:
    table = pd.DataFrame({"a": X[:40, 20], "b": X[:40, 30], "c": X[:40, 40]})

    def learn(batch: int, *features: str) -> bool:
        trainer = Trainer(
            nn.Bilinear(1, 1, 1), loss=nn.MSELoss(), optimizer=ADAM, batch_size=20, progress=False
        )
        columns = [Column(name, (1,)) for name in features]
        return OnlineTrainer(trainer, tmp_path).learn(table, batch, features=columns, label=Column("c", (1,)))

    assert learn(0, "a", "b")
    with pytest.raises(ConfigError, match="'b' is features_0 now and was features_1"):
        learn(1, "b", "a")
    assert learn(1, "a", "b")


def test_mistakes(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a sparkdl.Trainer"):
        OnlineTrainer(net(), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"mix=3\): expected a callable"):
        OnlineTrainer(plain(), tmp_path, mix=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Publisher\(seconds=-1\)"):
        Publisher(tmp_path, seconds=-1)
    online = OnlineTrainer(plain(), tmp_path / "a")
    with pytest.raises(ConfigError, match=r"publisher=None.*give it a Publisher"):
        online.publish()
    with pytest.raises(DataError, match="OnlineTrainer.start: found a"):
        online.start(X, features="x")  # type: ignore[arg-type]

    with rows(0, "plain", spark) as data:
        for name, what in (
            ("features", "knows its columns"),
            ("weight", "knows"),
            ("transform", "has its options"),
        ):
            with pytest.raises(ConfigError, match=rf"^{name}=\.\.\.: a Dataset {what}"):
                online.learn(data, 0, **{name: "x"})

    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 10)
            self.forward = lambda x: self.inner(x)  # type: ignore[method-assign]

    local = Trainer(Local(), loss=nn.CrossEntropyLoss(), optimizer=ADAM, batch_size=50, progress=False)
    with rows(0, "plain", spark) as data, pytest.raises(ConfigError):
        OnlineTrainer(local, tmp_path / "b", publisher=Publisher(tmp_path / "models")).learn(data, 0)
    assert not (tmp_path / "b" / "commits").exists()
