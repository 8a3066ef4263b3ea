"""What notebooks are shown: no job is started, and nothing that people name becomes HTML."""

from __future__ import annotations

import math
import sys
import xml.etree.ElementTree as ET
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from sparkdl import Dataset, Trainer, html
from sparkdl.data import Pad
from sparkdl.exceptions import ConfigError
from sparkdl.ml import (
    TimeSeriesEstimator,
    TimeSeriesModel,
    TorchClassificationModel,
    TorchClassifier,
    TorchEstimator,
)
from sparkdl.ml.estimators.summary import TrainingSummary
from sparkdl.nn import MLP
from sparkdl.optim import ClipByNorm, ParamGroup
from sparkdl.table.encoding import Category, Number, TableEncoding
from sparkdl.train import History, LivePlot, MaxEpoch

EVIL = "<script>alert(1)</script>"
TAGS = {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "svg", "polyline"}


@pytest.fixture
def spark(in_process: Any) -> Any:
    return in_process


def parsed(shown: str) -> ET.Element:
    """Check that HTML is well-formed, and free of what a browser would run."""
    root = ET.fromstring(shown.replace("&nbsp;", " "))
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert names <= TAGS
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)
    return root


def told(root: ET.Element) -> str:
    return " ".join(" ".join(root.itertext()).split())


def test_a_sparkline() -> None:
    (line,) = parsed(html.sparkline([1.0, math.nan, 3.0, 2.0], "loss")).iter(
        "{http://www.w3.org/2000/svg}polyline"
    )
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert [x for x, _ in points] == pytest.approx([2, 159.3, 238], abs=0.1)
    assert [y for _, y in points] == [38, 2, 20]
    many = html.sparkline(range(100_000), EVIL)
    parsed(many)
    assert len(many) < 3000
    assert html.sparkline([1.0, math.inf], "x") == html.sparkline([], "x") == ""
    parsed(html.sparkline([2.0, 2.0], "flat"))
    assert [html.amount(n) for n in (0, 1023, 1024, 5 << 30)] == ["0 B", "1023 B", "1 KiB", "5 GiB"]
    assert html.text("x" * 1000).endswith("…")


