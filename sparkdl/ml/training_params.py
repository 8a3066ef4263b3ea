"""Params of how a module is trained, and their accessors."""

from __future__ import annotations

from typing import Self

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import (
    HasBatchSize,
    HasLabelCol,
    HasLearningRate,
    HasMaxIter,
    HasSeed,
    HasStandardization,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from sparkdl.codec import CODECS
from sparkdl.ml import converters
from sparkdl.ml.params import make_param

_DEVIATIONS = 5.0


class HasTraining(
    HasLabelCol,
    HasWeightCol,
    HasBatchSize,
    HasMaxIter,
    HasLearningRate,
    HasSeed,
    HasValidationIndicatorCol,
):
    """Mixin for how a module is trained; models have these Params as well, to tell how they were."""

    batchSize: Param[int] = make_param(
        "batchSize",
        "rows of one iteration over all executors.",
        converters.whole("batchSize", 1, "rows of one iteration over all executors"),
    )
    maxEpochs: Param[int] = make_param(
        "maxEpochs",
        "maximum number of passes over the rows (>= 0).",
        converters.whole("maxEpochs", 0, "passes"),
    )
    maxIter: Param[int] = make_param(
        "maxIter",
        "maximum number of iterations (>= 0), each on one batch; not limited if not set.",
        converters.whole("maxIter", 0, "iterations, each on one batch"),
    )
    learningRate: Param[float] = make_param(
        "learningRate",
        "learning rate of the optimizer (> 0); an optimizer that was given keeps its own unless this is set.",
        converters.number("learningRate", lambda x: x > 0, "a number above 0"),
    )
    numPartitions: Param[int] = make_param(
        "numPartitions",
        "partitions to train on, each a task of an iteration; one per executor if not set.",
        converters.whole("numPartitions", 1, "partitions to train on"),
    )
    microBatchSize: Param[int] = make_param(
        "microBatchSize",
        "rows per forward and backward pass of a task, to save memory; all at once if not set.",
        converters.whole("microBatchSize", 1, "rows per forward and backward pass"),
    )
    precision: Param[str] = make_param(
        "precision",
        "number format of forward and backward passes: fp32, or bf16 with autocast.",
        converters.one_of("precision", "fp32", "bf16"),
    )
    codec: Param[str] = make_param(
        "codec",
        "how gradients travel between executors: fp32, or bf16 or fp16 in half as many bytes.",
        converters.one_of("codec", *CODECS),
    )
    shuffle: Param[bool] = make_param(
        "shuffle", "whether each epoch visits the rows in another order.", TypeConverters.toBoolean
    )
    gradientClipNorm: Param[float] = make_param(
        "gradientClipNorm",
        "largest L2 norm of the gradient (> 0); larger ones are scaled down; not limited if not set.",
        converters.number("gradientClipNorm", lambda x: x > 0, "a number above 0"),
    )
    validationFraction: Param[float] = make_param(
        "validationFraction",
        "share of the rows, chosen at random by seed, that is kept for validation after each epoch (>= 0, < "
        "1); not used with validationIndicatorCol.",
        converters.number("validationFraction", lambda x: 0 <= x < 1, "a number from 0 to below 1"),
    )
    monitor: Param[str] = make_param(
        "monitor",
        "validation score that early stopping looks at; if not set the first metric, or the loss.",
        TypeConverters.toString,
    )
    earlyStoppingPatience: Param[int] = make_param(
        "earlyStoppingPatience",
        "validations without a better score after which training ends, with the best weights; never if not "
        "set.",
        converters.whole("earlyStoppingPatience", 1, "validations without a better score"),
    )
    checkpointPath: Param[str] = make_param(
        "checkpointPath",
        "folder or URL for a checkpoint after each epoch and at the end; none are written if not set.",
        TypeConverters.toString,
    )
    resume: Param[bool] = make_param(
        "resume",
        "whether to go on from the newest checkpoint in checkpointPath, if there is one.",
        TypeConverters.toBoolean,
    )
    verbose: Param[bool] = make_param(
        "verbose", "whether to show a progress bar while training.", TypeConverters.toBoolean
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            batchSize=32,
            maxEpochs=20,
            learningRate=1e-3,
            seed=0,
            precision="fp32",
            codec="fp32",
            shuffle=True,
            validationFraction=0.0,
            resume=False,
            verbose=False,
        )

    def getMaxEpochs(self) -> int:
        """Gets the value of maxEpochs or its default value."""
        return self.getOrDefault(self.maxEpochs)

    def getStepSize(self) -> float:
        """Gets the value of learningRate, by Spark's other name for it."""
        return self.getLearningRate()

    def getNumPartitions(self) -> int:
        """Gets the value of numPartitions."""
        return self.getOrDefault(self.numPartitions)

    def getMicroBatchSize(self) -> int:
        """Gets the value of microBatchSize."""
        return self.getOrDefault(self.microBatchSize)

    def getPrecision(self) -> str:
        """Gets the value of precision or its default value."""
        return self.getOrDefault(self.precision)

    def getCodec(self) -> str:
        """Gets the value of codec or its default value."""
        return self.getOrDefault(self.codec)

    def getShuffle(self) -> bool:
        """Gets the value of shuffle or its default value."""
        return self.getOrDefault(self.shuffle)

    def getGradientClipNorm(self) -> float:
        """Gets the value of gradientClipNorm."""
        return self.getOrDefault(self.gradientClipNorm)

    def getValidationFraction(self) -> float:
        """Gets the value of validationFraction or its default value."""
        return self.getOrDefault(self.validationFraction)

    def getMonitor(self) -> str:
        """Gets the value of monitor."""
        return self.getOrDefault(self.monitor)

    def getEarlyStoppingPatience(self) -> int:
        """Gets the value of earlyStoppingPatience."""
        return self.getOrDefault(self.earlyStoppingPatience)

    def getCheckpointPath(self) -> str:
        """Gets the value of checkpointPath."""
        return self.getOrDefault(self.checkpointPath)

    def getResume(self) -> bool:
        """Gets the value of resume or its default value."""
        return self.getOrDefault(self.resume)

    def getVerbose(self) -> bool:
        """Gets the value of verbose or its default value."""
        return self.getOrDefault(self.verbose)


class HasTrainingSetters(HasTraining):
    """Mixin for the setters that estimators have and models lack."""

    def setLabelCol(self, value: str) -> Self:
        """Sets the value of :py:attr:`labelCol`."""
        return self._set(labelCol=value)

    def setWeightCol(self, value: str) -> Self:
        """Sets the value of :py:attr:`weightCol`."""
        return self._set(weightCol=value)

    def setBatchSize(self, value: int) -> Self:
        """Sets the value of :py:attr:`batchSize`."""
        return self._set(batchSize=value)

    def setMaxEpochs(self, value: int) -> Self:
        """Sets the value of :py:attr:`maxEpochs`."""
        return self._set(maxEpochs=value)

    def setMaxIter(self, value: int) -> Self:
        """Sets the value of :py:attr:`maxIter`."""
        return self._set(maxIter=value)

    def setLearningRate(self, value: float) -> Self:
        """Sets the value of :py:attr:`learningRate`."""
        return self._set(learningRate=value)

    def setStepSize(self, value: float) -> Self:
        """Sets the value of :py:attr:`learningRate`, by Spark's other name for it."""
        return self._set(learningRate=value)

    def setSeed(self, value: int) -> Self:
        """Sets the value of :py:attr:`seed`."""
        return self._set(seed=value)

    def setNumPartitions(self, value: int) -> Self:
        """Sets the value of :py:attr:`numPartitions`."""
        return self._set(numPartitions=value)

    def setMicroBatchSize(self, value: int) -> Self:
        """Sets the value of :py:attr:`microBatchSize`."""
        return self._set(microBatchSize=value)

    def setPrecision(self, value: str) -> Self:
        """Sets the value of :py:attr:`precision`."""
        return self._set(precision=value)

    def setCodec(self, value: str) -> Self:
        """Sets the value of :py:attr:`codec`."""
        return self._set(codec=value)

    def setShuffle(self, value: bool) -> Self:
        """Sets the value of :py:attr:`shuffle`."""
        return self._set(shuffle=value)

    def setGradientClipNorm(self, value: float) -> Self:
        """Sets the value of :py:attr:`gradientClipNorm`."""
        return self._set(gradientClipNorm=value)

    def setValidationFraction(self, value: float) -> Self:
        """Sets the value of :py:attr:`validationFraction`."""
        return self._set(validationFraction=value)

    def setValidationIndicatorCol(self, value: str) -> Self:
        """Sets the value of :py:attr:`validationIndicatorCol`."""
        return self._set(validationIndicatorCol=value)

    def setMonitor(self, value: str) -> Self:
        """Sets the value of :py:attr:`monitor`."""
        return self._set(monitor=value)

    def setEarlyStoppingPatience(self, value: int) -> Self:
        """Sets the value of :py:attr:`earlyStoppingPatience`."""
        return self._set(earlyStoppingPatience=value)

    def setCheckpointPath(self, value: str) -> Self:
        """Sets the value of :py:attr:`checkpointPath`."""
        return self._set(checkpointPath=value)

    def setResume(self, value: bool) -> Self:
        """Sets the value of :py:attr:`resume`."""
        return self._set(resume=value)

    def setVerbose(self, value: bool) -> Self:
        """Sets the value of :py:attr:`verbose`."""
        return self._set(verbose=value)


class HasScaling(HasStandardization):
    """Mixin for what the default module of classifiers and regressors does first."""

    standardization: Param[bool] = make_param(
        "standardization",
        "whether the default module brings features (and, in a regression, labels) to mean 0 and deviation "
        "1, features further than 5 deviations from the mean to 5; a module that was given does as it likes.",
        TypeConverters.toBoolean,
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(standardization=True)

    def getStandardization(self) -> bool:
        """Gets the value of standardization or its default value."""
        return self.getOrDefault(self.standardization)

    def _limit(self) -> float | None:
        """Return how many deviations from the mean the default module tells apart."""
        return _DEVIATIONS if self.getStandardization() else None
