"""Slow tasks leave rows out, within bounds, and what came counts in full."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.data import as_dataset, partitioned
from support.models import mlp
from support.reference import assert_bit_equal
from torch import Tensor, nn

from sparkdl import Trainer
from sparkdl.allreduce.engine import Engine
from sparkdl.exceptions import ConfigError, TaskError
from sparkdl.nn.batch import Batch
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import forward_backward
from sparkdl.nn.objective import LossObjective
from sparkdl.train import DropStragglers, EveryIterations, MaxIteration
from sparkdl.train.options.stragglers import Allowance, Deadlines

pytestmark = pytest.mark.jvm  # what is slow is told by time, of tasks that run side by side

PARTS = partitioned([400, 40])  # the second one is small: it may go missing without harm


class Sleepy(nn.Module):
    """Takes its time over a piece of the second partition, from some iteration on."""

    def __init__(self, seconds: float, rows: int, after: int) -> None:
        super().__init__()
        self.inner = mlp()
        self.seconds, self.rows, self.after = seconds, rows, after
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        slow = len(x) == self.rows and int(self.calls) > self.after
        time.sleep(self.seconds if slow else 0.02)  # long enough for noise not to matter
        return self.inner(x)


def train(spark: Any, module: nn.Module, iterations: int = 12, **options: Any) -> Any:
    with as_dataset(spark, PARTS) as data:
        return Trainer(
            module,
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.Adam, lr=1e-3),
            batch_size=440,
            progress=False,
            seed=2,
            end_when=MaxIteration(iterations),
            **options,
        ).fit(data)


DROP = DropStragglers(window=8, chunks=4, patience=8, max_fraction=0.1)


@pytest.mark.whole
def test_slow_rows_are_left_out_and_counted(spark: Any) -> None:
    """A piece of the second partition has 10 rows; each takes a second from the 33rd piece on."""
    result = train(spark, Sleepy(1.0, rows=10, after=4 * 8), drop_stragglers=DROP)
    dropped = np.array(result.history.column("dropped"))
    samples = np.array(result.history.column("samples"))
    assert set(dropped) <= {0, 10, 20, 30}
    assert (dropped[9:] > 0).all()  # one of two tasks is slow: in the end that counts as usual
    np.testing.assert_array_equal(samples + dropped, 440)
    assert np.isfinite(result.history.column("loss")).all()


@pytest.mark.slow
def test_when_too_many_are_missing_it_runs_again_without_a_deadline(spark: Any) -> None:
    slow = Sleepy(1.0, rows=10, after=4 * 8)
    rules = DropStragglers(window=8, chunks=4, patience=8, max_fraction=0.01)
    result = train(spark, slow, 10, drop_stragglers=rules)
    assert set(result.history.column("dropped")) == {0}
    assert set(result.history.column("samples")) == {440}
    awake = train(spark, mlp(), 10, drop_stragglers=DropStragglers(patience=1000, chunks=4))
    assert_bit_equal(result.module.inner, awake.module)


def test_without_stragglers_it_is_training_in_pieces(spark: Any) -> None:
    with_it = train(spark, mlp(), 6, drop_stragglers=DropStragglers(patience=1000, chunks=4))
    assert set(with_it.history.column("dropped")) == {0}
    without = train(spark, mlp(), 6, micro_batch_size=100)
    np.testing.assert_allclose(
        with_it.history.column("loss"), without.history.column("loss"), rtol=1e-5, atol=0
    )


@pytest.mark.slow
def test_a_replay_leaves_out_the_same_rows(spark: Any, monkeypatch: Any) -> None:
    """The last iteration fails once, after the slow partition has become fast: its past is repeated."""
    module = Sleepy(1.0, rows=10, after=4 * 8)
    straight = train(spark, module, 14, drop_stragglers=DROP, commit_every=100)
    assert straight.history[-1]["dropped"] == 30
    run, failed = Engine.run, []

    def fail_once(self: Engine, iterations: Any, model: Any) -> Any:
        if iterations[0].iteration == 13 and not failed:
            failed.append(iterations)
            raise TaskError("lost")
        return run(self, iterations, model)

    monkeypatch.setattr(Engine, "run", fail_once)
    again = train(spark, module, 14, drop_stragglers=DROP, commit_every=100)
    assert failed
    if again.history.column("dropped") == straight.history.column("dropped"):
        assert_bit_equal(again.module, straight.module)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_the_gradient_is_the_mean_over_what_came(fraction: float) -> None:
    x, y = torch.randn(40, 64), torch.randint(0, 10, (40,))
    objective = LossObjective(nn.CrossEntropyLoss())
    rows = int(40 * fraction)
    whole, part = FlatModule(mlp()), FlatModule(mlp())
    found = forward_backward(whole, Batch(x, y, None, 40), objective, 10, lambda done: done >= rows)
    expected = forward_backward(part, Batch(x[:rows], y[:rows], None, rows), objective, 10)
    assert (found.rows, found.dropped, found.weight) == (rows, 40 - rows, rows)
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    torch.testing.assert_close(whole.grad, part.grad)


def test_deadlines_follow_the_median() -> None:
    deadlines = Deadlines(DropStragglers(window=4, patience=3, max_fraction=0.2))
    assert deadlines.allowance().deadline is None
    deadlines.add([1.0, 1.0])
    assert deadlines.allowance().deadline is None
    deadlines.add([1.0, 9.0])
    assert deadlines.allowance() == Allowance(8, 3.0, most=0.2)
    for _ in range(4):
        deadlines.add([2.0])
    assert deadlines.allowance().deadline == 6.0


def test_allowance() -> None:
    allowance = Allowance(4, deadline=1.0)
    assert [allowance.size(rows) for rows in (1, 4, 5, 40)] == [1, 1, 2, 10]
    assert not allowance.ends(0, 10, 1.0)
    assert allowance.ends(0, 10, 1.1)
    again = Allowance(4, taken={1: 20})
    assert not again.ends(0, 10, 99.0)
    assert [again.ends(1, rows, 0.0) for rows in (10, 20)] == [False, True]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_fraction": 1}, "above 0 and below 1"),
        ({"max_fraction": True}, "max_fraction=True"),
        ({"patience": 1}, "above 1"),
        ({"window": 1}, "window=1"),
        ({"chunks": 2.5}, "chunks=2.5"),
    ],
)
def test_bad_options(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DropStragglers(**options)
    with pytest.raises(ConfigError, match="drop_stragglers=0.1"):
        Trainer(mlp(), loss=nn.MSELoss(), optimizer=torch.optim.SGD, drop_stragglers=0.1)


def test_it_goes_with_validation_and_other_triggers(spark: Any) -> None:
    with as_dataset(spark, PARTS) as data:
        result = Trainer(
            mlp(),
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.SGD, lr=0.1),
            batch_size=110,
            progress=False,
            drop_stragglers=DROP,
            validate_when=EveryIterations(3),
            end_when=MaxIteration(6),
        ).fit(data, validation=data)
    assert len(result.history.validations) == 2
