"""A search over the forecasters of this library, beside baselines, within a time."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.auto.leaderboard import Entry, Leaderboard
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml.series import backtest
from sparkdl.ml.series.forecast import forecast_rows
from sparkdl.ml.series.stage import TimeSeriesEstimator, TimeSeriesModel
from sparkdl.series import holt_winters
from sparkdl.train.trainer import Trainer
from sparkdl.tune.estimator import check_space, ending_early, with_params
from sparkdl.tune.result import SearchResult
from sparkdl.tune.schedulers.stopping import MedianStopping
from sparkdl.tune.space import loguniform
from sparkdl.tune.trial import Trial
from sparkdl.tune.tuner import Tuner

CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "linear": {"architecture": "linear"},
    "nbeats": {"architecture": "nbeats"},
    "nbeats-wide": {"architecture": "nbeats", "module.blocks": 8, "module.width": 256},
    "tcn": {"architecture": "tcn"},
    "tcn-wide": {"architecture": "tcn", "module.channels": [64] * 4, "module.kernel": 5},
    "patch": {"architecture": "patch"},
    "patch-wide": {"architecture": "patch", "module.width": 128, "module.feed_forward": 256},
}
"""The modules of the default space, by the Params that make them."""

SPACE: Mapping[str, Any] = {
    "candidate": list(CANDIDATES),
    "learningRate": loguniform(3e-4, 1e-2),
    "level": ["last", "mean", "standard"],
}
"""The default space."""

SEARCH_SHARE = 0.6
"""Share of the time that the search may take; the rest is for fits of what it has found, and baselines."""

_OF_MODULES = ("candidate", "architecture", "level")
"""What a space can name besides the Params of trainings: which of the library's modules."""

NAIVE, HOLT_WINTERS = "seasonal-naive", "holt-winters"


