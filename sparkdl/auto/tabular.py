"""A model for a table: a search over the library's modules within a time budget, and a fit to all rows."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

import torch
from pyspark.ml import Estimator
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, DecimalType, FractionalType

from sparkdl.auto.leaderboard import Entry, Leaderboard, entries_of
from sparkdl.data.schema import STRINGS, missing_column
from sparkdl.exceptions import ConfigError, DataError, SparkdlWarning, is_number
from sparkdl.metrics import LOSS
from sparkdl.ml.estimators.estimator import TorchClassifier, TorchRegressor
from sparkdl.ml.estimators.fits_torch import FitsTorch
from sparkdl.ml.estimators.fitting import check_rows
from sparkdl.ml.params.columns import value_of
from sparkdl.saved.digest import stable_digest
from sparkdl.tune import ASHA, SearchResult, TorchTuner, loguniform, uniform

Task = Literal["classification", "regression"]

SPACE: Mapping[str, Any] = {
    "module.hidden": [[], [64], [128, 128], [256, 256], [512, 512], [256, 256, 256]],
    "module.dropout": uniform(0.0, 0.5),
    "learningRate": loguniform(3e-4, 1e-2),
    "optimizer.weight_decay": loguniform(1e-4, 1e0),
}
"""The default space: of :class:`sparkdl.nn.Tabular`, from a linear model on."""

FIRST: Mapping[str, Any] = {
    "module.hidden": [128, 128],
    "module.dropout": 0.1,
    "learningRate": 1e-3,
    "optimizer.weight_decay": 1e-2,
}
"""The first trial: about what an estimator does without a search."""

_MANY_ROWS = 100_000
_EPOCHS, _EPOCHS_OF_MANY = 27, 9


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kind of model that is tried.

    Args:
        estimator: :class:`TorchClassifier` or :class:`TorchRegressor`; columns, validation rows and seed are
            set by :class:`AutoTabular`.
        space: as of :class:`sparkdl.tune.TorchTuner`.
        first: params of the first trials.
    """

    estimator: FitsTorch
    space: Mapping[str, Any]
    first: Sequence[Mapping[str, Any]] = field(default_factory=list)


