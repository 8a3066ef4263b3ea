"""A search as a stage of Spark ML, beside CrossValidator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param
from pyspark.ml.util import MLReadable, MLReader, MLWritable
from pyspark.sql import DataFrame

from sparkdl.exceptions import ConfigError
from sparkdl.ml.estimators.fits_module import FitsModule
from sparkdl.ml.estimators.fits_torch import FitsTorch
from sparkdl.ml.estimators.fitting import with_values
from sparkdl.ml.estimators.sparsity import settled
from sparkdl.ml.params.columns import is_set, value_of
from sparkdl.ml.persistence.stored import explained
from sparkdl.train.planning.request import planned_rows
from sparkdl.train.scheduled import follows_scores
from sparkdl.train.trainer import Trainer
from sparkdl.tune import saving
from sparkdl.tune.result import BestTrial, SearchResult
from sparkdl.tune.schedulers.stopping import FIFO
from sparkdl.tune.tuner import Tuner

E = TypeVar("E", bound=FitsModule)

_OF_TRIALS = {
    *("learningRate", "batchSize", "microBatchSize", "gradientClipNorm", "earlyStoppingPatience", "monitor"),
    *("standardization", "shuffle", "seed", "precision", "codec", "transport", "verbose"),
}
"""Params in which trials on the same rows can differ; the search decides on their epochs."""


def check_space(space: Mapping[str, Any], estimator: Any, *more: str) -> None:
    """Check that trials, which all read the same rows, can differ in what a space names."""
    for name in space:
        if name in more or "." in name:
            continue
        if not estimator.hasParam(name):
            raise ConfigError(f"space: {type(estimator).__name__} has no Param {name!r}")
        if name not in _OF_TRIALS:
            raise ConfigError(
                f"space: all trials read the same rows, for as many epochs as the search gives them, so they "
                f"cannot differ in {name!r}; set it on the estimator, or max_epochs= of the search"
            )
    for name in ("maxIter", "warmStartFrom"):
        if value_of(estimator, estimator.getParam(name)) is not None:
            raise ConfigError(
                f"{name} is set: trials begin anew and are as long as the search says, unlike the fit at the "
                "end; leave it out"
            )
    if value_of(estimator, estimator.checkpointPath):
        raise ConfigError(
            "checkpointPath is set: neither trials nor the fit at the end write checkpoints of their own; "
            "leave it out, and give the search a folder= to be resumed from"
        )
    if estimator.schedule is not None and follows_scores(estimator.schedule):
        raise ConfigError(
            "schedule: ReduceLROnPlateau follows validations, and the fit at the end, to all rows, has none; "
            "give another schedule"
        )


class TorchTuner(Estimator[Any], MLWritable, MLReadable[Any]):
    """Searches the Params of a torch estimator, and fits it with the best ones.

    ::

        tuner = TorchTuner(
            estimator=TorchClassifier(featuresCol="features"),
            space={
                "learningRate": tune.loguniform(1e-4, 1e-1),
                "module.hidden": [[16], [64, 64]],
            },
            metric="val/loss", scheduler=tune.ASHA(), max_epochs=27, numFolds=3,
        )
        model = tuner.fit(df)
        model.result.dataframe()

    Where ``CrossValidator`` converts and copies the rows for each of its fits, all trials and folds read one
    copy of them on each executor. At the end the estimator is fitted to all rows with the best Params, and
    with the best number of epochs.

    Args:
        estimator: :class:`TorchClassifier`, :class:`TorchRegressor`, :class:`TorchEstimator`.
        space: by the name of a Param, such as ``"learningRate"``, ``"module.hidden"`` or
            ``"optimizer.weight_decay"``, what :class:`Tuner` takes.
        metric: as of :class:`Tuner`; the validation loss by default.
        numFolds: folds of the cross-validation; unless the estimator has a ``validationFraction`` or
            ``validationIndicatorCol``, whose rows validate then.
        resume: whether to go on with the search in ``folder``, if there is one.
        **options: of :class:`Tuner`. A ``timeout`` bounds the time of search and fit together, about;
            ``max_epochs`` are the estimator's ``maxEpochs`` if these are set.

    Raises:
        ConfigError: if an option cannot work.
    """

    def __init__(
        self,
        *,
        estimator: FitsTorch,
        space: Mapping[str, Any],
        metric: str = "val/loss",
        numFolds: int = 3,  # noqa: N803 - as CrossValidator has it
        resume: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(estimator, FitsTorch):
            raise ConfigError(
                f"estimator={type(estimator).__name__}: expected a torch estimator of sparkdl such as "
                "TorchClassifier()"
            )
        check_space(space, estimator)
        self.estimator = estimator
        self.space = dict(space)
        self.metric = metric
        self.numFolds = numFolds
        self.resume = resume
        self.options = dict(options)
        self._tuner(lambda _: None)  # an option that cannot work is told now

    def _tuner(self, train: Any) -> Tuner:
        # Of n folds a trial trains n models on all rows but one n-th each.
        share = self.estimator.getValidationFraction()
        indicator = value_of(self.estimator, self.estimator.validationIndicatorCol)
        refit = 1 / (1 - share) if share else 1.0 if indicator else 1 / max(1, self.numFolds - 1)
        options: dict[str, Any] = {"seed": self.estimator.getSeed() % (1 << 32), "refit": refit}
        patience = value_of(self.estimator, self.estimator.earlyStoppingPatience)
        if patience is not None or "earlyStoppingPatience" in self.space:
            # Or the fit at the end has the epochs after the best one, too.
            options["scheduler"] = FIFO(rung=1)
        if is_set(self.estimator, self.estimator.maxEpochs):
            options["max_epochs"] = max(1, self.estimator.getMaxEpochs())
        options |= self.options
        return Tuner(train, self.space, metric=self.metric, **options)

    def _fit(self, dataset: DataFrame) -> TorchTunerModel:
        result = self.search(dataset)
        return TorchTunerModel(self.refit(dataset, result.get_best()), result)

    def search(self, dataset: DataFrame) -> SearchResult:
        """Search, without the fit at the end.

        Args:
            dataset: as of ``fit``.

        Raises:
            SparkdlError: as :meth:`Tuner.fit`.
        """
        estimator = settled(self.estimator, dataset)
        rows = estimator._look_at(dataset)
        label = estimator._settle(rows).label

        def trainer(params: Mapping[str, Any]) -> Trainer:
            own = with_params(estimator, params)
            own.setMaxEpochs(epochs)  # a schedule goes by it
            own._check()
            plan = own._settle(rows)
            if plan.label != label:
                raise ConfigError(
                    f"space: with {dict(params)!r:.200} the module needs labels {plan.label!r:.100}, and "
                    f"{label!r:.100} without; search such modules one by one"
                )
            return own._trainer(rows, plan)

        tuner = self._tuner(trainer)
        epochs = tuner.max_epochs
        with estimator._datasets(rows, label) as (train, validation):
            folds = None if validation is not None else self.numFolds
            if folds:
                rows.share = 1 - 1 / folds
            tuner._rows = None if rows.encoding is None else planned_rows(rows.encoding.rows)
            return tuner.fit(train, validation, folds=folds, resume=self.resume)

    def refit(self, dataset: DataFrame, best: BestTrial) -> Any:
        """Fit the estimator to all rows, also those that have validated, with what a search has found.

        A learning rate that goes by ``maxEpochs`` falls as in the trial: over the epochs of the search. What
        an estimator of a table chooses by the number of rows, such as the batch, is as in the trial, too.

        Args:
            dataset: as of ``fit``.
            best: what the search has found.

        Returns:
            The estimator's model.
        """
        epochs = self._tuner(lambda _: None).max_epochs
        chosen: Any = ending_early(with_params(self.estimator, best.params), best.epoch, epochs)
        indicator = value_of(chosen, chosen.validationIndicatorCol)
        if indicator and chosen.getHandleInvalid() != "error":  # the search had no rows of neither side
            dataset = with_values(dataset, [indicator])
        for name in ("validationFraction", "validationIndicatorCol", "earlyStoppingPatience", "monitor"):
            chosen.clear(chosen.getParam(name))
        chosen.metrics = None  # of which none is computed without validation
        chosen._trial_rows = best.rows
        return chosen.fit(dataset)

    def copy(self, extra: Mapping[Param[Any], Any] | None = None) -> TorchTuner:
        """Return a copy; further Params are the estimator's."""
        made = TorchTuner(
            estimator=self.estimator.copy(dict(extra or {})),
            space=self.space,
            metric=self.metric,
            numFolds=self.numFolds,
            resume=self.resume,
            **self.options,
        )
        return made._resetUid(self.uid)

    def write(self) -> saving.SearchWriter:
        """Return a writer. The estimator lies in a folder of its own, beside space and options.

        Raises:
            ConfigError: if an option cannot be saved: loggers, samplers, storages and schedulers of others.
        """
        return saving.SearchWriter(self, saving.tuner_to_json(self), "estimator", self.estimator)

    @classmethod
    def read(cls) -> MLReader[TorchTuner]:
        """Return a reader. What may be imported, :func:`sparkdl.ml.trust` says."""
        return _TunerReader()


