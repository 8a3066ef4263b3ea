"""Forecasts of panels of series as a stage of Spark ML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import prod
from typing import Any, Self, Unpack

import torch
from pyspark import keyword_only
from pyspark.ml import Estimator, Model
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sparkdl.data.columns import Columns, quoted
from sparkdl.data.dataset import Dataset
from sparkdl.exceptions import ConfigError
from sparkdl.ml.estimators import continued, fitting
from sparkdl.ml.estimators.fits_module import FitPlan, FitRows, FitsModule
from sparkdl.ml.estimators.model import Fitted
from sparkdl.ml.params.attributes import ATTRIBUTES
from sparkdl.ml.params.columns import is_set, value_of
from sparkdl.ml.params.entries import constructed_by
from sparkdl.ml.params.keywords import SeriesKeywords
from sparkdl.ml.series import backtest
from sparkdl.ml.series.forecast import BATCH_SIZE, forecast_rows
from sparkdl.ml.series.params import HasSeries, HasSeriesTraining
from sparkdl.nn.models.forecaster import Forecaster, Pinball, absolute_error
from sparkdl.nn.signature import Signature
from sparkdl.series.panel import check_columns
from sparkdl.series.source import Cut, windows_dataset
from sparkdl.train.leaving import ErrorsCarryResult
from sparkdl.train.options.triggers import MaxEpoch
from sparkdl.train.planning.request import planned_rows
from sparkdl.train.trainer import Trainer

_WINDOWS = "windows"
_THRESHOLD, _ANOMALY = "threshold", "anomaly"
_LEAST_ITERATIONS = 500


class TimeSeriesModel(HasSeries, Fitted, Model):
    """Forecasts the series of a panel; what :class:`TimeSeriesEstimator` fits.

    ``transform`` takes the past of each series, of the fit or others, and returns its forecasts as rows: id,
    time, ``forecast`` and the columns of quantiles, such as ``forecast_q10``, one row for each step of the
    horizon. The steps that are forecast follow the last value; rows after it hold the future of
    ``knownCols``.
    """

    def getInputLength(self) -> int:
        """Gets the steps of the past that the module sees."""
        return self.module.steps if isinstance(self.module, Forecaster) else super().getInputLength()

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return self._rows(dataset)

    def forecasts(self, dataset: DataFrame, *, windows: int = 1, step: int | None = None) -> DataFrame:
        """Return forecasts of the past, with the values that came, each from the values before it alone.

        Args:
            dataset: the panel.
            windows: how many times each series is forecast; the last time ends with the series.
            step: steps between two forecasts; the horizon by default.

        Returns:
            Rows of id, ``cutoff`` (the last time before the forecast), ``step`` (from 1), time, value,
            ``scale`` (the mean error of a seasonal naive forecast before the cutoff), and those of a
            forecast.

        Raises:
            ConfigError: if a number cannot work.
        """
        return self._rows(dataset, backtest.origins(windows, step, self.getHorizon()))

    def thresholds(self, forecasts: DataFrame, share: float = 0.01) -> DataFrame:
        """Return by series the largest error of :meth:`forecasts` that is no anomaly, as ``threshold``.

        Rows where a value is missing, or a forecast is null or NaN, do not count.

        Args:
            forecasts: rows of series with few anomalies.
            share: of the values of each series that are anomalies: the ones farthest from their forecasts.

        Raises:
            ConfigError: if the share is not from 0 to below 1.
        """
        if not isinstance(share, int | float) or not 0 <= share < 1:
            raise ConfigError(f"share={share!r}: expected a number from 0 to below 1")
        keys, value, forecast = self._names()
        errors = F.sort_array(F.collect_list(F.abs(_error(value, forecast))))  # without null
        count = F.floor(F.round(F.size(errors) * F.lit(float(share)), 6)).cast("int")  # 0.29 of 100 are 29
        place = F.size(errors) - count
        largest = F.when(place > 0, F.element_at(errors, F.greatest(place, F.lit(1))))
        return forecasts.groupBy(*map(quoted, keys)).agg(largest.alias(_THRESHOLD))

    def anomalies(self, forecasts: DataFrame, thresholds: DataFrame | None = None) -> DataFrame:
        """Add ``anomaly`` to the rows of :meth:`forecasts`: whether a value is too far from its forecast.

        It is null where a value is missing, or a forecast is null or NaN.

        Args:
            forecasts: the rows to judge.
            thresholds: of :meth:`thresholds`; without them, values outside of the lowest and the highest
                quantile are anomalies.

        Raises:
            ConfigError: if there are neither thresholds nor two quantiles.
        """
        keys, value, forecast = self._names()
        quantiles = self.outputNames()[1:]
        if thresholds is not None:
            joined = forecasts.join(thresholds, keys, "left") if keys else forecasts.crossJoin(thresholds)
            far = F.abs(_error(value, forecast)) > F.col(_THRESHOLD)
            return joined.withColumn(_ANOMALY, far).drop(_THRESHOLD)
        if len(quantiles) < 2:
            raise ConfigError(
                "anomalies: found neither thresholds nor two quantiles; give thresholds(...), or fit with "
                "quantiles=[0.01, 0.5, 0.99]"
            )
        outside = (_error(value, quantiles[0]) < 0) | (_error(value, quantiles[-1]) > 0)
        return forecasts.withColumn(_ANOMALY, outside)

    def _names(self) -> tuple[list[str], str, str]:
        layout = self._layout()
        return [layout.id] if layout.id else [], layout.target, self.getPredictionCol()

    def _rows(self, dataset: DataFrame, origins: Sequence[int] = ()) -> DataFrame:
        return forecast_rows(
            dataset,
            self.module,
            self._layout(),
            self.outputNames(),
            self._quantiles(),
            self.getSeasonality(),
            value_of(self, self.inferenceBatchSize) or BATCH_SIZE,
            origins,
        )


@constructed_by(SeriesKeywords, ATTRIBUTES)
class TimeSeriesEstimator(HasSeriesTraining, FitsModule, Estimator[TimeSeriesModel]):
    """Fits one module to all series of a panel: rows of id, time, value and covariates.

    ::

        est = TimeSeriesEstimator(horizon=12, frequency="M", quantiles=[0.1, 0.5, 0.9])
        model = est.fit(df)
        model.transform(df).show()
        est.backtest(df, windows=3).show()

    The tasks put each series on its grid of steps, scale it by its own past, and keep it in the partition
    store once; windows of past and future are stretches of it. Without a module it is a
    :class:`sparkdl.nn.Forecaster` of the chosen ``architecture``, whose further arguments are Params that
    :meth:`hyper` returns.

    Args:
        module: a ``torch.nn.Module``, or a class or function that makes one. It is called with ``target``
            and, where there are such columns, ``past``, ``known`` and ``static``, and returns (rows,
            horizon), or (rows, horizon, quantiles), see :class:`sparkdl.nn.Forecaster`.
        loss: ``loss(output, label)``, on the scale of the series; the absolute error by default, and the
            pinball loss with ``quantiles``.
        optimizer: as of :class:`TorchEstimator`, as are the other attributes; Adam by default.
        schedule: learning-rate schedule.
        metrics: of ``torchmetrics``, for validations.
        hooks: called while training.
        groups: parameters with hyper-parameters of their own.
        clip: how gradients are clipped.
        options: further options of :class:`sparkdl.Trainer`.
        **params: by name; the list of Params is below, and :meth:`explainParams` prints it.
    """

    _model_class = TimeSeriesModel
    _withheld = 0  # steps at the end of each series that this fit does not use

    @keyword_only
    def __init__(self, **params: Unpack[SeriesKeywords]) -> None:
        super().__init__()
        self.setParams(**params)

    def setParams(self, **params: Unpack[SeriesKeywords]) -> Self:
        """Set Params and attributes by the names that the constructor has; errors as of TorchEstimator."""
        return self._take(**params)

    def backtest(
        self,
        dataset: DataFrame,
        *,
        windows: int = 1,
        step: int | None = None,
        metrics: Sequence[str] = ("mae", "rmse", "smape", "mase"),
        refit: bool = False,
    ) -> DataFrame:
        """Fit to the past, forecast what came after, and return the errors.

        Origins roll: the first forecast begins ``horizon + (windows - 1) * step`` steps before the end of
        each series, the last one ``horizon`` steps before it. A forecast uses the values before its own
        beginning.

        Args:
            dataset: the panel.
            windows: how many times each series is forecast.
            step: steps between two forecasts; the horizon by default.
            metrics: some of ``mae``, ``rmse``, ``smape``, ``mase``, and with quantiles ``pinball``.
            refit: whether to fit before each forecast; by default once, before the first.

        Returns:
            A row for each series and cutoff, with a column for each metric.

        Raises:
            ConfigError: if an argument cannot work.
        """

        def forecast(begin: int, origins: Sequence[int]) -> DataFrame:
            return self.fitBefore(dataset, begin)._rows(dataset, origins)

        return backtest.backtest(self, forecast, windows, step, metrics, refit)

    def fitBefore(self, dataset: DataFrame, steps: int) -> TimeSeriesModel:
        """Fit without the last steps of each series, which a backtest then forecasts.

        Args:
            dataset: the panel.
            steps: how many.
        """
        own = self.copy()
        own._withheld = steps
        return own.fit(dataset)

    def _check(self) -> None:
        super()._check()
        for param in (self.architecture, self.level):
            if self.module is not None and is_set(self, param):
                raise ConfigError(
                    f"{param.name} is set, which is about the library's modules, but module is given, too: "
                    "leave one of them out"
                )
        held, horizon = self.getValidationSteps(), self.getHorizon()
        if 0 < held < horizon:
            raise ConfigError(f"validationSteps={held}: expected 0, or at least horizon={horizon}")
        if value_of(self, self.earlyStoppingPatience) is not None:
            self._check_validates()

    def _check_validates(self) -> None:
        if not self.getValidationSteps():
            raise ConfigError("earlyStoppingPatience needs steps that validate: set validationSteps")

    def _fit_model(self, dataset: DataFrame, kept: ErrorsCarryResult) -> Any:
        if self.module is not None or self.getArchitecture() != "naive":
            return super()._fit_model(dataset, kept)
        fitting.check_rows(type(self).__name__, dataset)
        check_columns(dataset, self._layout())
        module, source = self._build(Forecaster, **self._arguments())
        model = TimeSeriesModel(module, source=source)
        return self._copyValues(model._resetUid(self.uid))

    def _look_at(self, dataset: DataFrame) -> FitRows:
        fitting.check_rows(type(self).__name__, dataset)
        self._check()
        layout = self._layout()
        first = windows_dataset(dataset, layout, self._cut())
        validation = dataset if self.getValidationSteps() else None
        rows = FitRows(
            all=dataset, train=dataset, validation=validation, features=list(layout.inputs), first=first
        )
        found = first.peek()
        rows.tensors = [torch.from_numpy(found[f"features_{name}"]) for name in layout.inputs]
        return rows

    def _settle(self, rows: FitRows) -> FitPlan:
        layout, levels = self._layout(), value_of(self, self.quantiles)
        if self.module is None:
            module, source = self._build(Forecaster, **self._arguments())
        else:
            module, source = self._build()
        signature = Signature.of_rows(module, dict(zip(layout.inputs, rows.tensors, strict=True)))
        expected = (layout.horizon,) if levels is None else (layout.horizon, len(levels))
        shapes = [spec.shape for spec in signature.outputs]
        if shapes != [expected]:
            raise ConfigError(
                f"module: it gives outputs of shape {', '.join(map(str, shapes))} per row; expected one of "
                f"shape {expected}: horizon{'' if levels is None else ' and quantiles'}"
            )
        loss = absolute_error if levels is None else Pinball(levels)
        return FitPlan(
            module=module,
            source=source,
            signature=signature,
            loss=self._loss_or(loss, module),
            label=None,
        )

    @contextmanager
    def _datasets(self, rows: FitRows, label: Columns | None) -> Iterator[tuple[Dataset, Dataset | None]]:
        count = value_of(self, self.numPartitions)
        with ExitStack() as stack:

            def dataset_of(validation: bool) -> Dataset:
                cut = self._cut(validation)
                return stack.enter_context(windows_dataset(rows.all, self._layout(), cut, count))

            data = dataset_of(False)
            rows.once(_WINDOWS, partial(len, data))
            yield data, None if rows.validation is None else dataset_of(True)

    def _trainer(self, rows: FitRows, plan: FitPlan, **more: Any) -> Trainer:
        windows = planned_rows(rows.once(_WINDOWS, lambda: 0))
        iterations = -(-windows // self.getBatchSize())
        epochs = self._epochs(iterations)
        limit = value_of(self, self.maxIter)
        total = iterations * (self._rate_epochs or epochs)
        total = total if limit is None else min(limit, total)
        own = self._falling(plan.module, total, continued.start(self))
        if limit is None:
            own["end_when"] = MaxEpoch(epochs)
        return super()._trainer(rows, plan, **{**own, **more})

    def _epochs(self, iterations: int) -> int:
        """Return the passes of a fit: few windows are seen more often, unless a Param says how often."""
        free = not is_set(self, self.maxEpochs) and value_of(self, self.maxIter) is None
        least = -(-_LEAST_ITERATIONS // iterations) if free and iterations else 0
        return max(self.getMaxEpochs(), least)

    def _cut(self, validation: bool = False) -> Cut:
        return Cut(
            stride=self.getWindowStep(),
            withheld=self._withheld,
            held=self.getValidationSteps(),
            validation=validation,
        )

    def _arguments(self) -> dict[str, Any]:
        """Return what the default module is made with."""
        layout = self._layout()
        shapes = layout.shapes
        widths = {name: prod(shapes[name][-1:]) for name in layout.inputs if name != "target"}
        arguments = {
            "steps": layout.steps,
            "horizon": layout.horizon,
            "architecture": self.getArchitecture(),
            "quantiles": self._quantiles(),
            "level": self.getLevel(),
            **widths,
        }
        if self.getArchitecture() == "naive":
            season = arguments["season"] = self.getSeasonality()
            if season > layout.steps:
                raise ConfigError(
                    f"architecture='naive': inputLength={layout.steps} does not reach back to the value of a "
                    f"season ago, of {season} steps: set it to at least as many, or another seasonality"
                )
        return arguments


def _error(value: str, forecast: str) -> Column:
    """Return how far values are above forecasts, null for NaN, which Spark takes for the largest number."""
    return F.nanvl(quoted(value) - quoted(forecast), F.lit(None).cast("double"))
