import math
import pickle

import pytest

from sparkdl.train import History
from sparkdl.train.history import BYTES, PHASES


def row(n, **options):
    return {
        "epoch": 1,
        "iteration": n,
        "loss": 1 / n,
        "samples": 10,
        "lr": 0.1,
        "seconds": 0.5,
        "phases": {"compute": n / 4},
        "bytes": {"state": n},
        **options,
    }


@pytest.fixture
def history():
    history = History()
    for n in range(1, 4):
        history.append(row(n))
    return history


def test_rows_come_back_complete(history):
    expected = row(2)
    expected["phases"] = dict.fromkeys(PHASES, 0.0) | {"compute": 0.5}
    expected["bytes"] = dict.fromkeys(BYTES, 0) | {"state": 2}
    assert history[1] == expected
    assert list(history[1]["phases"]) == list(PHASES)
    assert isinstance(history[1]["iteration"], int)


def test_it_is_a_sequence(history):
    assert len(history) == 3
    assert [r["iteration"] for r in history] == [1, 2, 3]
    assert history[-1] == history[2]
    assert [r["iteration"] for r in history[1:]] == [2, 3]
    assert [r["iteration"] for r in history[::-2]] == [3, 1]
    assert history[2] in history
    assert history.index(history[1]) == 1


@pytest.mark.parametrize("index", [3, -4])
def test_rows_outside_are_index_errors(history, index):
    with pytest.raises(IndexError, match=f"row {index} of a history of 3 iterations"):
        history[index]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("iteration", [1, 2, 3]),
        ("loss", [1, 1 / 2, 1 / 3]),
        ("phases.compute", [0.25, 0.5, 0.75]),
        ("phases.launch", [0, 0, 0]),
        ("bytes.state", [1, 2, 3]),
    ],
)
def test_columns(history, name, values):
    assert history.column(name) == values


def test_an_unknown_column_lists_those_there_are(history):
    with pytest.raises(KeyError, match=r"'accuracy' is not one of epoch, .*phases\.compute"):
        history.column("accuracy")


def test_nan_and_large_numbers_are_kept(history):
    history.append(row(4, loss=math.nan, samples=2**40))
    assert math.isnan(history[-1]["loss"])
    assert history[-1]["samples"] == 2**40


def test_repr(history):
    assert repr(History()) == "History(0 iterations)"
    assert repr(history) == "History(3 iterations, last loss 0.333333)"


def test_it_pickles(history):
    assert list(pickle.loads(pickle.dumps(history))) == list(history)