class _TunerReader(MLReader["TorchTuner"]):
    def load(self, path: str) -> TorchTuner:
        """Load from a path of any file system that Spark reads."""
        metadata, found, estimator = saving.read(self, TorchTuner, str(path), "estimator")
        with explained(str(path)):
            made = TorchTuner(estimator=estimator, **saving.tuner_from_json(found, str(path)))
            return made._resetUid(metadata["uid"])


class TorchTunerModel(Model, MLWritable, MLReadable[Any]):
    """The best model of a search.

    Args:
        bestModel: fitted with the best Params to all rows.
        result: of the search.

    Attributes:
        bestModel: as given.
        result: as given; of a model that was loaded without the search's own module.
    """

    def __init__(self, bestModel: Any, result: SearchResult) -> None:  # noqa: N803 - as CrossValidatorModel has it
        super().__init__()
        self.bestModel = bestModel
        self.result = result

    def _transform(self, dataset: DataFrame) -> DataFrame:
        found: DataFrame = self.bestModel.transform(dataset)
        return found

    def copy(self, extra: Mapping[Param[Any], Any] | None = None) -> TorchTunerModel:
        """Return a copy; further Params are the best model's."""
        made = TorchTunerModel(self.bestModel.copy(dict(extra or {})), self.result)
        return made._resetUid(self.uid)

    def write(self) -> saving.SearchWriter:
        """Return a writer. The best model lies in a folder of its own, beside all trials."""
        return saving.SearchWriter(self, saving.result_to_json(self.result), "bestModel", self.bestModel)

    @classmethod
    def read(cls) -> MLReader[TorchTunerModel]:
        """Return a reader. What may be imported, :func:`sparkdl.ml.trust` says."""
        return _ModelReader()


class _ModelReader(MLReader["TorchTunerModel"]):
    def load(self, path: str) -> TorchTunerModel:
        """Load from a path of any file system that Spark reads."""
        metadata, found, model = saving.read(self, TorchTunerModel, str(path), "bestModel")
        made = TorchTunerModel(model, saving.result_from_json(found, str(path)))
        with explained(str(path)):
            return made._resetUid(metadata["uid"])


def with_params(estimator: E, params: Mapping[str, Any]) -> E:
    """Return a copy of an estimator with Params by name."""
    own = estimator.copy()
    for name, value in params.items():
        own._set(**{own.getParam(name).name: value})
    return own


def ending_early(estimator: E, epoch: int, epochs: int) -> E:
    """Let an estimator's fit end after the epoch at which a trial was best, as the trial was until then."""
    estimator.setMaxEpochs(epoch)
    estimator._rate_epochs = max(epoch, epochs)
    return estimator