def test_a_dataset_and_its_training(spark: Any) -> None:
    draw = np.random.default_rng(0)
    df = pd.DataFrame({EVIL: list(draw.normal(size=(40, 3))), "y": draw.integers(0, 2, 40)})
    with Dataset.from_dataframe(df, features=EVIL, label="y", num_partitions=2) as data:
        shown = told(parsed(data._repr_html_()))
        assert f"{EVIL} features not read yet" in shown
        assert not spark.sparkContext.jobs
        trainer = Trainer(
            nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.SGD, lr=0.1),
            end_when=MaxEpoch(2),
            progress=False,
            name=EVIL,
        )
        result = trainer.fit(data, validation=data)
        shown = told(parsed(data._repr_html_()))
        assert "rows 40 , partitions 2 of 20, 20 rows , on the executors 1.094 KiB" in shown
        assert f"{EVIL} features float32[3] y label int64[]" in shown
        assert repr(data) == f"Dataset({EVIL}: float32[3], y: int64[])"
    shown = told(parsed(trainer._repr_html_()))
    assert "0 Linear weight [4, 3], bias [4] 16 16" in shown
    assert "end_when MaxEpoch(epochs=2)" in shown
    assert "optimizer SGD(lr=0.1)" in shown
    assert repr(trainer) == f"Trainer({EVIL}, 26 parameters)"
    loss, score = result.state.loss, result.scores["val/loss"]
    told_of = f"2 epochs, 4 iterations in {result.state.seconds:.1f} s, stopped by end_when"
    assert repr(result) == f"FitResult(Sequential: {told_of}, loss {loss:.4g}, val/loss {score:.4g})"
    summary = TrainingSummary(result)
    assert repr(summary) == f"TrainingSummary({told_of}, loss {loss:.4g}, val/loss {score:.4g})"
    for shown in (told(parsed(summary._repr_html_())), told(parsed(result.history._repr_html_()))):
        assert "iterations 4" in shown
        assert f"val/loss {result.history.validations[0]['loss']:.4g} {score:.4g}" in shown
    parsed(History()._repr_html_())
    root = parsed(result._repr_html_())
    assert "epochs 2 , iterations 4" in told(root)
    assert "loss" in told(root)
    assert "val/loss" in told(root)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}svg"))) == 2
    untrained = Trainer(nn.Linear(3, 2), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    parsed(untrained._repr_html_())


class Notebook:
    """Takes what a kernel would show: one output, and its updates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[str] = []
        self.opened = 0
        fake = ModuleType("IPython.display")
        fake.HTML, fake.display = str, self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
        monkeypatch.setitem(sys.modules, "IPython.display", fake)
        monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", ModuleType("zmqshell"))

    def display(self, shown: str, display_id: bool) -> Notebook:
        self.opened += 1
        self.update(shown)
        return self

    def update(self, shown: str) -> None:
        self.shown.append(shown)


def test_a_live_plot(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 3)).astype(np.float32), draw.integers(0, 2, 40)
    notebook = Notebook(monkeypatch)
    trainer = Trainer(
        nn.Linear(3, 2),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=10,
        end_when=MaxEpoch(2),
        hooks=[LivePlot(seconds=1e-6)],
        progress=False,
        name=EVIL,
    )
    with Dataset.from_numpy(x, y, num_partitions=1) as data:
        trainer.fit(data, data)
        assert notebook.opened == 1
        assert len(notebook.shown) >= 4
        first, last = parsed(notebook.shown[0]), parsed(notebook.shown[-1])
        assert told(first).startswith(f"Run of {EVIL} : epochs 0 , iterations 0")
        assert told(last).startswith(f"Run of {EVIL} : epochs 2 , iterations 8 , loss")
        assert [line.attrib["width"] for line in last.iter("{http://www.w3.org/2000/svg}svg")] == ["480"] * 2
        monkeypatch.delitem(sys.modules, "ipykernel.zmqshell")
        trainer.fit(data)
    assert notebook.opened == 1
    for wrong in (0, -1.0, True, "1"):
        with pytest.raises(ConfigError, match="expected a number above 0"):
            LivePlot(seconds=wrong)  # type: ignore[arg-type]


def test_rows_of_different_lengths(spark: Any) -> None:
    df = pd.DataFrame({"ids": [[1, 2], [3]], "y": [0, 1]})
    with Dataset.from_dataframe(df, features="ids", label="y", collate=Pad(), num_partitions=1) as data:
        data.store()
        shown = told(parsed(data._repr_html_()))
        assert "ids features int64[any]" in shown
        # Three values, two ends, two labels, two positions, of eight bytes.
        assert "on the executors 72 B" in shown


def test_a_model() -> None:
    module = nn.Sequential(*[nn.Linear(2, 2) for _ in range(40)])
    model = TorchClassificationModel.from_module(module, example=torch.zeros(1, 2), featuresCol=EVIL)
    assert repr(model) == (
        f"TorchClassificationModel: uid={model.uid}, module=Sequential, numClasses=2, numFeatures=2 ({EVIL})"
    )
    shown = told(parsed(model._repr_html_()))
    assert f"features {EVIL}" in shown
    assert "... 10 more" in shown


def test_models_say_what_they_are_in_a_line() -> None:
    """As Spark's: ``LogisticRegressionModel: uid=..., numClasses=2, numFeatures=4``."""
    names = [f"column {number}" for number in range(9)]
    encoding = TableEncoding(tuple(Number(name, "number", 0.0, 1.0) for name in names), (), {}, 10)
    model = TorchClassificationModel(MLP(9, 2), encoding=encoding, labels=["no", "yes"])
    model._set(featuresCols=names)
    shown = repr(model)
    assert shown.startswith(f"TorchClassificationModel: uid={model.uid}, module=MLP, numClasses=")
    assert shown.endswith(f"(no, yes), numFeatures=9 ({', '.join(names[:6])}, ... 3 more)")
    series = TimeSeriesModel(nn.Linear(2, 2))
    assert repr(series) == f"TimeSeriesModel: uid={series.uid}, module=Linear"


def test_estimators_show_what_is_not_the_default() -> None:
    assert repr(TorchEstimator()) == "TorchEstimator()"
    estimator = TorchClassifier(
        module=MLP,
        optimizer=partial(torch.optim.SGD, lr=0.5),
        maxEpochs=30,
        labelCol="state",
        batchSize=TorchClassifier().getBatchSize(),
        clip=ClipByNorm(1.0),
        groups=[ParamGroup("*.bias", lr=0.1)],
        options={"token": "secret"},
    )
    assert repr(estimator) == (
        "TorchClassifier(labelCol='state', maxEpochs=30, module=MLP, optimizer=SGD(lr=0.5), "
        "groups=[ParamGroup], clip=ClipByNorm, options={token})"
    )
    assert repr(TimeSeriesEstimator(horizon=3, loss=nn.MSELoss())) == (
        "TimeSeriesEstimator(horizon=3, loss=MSELoss)"
    )


def test_an_encoding() -> None:
    found = TableEncoding(
        (Number("age", "number", 40.0, 10.0),), (Category(EVIL, "string", ("a",)),), {"id": "unique"}, 1000
    )
    assert repr(found) == ("TableEncoding(numbers: 1, categories: 1, left out: 1; fitted on 1,000 rows)")
    shown = told(parsed(found._repr_html_()))
    assert f"{EVIL} category of 1 values id left out, unique" in shown


def test_optimizers_as_one_would_write_them() -> None:
    for optimizer, groups, expected in (
        (torch.optim.Adam, (), "Adam()"),
        (partial(torch.optim.Adam, lr=0.5), [ParamGroup("bias", lr=0.1)], "Adam(lr=0.5, 2 groups)"),
        (lambda parameters: torch.optim.Adam(parameters, lr=0.5), (), "Adam(...)"),
    ):
        trainer = Trainer(nn.Linear(2, 2), loss=nn.MSELoss(), optimizer=optimizer, groups=groups)
        assert str(trainer._recipe.optimizer) == expected
