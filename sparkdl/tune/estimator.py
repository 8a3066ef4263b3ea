"""A search as a stage of Spark ML, beside CrossValidator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param
from pyspark.sql import DataFrame

from sparkdl.exceptions import ConfigError
from sparkdl.ml.base import FitsTorch
from sparkdl.train.trainer import Trainer
from sparkdl.tune.result import SearchResult
from sparkdl.tune.tuner import Tuner


class TorchTuner(Estimator[Any]):
    """Searches the Params of a torch estimator, and fits it with the best ones.

    ::

        tuner = TorchTuner(
            estimator=TorchClassifier(featuresCol="features"),
            space={"learningRate": tune.loguniform(1e-4, 1e-1), "module.hidden": [[16], [64, 64]]},
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
        **options: of :class:`Tuner`.

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
        for name in space:
            if not estimator.hasParam(name) and "." not in name:
                raise ConfigError(f"space: {type(estimator).__name__} has no Param {name!r}")
        self.estimator = estimator
        self.space = dict(space)
        self.metric = metric
        self.numFolds = numFolds
        self.resume = resume
        self.options = dict(options)
        self._tuner(lambda _: None)  # an option that cannot work is told now

    def _tuner(self, train: Any) -> Tuner:
        options = {"seed": self.estimator.getSeed() % (1 << 32), **self.options}
        return Tuner(train, self.space, metric=self.metric, **options)

    def _fit(self, dataset: DataFrame) -> TorchTunerModel:
        estimator = self.estimator
        rows = estimator._look_at(dataset)
        label = estimator._settle(rows).label

        def trainer(params: Mapping[str, Any]) -> Trainer:
            own = _with_params(estimator, params)
            own._check()
            plan = own._settle(rows)
            if plan.label != label:
                raise ConfigError(
                    f"space: with {dict(params)!r:.200} the module needs labels {plan.label!r:.100}, and "
                    f"{label!r:.100} without; search such modules one by one"
                )
            return own._trainer(rows, plan)

        with estimator._datasets(rows, label) as (train, validation):
            folds = None if validation is not None else self.numFolds
            result = self._tuner(trainer).fit(train, validation, folds=folds, resume=self.resume)
        best = result.get_best()
        chosen: Any = _with_params(self.estimator, best.params).setMaxEpochs(best.epoch)
        return TorchTunerModel(chosen.fit(dataset), result)

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


class TorchTunerModel(Model):
    """The best model of a search.

    Args:
        bestModel: fitted with the best Params to all rows; save this one.
        result: of the search.

    Attributes:
        bestModel: as given.
        result: as given.
    """

    def __init__(self, bestModel: Any, result: SearchResult) -> None:  # noqa: N803 - as CrossValidatorModel has it
        super().__init__()
        self.bestModel = bestModel
        self.result = result

    def _transform(self, dataset: DataFrame) -> DataFrame:
        found: DataFrame = self.bestModel.transform(dataset)
        return found


def _with_params(estimator: FitsTorch, params: Mapping[str, Any]) -> FitsTorch:
    """Return a copy of an estimator with Params by name, which writes no checkpoints of its own."""
    own = estimator.copy()
    for name, value in params.items():
        own._set(**{own.getParam(name).name: value})
    own.clear(own.checkpointPath)
    return own
