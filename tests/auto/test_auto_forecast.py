"""AutoForecast: a small search on real Spark; errors before any work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

from sparkdl.auto import AutoForecast, Entry, forecast
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml import TimeSeriesEstimator, TimeSeriesModel
from sparkdl.ml.estimators.fits_module import FitsModule
from sparkdl.ml.series import backtest
from sparkdl.nn import Forecaster
from sparkdl.series import holt_winters
from sparkdl.train import MaxEpoch
from sparkdl.tune.trial import Trial
from sparkdl.tune.tuner import Tuner


def estimator(**more: Any) -> TimeSeriesEstimator:
    given = {
        "horizon": 2,
        "inputLength": 6,
        "frequency": "1",
        "seasonality": 4,
        "verbose": False,
        "maxEpochs": 2,
    }
    return TimeSeriesEstimator(**{**given, **more})


@pytest.mark.whole
@pytest.mark.jvm
def test_the_best_of_a_search_beside_baselines_is_fitted_to_all_rows(real: Any, monkeypatch: Any) -> None:
    """A space of one Param; the leaderboard has models, and baselines, by errors on steps kept away."""
    monkeypatch.setattr(holt_winters, "is_installed", lambda: False)
    time = np.tile(np.arange(32), 3)
    table = pd.DataFrame({"id": np.repeat(["a", "b", "c"], 32), "time": time})
    table["value"] = 3.0 * time + np.random.default_rng(0).normal(
        size=96
    )  # of which a naive forecast knows nothing
    auto = AutoForecast(
        estimator(level="last", batchSize=32),
        timeBudget=600,  # far more than it takes: a slow machine shall not decide
        space={"architecture": ["nbeats", "tcn"], "learningRate": 1e-2},
        search="grid",
        metric="mae",
        max_epochs=2,
    )
    found = auto.fit(real.createDataFrame(table))
    board = found.leaderboard.dataframe()
    assert sorted(board.model) == ["nbeats", "seasonal-naive", "tcn"]
    assert board.mae.is_monotonic_increasing
    assert float(board.mae[board.model == "seasonal-naive"].iloc[0]) == pytest.approx(12, abs=2)
    assert isinstance(found.bestModel, TimeSeriesModel)
    assert found.bestModel.getArchitecture() == board.model[0]
    assert found.transform(real.createDataFrame(table)).count() == 6
    assert len(found.result) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AutoForecast(3), "estimator=3: expected a TimeSeriesEstimator"),
        (lambda: AutoForecast(estimator(), timeBudget=0), "timeBudget=0: expected a positive number"),
        (lambda: AutoForecast(estimator(), windows=0), "windows=0: expected an integer"),
        (lambda: AutoForecast(estimator(), space={"horizon": [1, 2]}), "they cannot differ in 'horizon'"),
        (
            lambda: AutoForecast(estimator(), space={"windowStep": [1, 2]}),
            "they cannot differ in 'windowStep'",
        ),
        (
            lambda: AutoForecast(estimator(), space={"leaningRate": [1, 2]}),
            "space: TimeSeriesEstimator has no Param 'leaningRate'",
        ),
        (lambda: AutoForecast(estimator(), trials=0), "trials"),
        (
            lambda: AutoForecast(estimator(module=Forecaster)),
            "space: 'candidate' chooses among the library's",
        ),
        (
            lambda: AutoForecast(estimator(module=Forecaster), space={"level": ["last", "mean"]}),
            "space: 'level' chooses among the library's modules, and the estimator has its own",
        ),
        (
            lambda: AutoForecast(
                estimator(quantiles=[0.1, 0.5, 0.9]), metric="pinball", holtWinters=True, trials=1
            ),
            "metric='pinball': Holt-Winters gives no quantiles; say holtWinters=False",
        ),
    ],
)
def test_what_cannot_work_is_told_at_once(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_holt_winters_is_a_baseline_where_it_can_be_one(monkeypatch: Any) -> None:
    monkeypatch.setattr(holt_winters, "is_installed", lambda: True)
    levels = estimator(quantiles=[0.1, 0.5, 0.9])
    assert AutoForecast(levels)._compares()
    assert not AutoForecast(levels, metric="pinball")._compares()
    assert not AutoForecast(levels, holtWinters=False)._compares()
    monkeypatch.setattr(holt_winters, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"pip install 'sparkdl\[series\]'") as caught:
        AutoForecast(estimator(), holtWinters=True)
    assert caught.value.code == "config-package"


def test_each_candidate_of_the_default_space_makes_a_module() -> None:
    auto = AutoForecast(estimator())
    tuner = auto._tuner(lambda _: None, 1.0)
    assert isinstance(tuner, Tuner)
    assert set(auto.space) == {"candidate", "learningRate", "level"}
    for name, params in forecast.CANDIDATES.items():
        own = forecast.with_candidate(auto.estimator, {"candidate": name, "level": "mean"})
        module, source = own._build(forecast_module(), **own._arguments())
        assert module.architecture == params["architecture"]
        assert source is not None


@pytest.fixture
def without_work(monkeypatch: pytest.MonkeyPatch) -> list[TimeSeriesEstimator]:
    """Let AutoForecast find a naive forecaster at once; return what it fits at the end."""
    fitted: list[TimeSeriesEstimator] = []
    naive = Entry(model=forecast.NAIVE, value=1, seconds=0)
    monkeypatch.setattr(backtest, "scored", lambda *_: [])
    monkeypatch.setattr(AutoForecast, "_scored", lambda *_: naive)
    monkeypatch.setattr(AutoForecast, "_search", lambda *_: SimpleNamespace(trials=[]))
    monkeypatch.setattr(TimeSeriesEstimator, "fit", lambda self, rows: fitted.append(self))
    return fitted


@pytest.mark.jvm
def test_a_metric_without_a_value_is_refused_before_the_search(real: Any, monkeypatch: Any) -> None:
    """Without one, the seasonal naive forecast was the best: of series that are shorter than a season."""
    monkeypatch.setattr(AutoForecast, "_search", lambda *_: pytest.fail("it has searched"))
    df = real.createDataFrame([("a", n, float(n)) for n in range(6)], "id string, time int, value double")
    message = r"metric='mase' has no value for any series.*season of 4 steps"
    with pytest.raises(DataError, match=message):
        AutoForecast(estimator(), holtWinters=False).fit(df)


def test_the_best_one_is_fitted_to_the_steps_that_have_validated_too(
    without_work: list[TimeSeriesEstimator],
) -> None:
    auto = AutoForecast(estimator(validationSteps=4, earlyStoppingPatience=2), holtWinters=False)
    auto._fit(None)
    assert [own.getValidationSteps() for own in without_work] == [0]
    assert not without_work[0].isSet("earlyStoppingPatience")
    assert auto.estimator.getValidationSteps() == 4


def test_the_fits_after_a_search_have_the_rates_of_their_trials(
    without_work: list[TimeSeriesEstimator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate fell to 0 at the best epoch, where the trial, which was to go on, had most of it left."""
    trial = Trial(number=0, params={"candidate": "tcn"}, first_params={}, values={1: -2, 2: -1, 3: -3})
    monkeypatch.setattr(AutoForecast, "_search", lambda *_: SimpleNamespace(trials=[trial]))
    monkeypatch.setattr(
        AutoForecast,
        "_scored",
        lambda *given: Entry(model=given[3], value=float(given[3] != "tcn"), seconds=0),
    )
    AutoForecast(estimator(maxEpochs=10, batchSize=32), holtWinters=False)._fit(None)
    (own,) = without_work
    trainers: list[dict[str, Any]] = []
    monkeypatch.setattr(FitsModule, "_trainer", lambda *_, **options: trainers.append(options))
    own._trainer(SimpleNamespace(once=lambda *_: 96), SimpleNamespace(module=nn.Identity()))  # type: ignore[arg-type]
    assert trainers[0]["end_when"] == MaxEpoch(2)
    assert trainers[0]["schedule"].factory.keywords["total_iters"] == 96 // 32 * 10


