import re
import sys
import warnings

import pytest
from support.runs import FakeRun

from sparkdl.train.hooks.progress import Progress


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr("sparkdl.train.hooks.progress._lively", lambda: True)


def test_it_shows_epoch_loss_and_rate(capsys):
    FakeRun(steps=2).train(Progress("digits"), iterations=4, validate=False)
    shown = capsys.readouterr().err
    assert "digits epoch 1: 100%" in shown
    assert "digits epoch 2: 100%" in shown
    assert "2/2" in shown
    assert "loss=0.2500" in shown
    assert "records/s" in shown


def test_it_shows_the_monitored_score_of_the_last_validation(capsys):
    FakeRun(steps=2).train(Progress("digits"), iterations=2)
    assert "val/accuracy=0.6667" in capsys.readouterr().err


def test_the_score_stays_in_the_next_epoch(capsys):
    FakeRun(steps=2).train(Progress("digits"), iterations=3)
    assert "val/accuracy=0.6667" in capsys.readouterr().err.split("epoch 2")[-1]


@pytest.mark.usefixtures("terminal")
def test_it_says_that_it_validates(capsys):
    FakeRun(steps=2).train(Progress("digits"), iterations=2)
    assert "validating val" in capsys.readouterr().err


def test_rates_are_those_of_the_iterations_whenever_they_arrive(capsys):
    """Groups bring many iterations at once: ten records in half a second each, played at once."""
    FakeRun(steps=30).train(Progress("digits"), iterations=60)
    first, second = (line for line in lines(capsys) if "30/30" in line)
    for line, score in ((first, 30 / 31), (second, 60 / 61)):
        assert f"val/accuracy={score:.4f}, 20 records/s" in line
        assert "it/s" not in line
        assert "left" not in line


@pytest.mark.usefixtures("terminal")
def test_the_time_that_is_left_is_that_of_the_iterations(capsys):
    hook, run = Progress("digits"), FakeRun(steps=1000)
    hook.on_train_begin(run)
    run.iterate(hook, seconds=30.0)  # which starts Python
    for _ in range(9):
        run.iterate(hook)
    assert "08:15 left" in hook._text(run)  # 990 times half a second
    assert f"{100 / 34.5:,.0f} records/s" in hook._text(run)
    run.iterate(hook, seconds=5.5)  # one slow iteration makes no trend
    assert "16:29 left" in hook._text(run)  # 989 times the mean of 9 of half a second and this one
    hook.on_train_end(run)


def test_eighty_columns_hold_all_that_counts(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    hook, run = Progress("a run of a long name"), FakeRun(steps=200)
    run.train(hook, iterations=5000, samples=154912)
    shown = lines(capsys)
    assert max(map(len, shown)) <= 80
    ends = [line for line in shown if "100%" in line and "validating" not in line]
    assert ends[-1] == "epoch 25: 100%, loss=0.0002, val/accuracy=0.9998, 309,824 records/s"
    run.iterate(hook, samples=154912)
    assert len(f"epoch 26:   1%, {hook._text(run)}") <= 80
    hook.on_train_end(run)


def lines(capsys):
    return [line.rstrip() for line in re.split("[\r\n]+", capsys.readouterr().err) if line.strip()]


def test_in_log_files_an_epoch_is_two_lines(capsys):
    FakeRun(steps=50).train(Progress("digits"), iterations=50)
    assert capsys.readouterr().err.count("digits epoch") == 2


def test_a_run_that_ends_within_an_epoch_closes_its_bar(capsys):
    hook = Progress("digits")
    FakeRun(steps=10).train(hook, iterations=3)
    assert hook._bar is None
    assert "3/10" in capsys.readouterr().err


def test_an_error_closes_the_bar():
    class Boom(Progress):
        def on_iteration_begin(self, run):
            if run.state.iteration == 2:
                raise ValueError("boom")

    hook = Boom("digits")
    with pytest.raises(ValueError, match="boom"):
        FakeRun(steps=10).train(hook, iterations=3)
    assert hook._bar is None


def test_a_run_that_resumes_within_an_epoch_begins_there(capsys):
    run = FakeRun(steps=10)
    run.train(iterations=6)
    run.train(Progress("digits"), iterations=2)
    assert "8/10" in capsys.readouterr().err


def test_epochs_of_one_iteration(capsys):
    FakeRun(steps=1).train(Progress("digits"), iterations=3)
    assert "digits epoch 3: 100%" in capsys.readouterr().err


def test_notebooks_without_ipywidgets_get_no_warning(monkeypatch):
    for module in ("tqdm.auto", "tqdm.autonotebook"):
        monkeypatch.delitem(sys.modules, module, raising=False)

    class Shell:
        pass

    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", type(sys)("zmqshell"))
    ipython = type(sys)("IPython")
    ipython.get_ipython = lambda: Shell()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr("tqdm.notebook.IProgress", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FakeRun().train(Progress("digits"), iterations=1)
