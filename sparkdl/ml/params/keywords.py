"""The arguments of the estimators' constructors and ``setParams``, for type checkers and editors.

Names and types only: what a Param is, and its default, is in the table (:mod:`sparkdl.ml.params.entries`).
A test compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from torch import nn

from sparkdl.ml.params.attributes import Factory
from sparkdl.nn.objective import Loss
from sparkdl.optim.clip import ClipByNorm, ClipByValue
from sparkdl.optim.groups import ParamGroup
from sparkdl.optim.spec import Optimizers
from sparkdl.train.hooks.base import Hook
from sparkdl.train.options.schedule import Schedule


class _TrainingKeywords(TypedDict, total=False):
    """What all estimators take: attributes, and how the module is trained."""

    module: nn.Module | Factory | None
    loss: Loss | None
    optimizer: Optimizers | None
    schedule: Schedule | None
    metrics: Any
    hooks: Sequence[Hook]
    groups: Sequence[ParamGroup]
    clip: ClipByValue | ClipByNorm | None
    options: Mapping[str, Any] | None
    handleInvalid: str
    labelCol: str
    predictionCol: str
    learningRate: float
    batchSize: int
    maxEpochs: int
    maxIter: int | None
    seed: int
    shuffle: bool
    numPartitions: int | None
    microBatchSize: int | None
    precision: str
    codec: str
    transport: str
    gradientClipNorm: float | None
    monitor: str | None
    earlyStoppingPatience: int | None
    checkpointPath: str | None
    resume: bool
    warmStartFrom: str | None
    inferenceBatchSize: int | None
    verbose: bool


class _Common(_TrainingKeywords, total=False):
    """What the estimators of a table's rows take."""

    featuresCol: str
    featuresCols: list[str] | None
    inputNames: list[str] | str | None
    inputShapes: list[list[int] | None] | list[int] | None
    inputTypes: list[str | None] | str | None
    encode: str
    maxCategories: int
    minFrequency: int | None
    weightCol: str | None
    validationFraction: float
    validationIndicatorCol: str | None
    parquetPath: str | None
    maxBatchTokens: int | None
    quantize: bool


class EstimatorKeywords(_Common, total=False):
    """Of :class:`~sparkdl.ml.TorchEstimator`."""

    labelCols: list[str] | None
    outputCols: list[str] | None


class ClassifierKeywords(_Common, total=False):
    """Of :class:`~sparkdl.ml.TorchClassifier`."""

    probabilityCol: str
    rawPredictionCol: str
    thresholds: list[float] | None
    predictedLabelCol: str
    standardization: bool


class RegressorKeywords(_Common, total=False):
    """Of :class:`~sparkdl.ml.TorchRegressor`."""

    standardization: bool


class SeriesKeywords(_TrainingKeywords, total=False):
    """Of :class:`~sparkdl.ml.TimeSeriesEstimator`."""

    idCol: str
    timeCol: str
    pastCols: list[str] | None
    knownCols: list[str] | None
    staticCols: list[str] | None
    frequency: str
    seasonality: int | None
    horizon: int
    inputLength: int | None
    scaler: str
    missing: str
    quantiles: list[float] | None
    architecture: str
    level: str
    windowStep: int
    validationSteps: int
