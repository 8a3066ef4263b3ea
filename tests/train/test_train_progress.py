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