class AutoTabular(Estimator[Any]):
    """Finds a model for a table of numbers, strings, dates and nulls, within a time budget.

    ::

        auto = AutoTabular(labelCol="income", timeout=600)
        model = auto.fit(train)         # a TorchClassificationModel
        auto.leaderboard.dataframe()    # all that was tried
        model.transform(test)

    A share of the rows validates. The best trial's params and number of epochs then train a model on all
    rows. What comes back is an ordinary fitted model, to save, load, and serve.

    Args:
        labelCol: the column to predict.
        featuresCols: the columns to predict it from; all others by default.
        weightCol: weights of rows.
        task: ``"classification"`` or ``"regression"``. Labels of strings and booleans are classes and
            fractions are not; for integers it has to be said.
        timeout: seconds for all together, about: what has begun is not broken off. The winner depends on the
            machine.
        validation: share of the rows that compare the models.
        candidates: kinds of models by name; each gets an equal part of the time. By default ``"Tabular"``,
            with the space :data:`SPACE`.
        seed: of all that is drawn.
        **options: of :class:`sparkdl.tune.Tuner`, such as ``metric``, ``scheduler`` and ``trials``. By
            default ASHA compares validation losses, over 27 epochs, or 9 if there are 100,000 rows. Each of
            several candidates has a search of its own, in a folder of its name in ``folder`` and with its
            name behind ``name``.

    Attributes:
        leaderboard: all trials of the last fit; ``None`` before.
        results: of the searches of the last fit, by the candidates' names.

    Raises:
        ConfigError: if an option cannot work.
    """

    def __init__(
        self,
        *,
        labelCol: str,  # noqa: N803 - as estimators have it
        featuresCols: Sequence[str] | None = None,  # noqa: N803
        weightCol: str | None = None,  # noqa: N803
        task: Task | None = None,
        timeout: float = 600.0,
        validation: float = 0.2,
        candidates: Mapping[str, Candidate] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        if task not in (None, "classification", "regression"):
            raise ConfigError(f"task={task!r:.100}: expected 'classification' or 'regression'")
        if not is_number(timeout) or not timeout > 0:
            raise ConfigError(f"timeout={timeout!r:.100}: expected a positive number of seconds")
        if not isinstance(validation, float) or not 0 < validation < 1:
            raise ConfigError(f"validation={validation!r:.100}: expected a share above 0 and below 1")
        if "numFolds" in options:
            raise ConfigError(
                f"numFolds={options['numFolds']!r:.100}: a share of the rows validates: validation="
            )
        if candidates is not None and not candidates:
            raise ConfigError("candidates={}: expected at least one kind of model")
        self.labelCol, self.featuresCols, self.weightCol = labelCol, featuresCols, weightCol
        self.task, self.timeout, self.validation = task, timeout, validation
        self.candidates, self.seed, self.options = candidates, seed, options
        self.leaderboard: Leaderboard | None = None
        self.results: dict[str, SearchResult] = {}
        for name, candidate in (candidates or default_candidates(task or "classification")).items():
            self._tuner(name, candidate, [labelCol], 1)  # an option that cannot work is told now
        losses = {stable_digest(each.estimator.loss) for each in (candidates or {}).values()}
        if len(losses) > 1 and options.get("metric", "val/loss").rpartition("/")[2] == LOSS:
            warnings.warn(
                SparkdlWarning(
                    "candidates: their estimators have different losses, whose values say nothing about each "
                    "other; give metric=, one of the metrics that all estimators have",
                    code="config",
                ),
                stacklevel=2,
            )

    def _fit(self, dataset: DataFrame) -> Any:
        began = time.monotonic()
        check_rows("AutoTabular", dataset)
        features = self._features(dataset)
        candidates = self.candidates or default_candidates(self._task_of(dataset))
        rows = dataset.count()
        if not rows:
            raise DataError("the DataFrame has no rows: there is nothing to train on", code="data-empty")
        self.results, self.leaderboard = {}, None
        tuners: dict[str, TorchTuner] = {}
        entries: list[Entry] = []
        for name, candidate in candidates.items():
            tuner = tuners[name] = self._tuner(name, candidate, features, rows)
            left = self.timeout - (time.monotonic() - began)
            tuner.options["timeout"] = max(left / (len(candidates) - len(self.results)), 1e-3)
            result = self.results[name] = tuner.search(dataset)
            entries += entries_of(result, name)
            board = self.leaderboard = Leaderboard(entries, result.metric, result.mode)
        best = board.best.model
        return tuners[best].refit(dataset, self.results[best].get_best())

    def _tuner(self, name: str, candidate: Candidate, features: Sequence[str], rows: int) -> TorchTuner:
        estimator = candidate.estimator.copy()
        for param in (estimator.weightCol, estimator.validationIndicatorCol):
            if (own := value_of(estimator, param)) and own != self.weightCol:
                raise ConfigError(
                    f"candidates[{name!r}]: its estimator has {param.name}={own!r}, and AutoTabular gives "
                    "all candidates the same rows: leave it out there, and say weightCol= or validation= here"
                )
        estimator._set(labelCol=self.labelCol, featuresCols=list(features), seed=self.seed)
        estimator._set(validationFraction=self.validation)
        if self.weightCol is not None:
            estimator._set(weightCol=self.weightCol)
        options: dict[str, Any] = {
            "scheduler": ASHA(),
            "max_epochs": _EPOCHS if rows < _MANY_ROWS else _EPOCHS_OF_MANY,
            "trials": 1000,  # the time ends it
            "first": candidate.first,
            **self.options,
        }
        if len(self.candidates or ()) > 1:  # a folder, and a study of a storage, is one search's
            options["name"] = f"{options.get('name', 'search')} {name}"
            if options.get("folder") is not None:
                options["folder"] = os.path.join(options["folder"], quote(name, safe=""))
        return TorchTuner(estimator=estimator, space=candidate.space, timeout=self.timeout, **options)

    def _features(self, df: DataFrame) -> list[str]:
        if self.featuresCols is not None:
            return list(self.featuresCols)
        return [name for name in df.columns if name not in (self.labelCol, self.weightCol)]

    def _task_of(self, df: DataFrame) -> Task:
        if self.task is not None:
            return self.task
        kinds = {found.name: found.dataType for found in df.schema.fields}
        if self.labelCol not in kinds:
            raise missing_column(df, self.labelCol, "label")
        kind = kinds[self.labelCol]
        if isinstance(kind, BooleanType | STRINGS):
            return "classification"
        if isinstance(kind, FractionalType | DecimalType):
            return "regression"
        raise ConfigError(
            f"label column {self.labelCol!r} has type {kind.simpleString()}, which may be classes or "
            "amounts: give task='classification' or task='regression'"
        )


def default_candidates(task: Task) -> dict[str, Candidate]:
    """Return what is tried by default for a task."""
    kind = TorchClassifier if task == "classification" else TorchRegressor
    estimator = kind(optimizer=torch.optim.AdamW, verbose=False)
    return {"Tabular": Candidate(estimator, SPACE, [FIRST])}