class AutoForecast(Estimator[Any]):
    """Searches forecasters for a panel, compares them with baselines, and fits the best one to all rows.

    ::

        auto = AutoForecast(TimeSeriesEstimator(horizon=12, frequency="M"), timeBudget=600)
        model = auto.fit(df)
        model.leaderboard.dataframe()
        model.transform(df)

    1. The last ``windows`` horizons of each series are kept away for the leaderboard.
    2. A :class:`sparkdl.tune.Tuner` searches the space by the loss on the horizon before them.
    3. The best trial of each architecture is fitted again, without these steps, for as many epochs as led
       to its best loss, with the learning rates that the trial had in these; its forecasts of them, and
       those of the baselines, are scored. Baselines are the value of a season ago and, where statsmodels is
       installed, Holt-Winters of each series.
    4. The best one is fitted to all rows. Holt-Winters only compares: if it wins, the leaderboard says so,
       and the model is the best of the others.

    Args:
        estimator: columns, horizon, frequency and all that the space does not choose.
        timeBudget: seconds for everything but the last fit, about; a fit that has begun ends.
        space: by the name of a Param, such as ``"learningRate"``, ``"batchSize"`` or
            ``"module.width"``, what :class:`sparkdl.tune.Tuner` takes; ``"candidate"`` chooses among
            :data:`CANDIDATES`. Columns, lengths and scales cannot be searched: all trials read the same
            windows. For an estimator with a module of its own it names other Params than those which choose
            the module.
        metric: of the leaderboard: ``mae``, ``rmse``, ``smape``, ``mase``, or ``pinball`` with quantiles.
        windows: horizons of each series that the leaderboard forecasts.
        trials: most trials.
        holtWinters: whether to compare with it; by default where statsmodels is installed, unless the metric
            is ``pinball``: it gives no quantiles.
        **options: of :class:`sparkdl.tune.Tuner`, such as ``max_epochs``, ``seed``, ``concurrent``.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(
        self,
        estimator: TimeSeriesEstimator,
        *,
        timeBudget: float = 600.0,  # noqa: N803 - as Params are named
        space: Mapping[str, Any] | None = None,
        metric: str = "mase",
        windows: int = 1,
        trials: int = 12,
        holtWinters: bool | None = None,  # noqa: N803
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(estimator, TimeSeriesEstimator):
            raise ConfigError(f"estimator={estimator!r:.100}: expected a TimeSeriesEstimator")
        if not isinstance(timeBudget, int | float) or not timeBudget > 0:
            raise ConfigError(f"timeBudget={timeBudget!r:.100}: expected a positive number of seconds")
        backtest.origins(windows, None, estimator.getHorizon())
        if holtWinters:
            if metric == "pinball":
                raise ConfigError("metric='pinball': Holt-Winters gives no quantiles; say holtWinters=False")
            if not holt_winters.is_installed():
                raise ConfigError(
                    "Holt-Winters needs statsmodels: pip install 'sparkdl[series]'", code="config-package"
                )
        self.estimator, self.timeBudget, self.metric = estimator, timeBudget, metric
        self.space = dict(SPACE if space is None else space)
        self.windows, self.trials, self.holtWinters = windows, trials, holtWinters
        self.options = dict(options)
        check_space(self.space, estimator, *_OF_MODULES)
        other = next((name for name in _OF_MODULES if name in self.space), None)
        if other is not None and estimator.module is not None:
            raise ConfigError(
                f"space: {other!r} chooses among the library's modules, and the estimator has its own, so "
                "that trials cannot differ in it; give space= without it, or leave the module out"
            )
        self._tuner(lambda _: None, 1.0)  # an option that cannot work is told now

    def copy(self, extra: Mapping[Param[Any], Any] | None = None) -> AutoForecast:
        """Return a copy; further Params are the estimator's."""
        made = AutoForecast(
            self.estimator.copy(dict(extra or {})),
            timeBudget=self.timeBudget,
            space=self.space,
            metric=self.metric,
            windows=self.windows,
            trials=self.trials,
            holtWinters=self.holtWinters,
            **self.options,
        )
        return made._resetUid(self.uid)

    def _tuner(self, train: Any, timeout: float) -> Tuner:
        options = {
            "seed": self.estimator.getSeed() % (1 << 32),
            "trials": self.trials,
            "max_epochs": max(1, self.estimator.getMaxEpochs()),
            "scheduler": MedianStopping(),
            "timeout": timeout,
            "progress": self.estimator.getVerbose(),
            **self.options,
        }
        return Tuner(train, self.space, metric="val/loss", **options)

    def _fit(self, dataset: DataFrame) -> AutoForecastModel:
        end = time.monotonic() + self.timeBudget
        begins = backtest.origins(self.windows, None, self.estimator.getHorizon())
        backtest.scored(self.estimator, [self.metric])  # one that is none is told now
        reach = max(self.estimator.getInputLength(), self.estimator.getSeasonality())
        chosen = {NAIVE: naive(self.estimator, reach)}
        entries = [self._scored(dataset, begins, NAIVE, chosen[NAIVE])]
        if not math.isfinite(entries[0].value):  # nor has any other model a value
            raise DataError(
                f"metric={self.metric!r} has no value for any series: either none has values in its last "
                f"{begins[0]} steps, or, for mase, none changes over a season of "
                f"{self.estimator.getSeasonality()} steps before them. Choose another metric or seasonality, "
                "or give longer series",
                code="data-value",
            )
        if self._compares():
            entries.append(self._holt_winters(dataset, begins))
        result = self._search(dataset, begins[0], max(1.0, SEARCH_SHARE * (end - time.monotonic())))
        epochs = self._tuner(lambda _: None, 1.0).max_epochs
        for number, (name, trial) in enumerate(_best_of_each(result).items()):
            if number and time.monotonic() + trial.seconds > end:
                break
            own = with_candidate(self.estimator, trial.params)
            chosen[name] = ending_early(own, best_epoch(trial), epochs)
            entries.append(self._scored(dataset, begins, name, chosen[name], trial))
        board = Leaderboard(entries, self.metric, "min")
        best = next(entry for entry in board.entries if entry.model in chosen)
        return AutoForecastModel(on_all_rows(chosen[best.model]).fit(dataset), board, result)

    def _compares(self) -> bool:
        """Return whether Holt-Winters is a baseline."""
        if self.holtWinters is None:
            return self.metric != "pinball" and holt_winters.is_installed()
        return self.holtWinters

    def _search(self, dataset: DataFrame, withheld: int, timeout: float) -> SearchResult:
        """Search on what comes before the leaderboard's steps."""
        estimator = with_candidate(self.estimator, {})
        estimator._withheld = withheld
        if not estimator.getValidationSteps():
            estimator.setValidationSteps(estimator.getHorizon())
        rows = estimator._look_at(dataset)

        def trainer(params: Mapping[str, Any]) -> Trainer:
            own = with_candidate(estimator, params).setMaxEpochs(epochs)  # the rate falls by it
            own._check()
            return own._trainer(rows, own._settle(rows))

        tuner = self._tuner(trainer, timeout)
        epochs = tuner.max_epochs
        with estimator._datasets(rows, None) as (train, validation):
            return tuner.fit(train, validation)

    def _scored(
        self,
        dataset: DataFrame,
        begins: Sequence[int],
        name: str,
        estimator: TimeSeriesEstimator,
        trial: Trial | None = None,
    ) -> Entry:
        """Fit without the leaderboard's steps, and score the forecasts of them."""
        begun = time.monotonic()
        forecasts = on_all_rows(estimator).fitBefore(dataset, begins[0])._rows(dataset, begins)
        value = self._value(forecasts)
        return Entry(
            model=name,
            value=value,
            seconds=time.monotonic() - begun,
            epochs=best_epoch(trial) if trial else 0,
            params=dict(trial.params) if trial else {},
        )

    def _holt_winters(self, dataset: DataFrame, begins: Sequence[int]) -> Entry:
        begun = time.monotonic()
        estimator = self.estimator
        layout, outputs = estimator._layout(), [estimator.getPredictionCol()]
        season = estimator.getSeasonality()
        baseline = holt_winters.HoltWinters(season, layout.horizon)
        forecasts = forecast_rows(dataset, baseline, layout, outputs, season=season, origins=begins)
        value = self._value(forecasts)
        return Entry(model=HOLT_WINTERS, value=value, seconds=time.monotonic() - begun)

    def _value(self, forecasts: DataFrame) -> float:
        """Return the mean of the metric over series and windows."""
        stage = self.estimator
        if self.metric != "pinball":  # whose columns baselines lack
            stage = stage.copy()
            stage.clear(stage.quantiles)
        each = backtest.errors(stage, forecasts, [self.metric])
        (row,) = each.agg(F.avg(self.metric)).collect()
        return float("nan") if row[0] is None else float(row[0])


