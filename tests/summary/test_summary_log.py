import io
import logging

import pytest
from support.runs import FakeRun

from sparkdl.summary import LogLine, Thinning
from sparkdl.summary.interval import Interval
from sparkdl.train.options.triggers import EveryIterations, EverySeconds
from sparkdl.train.state import TrainState


def test_lines(caplog):
    caplog.set_level(logging.INFO, "sparkdl")
    FakeRun(steps=5).train(LogLine(EveryIterations(2)), iterations=5)
    assert caplog.messages == [
        "digits: epoch 1 (40%), iteration 2, 1.0 s: loss 0.75, lr 0.1, 20 records/s; compute 60%, shuffle "
        "20%, other 20%",
        "digits: epoch 1 (80%), iteration 4, 2.0 s: loss 0.2917, lr 0.1, 20 records/s; compute 60%, shuffle "
        "20%, other 20%",
        "digits: epoch 1 (100%), iteration 5, 2.5 s: val accuracy 0.83333",
        "digits: epoch 1 (100%), iteration 5, 2.5 s: loss 0.2, lr 0.1, 20 records/s; compute 60%, shuffle "
        "20%, other 20%",
        "digits: ended after epoch 1 (100%), iteration 5, 2.5 s: end_when",
    ]


def test_every_ten_seconds_by_default(caplog):
    caplog.set_level(logging.INFO, "sparkdl")
    FakeRun(steps=1000).train(LogLine(), iterations=45)
    assert [m.split(",")[1] for m in caplog.messages[:-2]] == [" iteration 20", " iteration 40"]
    assert LogLine()._every == EverySeconds(10)


def test_small_shares_are_summed_up(caplog):
    caplog.set_level(logging.INFO, "sparkdl")
    phases = {"compute": 0.4, "update": 0.02, "data": 0.06}
    FakeRun().train(LogLine(), iterations=1, phases=phases)
    assert caplog.messages[0].endswith("compute 80%, data 12%, other 8%")


def test_errors_are_named(caplog):
    caplog.set_level(logging.INFO, "sparkdl")

    class Boom(LogLine):
        def on_iteration_begin(self, run):
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        FakeRun().train(Boom())
    assert caplog.messages == ["digits: ended after epoch 1 (0%), iteration 0, 0.0 s: ValueError: boom"]


def test_lines_go_to_stderr_where_logging_is_not_set_up(monkeypatch):
    logger = logging.getLogger("sparkdl")
    monkeypatch.setattr(logger, "propagate", False)  # pytest's handlers hang on the root
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    FakeRun().train(LogLine(), iterations=1)
    assert "sparkdl digits: epoch 1 (25%), iteration 1" in stderr.getvalue()
    assert not logger.handlers
    assert logger.level == logging.NOTSET


def test_levels_that_were_set_are_respected(caplog):
    caplog.set_level(logging.WARNING, "sparkdl")
    FakeRun().train(LogLine(EveryIterations(1)), iterations=2)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("iterations", "points"), [(1_000, 1_000), (1_010, 1_001), (10_000, 1_900), (20_000, 2_000)]
)
def test_thinning(iterations, points):
    states = [TrainState(iteration=n) for n in range(iterations + 1)]
    trigger = Thinning()
    assert sum(map(trigger, states, states[1:])) == points


def row(**options):
    return {"loss": 1.0, "lr": 0.1, "samples": 1, "seconds": 1.0, "phases": {}, "bytes": {}} | options


def test_the_loss_of_an_interval_is_the_mean_over_samples():
    interval = Interval()
    for loss, samples in ((1.0, 10), (4.0, 20), (4.0, 0)):
        interval.add(row(loss=loss, samples=samples))
    assert interval.take()["train/loss"] == pytest.approx(3)
    assert interval.take() == {}


def test_an_interval_without_samples_has_no_loss():
    interval = Interval()
    interval.add(row(samples=0))
    assert "train/loss" not in interval.take()


def test_extras_are_averaged_over_the_rows_that_have_them():
    interval = Interval()
    interval.add(row(extras={"a": 1.0}))
    interval.add(row(extras={"a": 3.0, "b": 5.0}))
    interval.add(row())
    point = interval.take()
    assert point["extras/a"] == 2
    assert point["extras/b"] == 5


def test_a_confusion_matrix_is_no_hundred_numbers_in_a_line(caplog):
    caplog.set_level(logging.INFO, "sparkdl")
    run = FakeRun(steps=1)
    line = LogLine()
    matrix = {f"confusion/{i}/{j}": 1.0 for i in range(10) for j in range(10)}
    line.on_validation_end(run, "val", {"loss": 0.5, **matrix, "recall/0": 0.25, "recall/1": 1.0})
    assert caplog.messages[0].endswith("val loss 0.5, confusion (100 numbers), recall/0 0.25, recall/1 1")
