import json
import math
import pickle
import sys

import fsspec
import numpy as np
import pytest

from sparkdl.exceptions import ConfigError
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
    expected["extras"] = {}
    expected["dropped"] = 0
    expected["lost"] = 0
    expected["direct"] = 0
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


def test_extras_appear_when_they_first_occur(history):
    history.append(row(4, extras={"penalty": 0.5}))
    history.append(row(5, extras={"penalty": 0.25, "accuracy": 1}))
    history.append(row(6))
    assert [r["extras"] for r in history] == [
        {},
        {},
        {},
        {"penalty": 0.5},
        {"penalty": 0.25, "accuracy": 1.0},
        {},
    ]
    assert np.array_equal(
        history.column("extras.penalty"), [math.nan] * 3 + [0.5, 0.25, math.nan], equal_nan=True
    )
    assert history.columns[-2:] == ("extras.penalty", "extras.accuracy")
    assert list(pickle.loads(pickle.dumps(history))) == list(history)


def test_phases_and_bytes_nobody_foresaw_become_columns(history):
    history.append(row(4, phases={"compress": 1, "compute": 2}, bytes={"indices": 7.0}))
    assert history.column("phases.compress") == [0, 0, 0, 1]
    assert history.column("bytes.indices") == [0, 0, 0, 7]
    assert history[0]["phases"]["compress"] == 0
    assert history[-1]["phases"]["compute"] == 2


def test_memory_stays_small():
    history = History()
    for n in range(1, 1001):
        history.append(row(n, extras={"penalty": 0.5}))
    packed = [*history._columns().values()]
    assert sum(column.itemsize * len(column) for column in packed) == 8 * 1000 * len(history.columns)
    assert len(history.columns) < 25


def test_validations(history):
    history.add_scores(2, 1, "val", {"accuracy": 0.5, "loss": 2.0})
    history.add_scores(3, 1, "test", {"accuracy": 0.6})
    assert history.validations == [
        {"epoch": 1, "iteration": 2, "name": "val", "accuracy": 0.5, "loss": 2.0},
        {"epoch": 1, "iteration": 3, "name": "test", "accuracy": 0.6},
    ]
    assert pickle.loads(pickle.dumps(history)).validations == history.validations


@pytest.mark.parametrize("metric", ["epoch", "iteration", "name", "kind"])
def test_metrics_cannot_be_called_like_the_place(history, metric):
    with pytest.raises(ConfigError, match=f"'val': a metric is called '{metric}'"):
        history.add_scores(1, 1, "val", {metric: 1.0})


def test_to_pandas(history):
    history.append(row(4, extras={"penalty": 0.5}))
    table = history.to_pandas()
    assert list(table.columns) == list(history.columns)
    assert list(table["phases.compute"]) == [0.25, 0.5, 0.75, 1.0]
    assert table["iteration"].dtype == np.int64
    assert table["extras.penalty"].isna().sum() == 3
    history.append(row(5))  # the table is a copy: the columns can still grow
    assert len(table) == 4
    assert History().to_pandas().empty


@pytest.mark.parametrize("where", ["{tmp_path}/run.jsonl", "memory://history/run.jsonl"])
def test_to_jsonl(history, tmp_path, where):
    history.append(row(4, loss=math.nan, lr=math.inf, extras={"penalty": 0.5}))
    history.add_scores(2, 1, "val", {"accuracy": np.float32(0.5), "auc": math.nan})
    history.add_scores(4, 1, "val", {"accuracy": 0.75, "hits": np.int64(3)})
    path = where.format(tmp_path=tmp_path)
    history.to_jsonl(path)
    with fsspec.open(path) as file:
        lines = [json.loads(line, parse_constant=pytest.fail) for line in file]
    assert [(line["kind"], line["iteration"]) for line in lines] == [
        ("iteration", 1),
        ("iteration", 2),
        ("validation", 2),
        ("iteration", 3),
        ("iteration", 4),
        ("validation", 4),
    ]
    assert lines[0] == {"kind": "iteration", **history[0]}
    assert lines[2] == {
        "kind": "validation",
        "epoch": 1,
        "iteration": 2,
        "name": "val",
        "accuracy": 0.5,
        "auc": None,
    }
    assert lines[4]["loss"] is lines[4]["lr"] is None
    assert lines[5]["hits"] == 3


# -- plot ---------------------------------------------------------------------------------------


def trained(iterations, steps, **options):
    """A history with validations at the end of each epoch."""
    history = History()
    for n in range(1, iterations + 1):
        epoch = (n - 1) // steps + 1
        history.append(row(n, epoch=epoch, **options))
        if n % steps == 0:
            history.add_scores(n, epoch, "val", {"loss": 1 / n, "accuracy": 1 - 1 / n, "mae": 100.0 / n})
    return history


def titles(figure):
    return [ax.get_title(loc="left") for ax in figure.axes]


def test_plot_has_a_panel_for_each_scale():
    pytest.importorskip("matplotlib")
    figure = trained(60, 10).plot()
    assert titles(figure) == [
        "Loss",
        "Validation",
        "Validation: val mae",
        "Learning rate",
        "Seconds per iteration, by phase",
    ]
    loss, validation, *_ = figure.axes
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training, smoothed", "val loss"]
    assert [text.get_text() for text in validation.get_legend().get_texts()] == ["val accuracy  0.9833"]
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_shares_of_the_chart_add_up():
    """Of histories of earlier releases, too, whose phases overlapped."""
    pytest.importorskip("matplotlib")
    for phases in ({"compute": 0.2, "update": 0.1, "other": 0.2}, {"compute": 0.5, "update": 1.5}):
        *_, chart = trained(60, 10, seconds=0.5, phases=phases).plot().axes
        shares = dict(text.get_text().split() for text in chart.get_legend().get_texts())
        assert sum(int(share.rstrip("%")) for share in shares.values()) == 100
        assert shares["update"] == ("20%" if "other" in phases else "75%")


@pytest.mark.parametrize(
    "history",
    [
        History(),
        trained(1, 1),
        trained(3, 2),
        trained(30, 1),
        trained(2_000, 100),
        trained(30, 10, lr=math.nan),
        trained(30, 10, loss=math.nan),
        trained(30, 10, loss=0.0, seconds=0.0, lr=0.0, phases={}),
        trained(30, 10, loss=-5.0, phases={"new": 0.1}),
    ],
    ids=["empty", "one", "three", "epochs of one", "long", "no lr", "nan", "zeros", "negative"],
)
def test_plot_draws_anything(history):
    pytest.importorskip("matplotlib")
    history.plot().draw_without_rendering()


def test_plot_shows_nothing_by_itself():
    matplotlib = pytest.importorskip("matplotlib")
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    figure = trained(5, 2).plot()
    assert isinstance(figure, matplotlib.figure.Figure)
    assert plt.get_fignums() == before


def test_plot_keeps_out_nan_scores():
    pytest.importorskip("matplotlib")
    history = trained(5, 2)
    history.add_scores(5, 3, "val", {"auc": math.nan})
    history.plot().draw_without_rendering()


def test_plot_says_what_to_install(history, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        history.plot()