def test_a_naive_forecast_looks_back_a_whole_season(without_work: list[TimeSeriesEstimator]) -> None:
    AutoForecast(estimator(inputLength=3, seasonality=7), holtWinters=False)._fit(None)
    assert (without_work[0].getArchitecture(), without_work[0].getInputLength()) == ("naive", 7)
    assert without_work[0]._arguments()["season"] == 7
    short = estimator(architecture="naive", inputLength=3, seasonality=7)
    with pytest.raises(ConfigError, match="inputLength=3 does not reach back .* of 7 steps"):
        short._arguments()


def test_a_naive_forecast_is_none_of_the_estimators_module(without_work: list[TimeSeriesEstimator]) -> None:
    own = estimator(module=Forecaster).setHyper(width=3)
    AutoForecast(own, space={"learningRate": [1e-3, 1e-2]}, holtWinters=False)._fit(None)
    assert (without_work[0].module, without_work[0].getHyper()) == (None, {})
    assert (own.module, own.getHyper()) == (Forecaster, {"width": 3})


def test_holt_winters_is_left_out_where_quantiles_are_compared(
    without_work: list[TimeSeriesEstimator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holt_winters, "is_installed", lambda: True)
    monkeypatch.setattr(AutoForecast, "_holt_winters", lambda *_: pytest.fail("it was fitted"))
    AutoForecast(estimator(quantiles=[0.1, 0.5]), metric="pinball")._fit(None)
    assert len(without_work) == 1
    with pytest.raises(ConfigError, match="Holt-Winters gives no quantiles"):
        AutoForecast(estimator(quantiles=[0.1, 0.5]), metric="pinball", holtWinters=True)


def forecast_module() -> Any:
    from sparkdl.nn import Forecaster

    return Forecaster


def test_holt_winters_forecasts_trend_and_season() -> None:
    pytest.importorskip("statsmodels.tsa.holtwinters")
    time = np.arange(48.0)
    values = 0.5 * time + 10 * (np.arange(48) % 4)
    found = holt_winters.HoltWinters(4, 6)(values)
    np.testing.assert_allclose(found, 0.5 * np.arange(48, 54) + 10 * (np.arange(48, 54) % 4), atol=2)
    assert holt_winters.HoltWinters(4, 2)(np.array([1.0, 2.0])).tolist() == [2, 2]