class AutoForecastModel(Model):
    """The best forecaster of a search.

    Args:
        bestModel: fitted to all rows; save this one.
        leaderboard: what was tried, on steps that no fit had seen.
        result: of the search; its trials are compared by the loss on the steps before.

    Attributes:
        bestModel: as given.
        leaderboard: as given.
        result: as given.
    """

    def __init__(self, bestModel: TimeSeriesModel, leaderboard: Leaderboard, result: SearchResult) -> None:  # noqa: N803
        super().__init__()
        self.bestModel = bestModel
        self.leaderboard = leaderboard
        self.result = result

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return self.bestModel.transform(dataset)


def with_candidate(estimator: TimeSeriesEstimator, params: Mapping[str, Any]) -> TimeSeriesEstimator:
    """Return a copy of an estimator with Params by name, and those of a candidate."""
    values = dict(params)
    return with_params(estimator, {**CANDIDATES.get(values.pop("candidate", ""), {}), **values})


def naive(estimator: TimeSeriesEstimator, steps: int) -> TimeSeriesEstimator:
    """Return a copy of an estimator that forecasts the value of a season ago, of so many steps."""
    own = with_candidate(estimator, {"architecture": "naive", "inputLength": steps}).setModule(None)
    for name in own.getHyper():
        own.clear(own.hyper(name))
    return own


def on_all_rows(estimator: TimeSeriesEstimator) -> TimeSeriesEstimator:
    """Return a copy of an estimator that also trains on the steps which have validated in the search."""
    own = estimator.copy().setValidationSteps(0)
    for name in ("earlyStoppingPatience", "monitor"):
        own.clear(own.getParam(name))
    return own.setMetrics(None)


def best_epoch(trial: Trial) -> int:
    """Return the epoch after which a trial was best; of equal ones the first."""
    return max(trial.values, key=lambda epoch: trial.values[epoch])


def _best_of_each(result: SearchResult) -> dict[str, Trial]:
    """Return the best trial of each architecture by the name of its candidate, the best one first."""
    found: dict[str, Trial] = {}
    seen = set()
    ended = [trial for trial in result.trials if trial.values and trial.status not in ("diverged", "failed")]
    for trial in sorted(ended, key=lambda trial: -trial.values[best_epoch(trial)]):
        name = str(trial.params.get("candidate", trial.params.get("architecture", "model")))
        kind = CANDIDATES.get(name, {}).get("architecture", name)
        if kind not in seen and math.isfinite(trial.values[best_epoch(trial)]):
            seen.add(kind)
            found[name] = trial
    return found
