"""AutoTabular: a search over a table's rows, and an ordinary fitted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from sparkdl import Predictor, TorchClassifier, TorchRegressor
from sparkdl.auto import AutoTabular, Candidate
from sparkdl.auto.tabular import FIRST, default_candidates
from sparkdl.data.store.dataframe import split_by_fraction
from sparkdl.exceptions import ConfigError, DataError, SparkdlWarning
from sparkdl.ml import TorchClassificationModel
from sparkdl.ml.estimators import fitting, tables
from sparkdl.tune.running.journal import Journal

QUICK: dict[str, Any] = {"trials": 2, "max_epochs": 2, "progress": False, "timeout": 300.0}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    random = np.random.default_rng(0)
    x = random.normal(size=240)
    site = random.choice(["north", "south", "west"], 240)
    state = np.where((x > 0) ^ (site == "west"), "fails", "runs")
    return pd.DataFrame({"site": site, "hours": x, "state": state, "cost": 3 * x + (site == "west")})


@pytest.mark.jvm
@pytest.mark.whole
def test_classes_are_learned_and_the_model_is_an_ordinary_one(
    real: Any, table: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_LEAST_BATCH", 1)
    monkeypatch.setattr(tables, "_ITERATIONS", 7)  # so that all rows would have another batch than a trial
    df = real.createDataFrame(table.drop(columns="cost")).coalesce(1)
    auto = AutoTabular(labelCol="state", **QUICK)
    model = auto.fit(df)
    assert isinstance(model, TorchClassificationModel)
    assert set(model.labels) == {"fails", "runs"}
    board = auto.leaderboard
    assert board is not None
    assert len(board) == 2
    table_of_trials = board.dataframe()
    assert list(table_of_trials["model"]) == ["Tabular", "Tabular"]
    first = auto.results["Tabular"].trials[0].params
    assert first["module.hidden"] == "[128, 128]"
    assert first["learningRate"] == FIRST["learningRate"]
    best = auto.results["Tabular"].get_best()
    assert board.best.value == best.value
    assert model.summary.totalEpochs == best.epoch  # and on all rows
    assert model.encoding is not None
    assert model.encoding.rows == 240
    numbered, _ = fitting.index_strings(df, "state")
    assert best.rows == split_by_fraction(numbered.select("site", "hours", "state"), 0.2, 0)[0].count() < 224
    assert (model.getBatchSize(), tables.batch_size(240)) == (16, 32)
    model.write().save(str(tmp_path / "model"))
    again = TorchClassificationModel.load(str(tmp_path / "model"))
    assert set(again.transform(df).toPandas()["predictedLabel"]) <= {"fails", "runs"}
    logits = Predictor.load(str(tmp_path / "model"))(site=["west"], hours=[1.0])
    assert logits.shape == (1, 2)


@pytest.mark.jvm
@pytest.mark.whole
def test_amounts_are_learned_by_several_kinds_of_models(real: Any, table: pd.DataFrame) -> None:
    df = real.createDataFrame(table).coalesce(1)
    own = Candidate(TorchRegressor(verbose=False), {"module.dropout": [0.0, 0.2]}, [{"module.dropout": 0.2}])
    candidates = {**default_candidates("regression"), "own": own}
    auto = AutoTabular(
        labelCol="cost",
        featuresCols=["site", "hours"],
        candidates=candidates,
        **{**QUICK, "trials": 1, "max_epochs": 1},
    )
    model = auto.fit(df)
    assert auto.leaderboard is not None
    assert {entry.model for entry in auto.leaderboard.entries} == {"Tabular", "own"}
    assert auto.results["own"].trials[0].params == {"module.dropout": 0.2}
    assert model.getFeaturesCols() == ["site", "hours"]
    assert torch.isfinite(torch.tensor(model.transform(df).toPandas()["prediction"])).all()


@pytest.mark.jvm
def test_the_task_follows_from_the_label_or_is_asked_for(real: Any) -> None:
    df = real.createDataFrame([(1.0, 1, "a", True)], "x double, n int, s string, b boolean")
    tasks = {name: AutoTabular(labelCol=name)._task_of(df) for name in ("x", "s", "b")}
    assert tasks == {"x": "regression", "s": "classification", "b": "classification"}
    with pytest.raises(ConfigError, match="label column 'n' has type int, which may be classes or amounts"):
        AutoTabular(labelCol="n").fit(df)
    with pytest.raises(DataError, match="label column 'y' is not in the DataFrame; it has b, n, s, x"):
        AutoTabular(labelCol="y").fit(df)


def test_options_that_cannot_work_are_told_at_once() -> None:
    for options, message in (
        ({"task": "ranking"}, "task='ranking': expected 'classification' or 'regression'"),
        ({"timeout": 0}, "timeout=0: expected a positive number of seconds"),
        ({"validation": 1.0}, "validation=1.0: expected a share"),
        ({"candidates": {}}, "expected at least one kind of model"),
        ({"numFolds": 5}, "numFolds=5: a share of the rows validates"),
        ({"metric": "val/accuracy"}, "mode=None: say whether larger values"),
        ({"candidates": {"own": Candidate(TorchClassifier(), {"rate": [1, 2]})}}, "no Param 'rate'"),
    ):
        with pytest.raises(ConfigError, match=message):
            AutoTabular(labelCol="y", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["weightCol", "validationIndicatorCol"])
def test_columns_that_only_a_candidate_reads_are_refused(name: str) -> None:
    """They were features, too; with an indicator the share for validation counted for nothing."""
    own = {"own": Candidate(TorchClassifier(**{name: "w"}), {"learningRate": [1e-3]})}
    with pytest.raises(ConfigError, match=rf"candidates\['own'\]: its estimator has {name}='w'"):
        AutoTabular(labelCol="y", candidates=own)
    weighted = {"own": Candidate(TorchClassifier(weightCol="w"), {"learningRate": [1e-3]})}
    AutoTabular(labelCol="y", weightCol="w", candidates=weighted)


def test_each_of_several_candidates_has_a_search_of_its_own(tmp_path: Path) -> None:
    own = Candidate(TorchClassifier(), {"learningRate": [1e-3, 1e-2]})

    def places(candidates: dict[str, Candidate]) -> list[tuple[Any, Any]]:
        auto = AutoTabular(labelCol="y", candidates=candidates, folder=tmp_path)
        tuners = [auto._tuner(name, each, ["x"], 10) for name, each in candidates.items()]
        return [(tuner.options["folder"], tuner.options.get("name")) for tuner in tuners]

    assert places({"a": own}) == [(tmp_path, None)]
    folders = [str(tmp_path / "a"), str(tmp_path / "..%2Fb")]
    assert places({"a": own, "../b": own}) == list(zip(folders, ["search a", "search ../b"], strict=True))
    searches = [Journal(folder, {}, False) for folder in folders]  # both at once, whose parent is made, too
    assert [search.is_kept for search in searches] == [True, True]


def test_candidates_with_different_losses_are_compared_with_a_warning() -> None:
    space = {"learningRate": [1e-3, 1e-2]}
    losses: list[Any] = [None, nn.HuberLoss()]
    both = {str(n): Candidate(TorchRegressor(loss=loss), space) for n, loss in enumerate(losses)}
    with pytest.warns(SparkdlWarning, match="their estimators have different losses"):
        AutoTabular(labelCol="y", candidates=both)
    AutoTabular(labelCol="y", candidates=both, metric="val/mean_absolute_error", mode="min")
    AutoTabular(labelCol="y", candidates={"0": both["0"], "1": both["0"]})
