"""Params that estimators and models share, their accessors, and hyper-parameters made on demand.

Params hold JSON values only; what else an estimator needs (module, loss, optimizer ...) are attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasBatchSize,
    HasFeaturesCol,
    HasHandleInvalid,
    HasLabelCol,
    HasLearningRate,
    HasMaxIter,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasSeed,
    HasStandardization,
    HasThresholds,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from sparkdl.data.columns import Column, Columns
from sparkdl.exceptions import ConfigError
from sparkdl.ml import converters

T = TypeVar("T")

# -- type converters ------------------------------------------------------------------------------


def _one_each(name: str, values: Sequence[Any] | None, columns: Sequence[str]) -> Sequence[Any]:
    if values is not None and len(values) != len(columns):
        raise ConfigError(
            f"{name}={values!r}: expected one entry for each features column: {', '.join(columns)}"
        )
    return [None] * len(columns) if values is None else values


def _param(name: str, doc: str, convert: Callable[[Any], T]) -> Param[T]:
    return Param(Params._dummy(), name, doc, typeConverter=convert)


# -- what goes in and comes out --------------------------------------------------------------------


class HasInputs(HasFeaturesCol, HasHandleInvalid):
    """Mixin for the columns that become the module's inputs."""

    featuresCols: Param[list[str]] = _param(
        "featuresCols",
        "columns of a module with several inputs, in the order of its forward method; used instead of "
        "featuresCol.",
        converters.names("featuresCols"),
    )
    inputShapes: Param[list[list[int] | None]] = _param(
        "inputShapes",
        "shape of one row's tensor by features column, for vectors, flat arrays and binary columns that are "
        "to be reshaped; null for those that stay.",
        converters.shapes,
    )
    inputTypes: Param[list[str | None]] = _param(
        "inputTypes",
        "numpy dtype of the tensor by features column; null for the default: integers become int64, other "
        "numbers and vectors float32, bytes uint8.",
        converters.types,
    )
    handleInvalid: Param[str] = _param(
        "handleInvalid",
        "how to handle rows with null in a features column (in a fit, any column it reads). Options are "
        "error (throw an error), skip (leave the rows out), keep (transform: outputs are null; fit: as "
        "skip).",
        converters.one_of("handleInvalid", "error", "skip", "keep"),
    )
    inferenceBatchSize: Param[int] = _param(
        "inferenceBatchSize",
        "rows per forward pass in transform; chosen from the size of a row if not set.",
        converters.whole("inferenceBatchSize", 1, "rows per forward pass"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(handleInvalid="error")

    def getFeaturesCols(self) -> list[str]:
        """Gets the value of featuresCols."""
        return self.getOrDefault(self.featuresCols)

    def getInputShapes(self) -> list[list[int] | None]:
        """Gets the value of inputShapes."""
        return self.getOrDefault(self.inputShapes)

    def getInputTypes(self) -> list[str | None]:
        """Gets the value of inputTypes."""
        return self.getOrDefault(self.inputTypes)

    def getInferenceBatchSize(self) -> int:
        """Gets the value of inferenceBatchSize."""
        return self.getOrDefault(self.inferenceBatchSize)

    def setFeaturesCol(self, value: str) -> Self:
        """Sets the value of :py:attr:`featuresCol`."""
        return self._set(featuresCol=value)

    def setFeaturesCols(self, value: list[str]) -> Self:
        """Sets the value of :py:attr:`featuresCols`."""
        return self._set(featuresCols=value)

    def setInputShapes(self, value: list[list[int] | None] | list[int]) -> Self:
        """Sets the value of :py:attr:`inputShapes`; one shape is short for a list of one."""
        return self._set(inputShapes=value)

    def setInputTypes(self, value: list[str | None] | str) -> Self:
        """Sets the value of :py:attr:`inputTypes`; one dtype is short for a list of one."""
        return self._set(inputTypes=value)

    def setHandleInvalid(self, value: str) -> Self:
        """Sets the value of :py:attr:`handleInvalid`."""
        return self._set(handleInvalid=value)

    def setInferenceBatchSize(self, value: int) -> Self:
        """Sets the value of :py:attr:`inferenceBatchSize`."""
        return self._set(inferenceBatchSize=value)

    def inputNames(self) -> list[str]:
        """Return the names of the columns that become the module's inputs, in order."""
        several = value_of(self, self.featuresCols)
        return list(several) if several else [self.getFeaturesCol()]

    def inputColumns(self) -> Columns:
        """Return these columns with shapes and dtypes, as far as they are set: one, or a list of several.

        Raises:
            ConfigError: if inputShapes or inputTypes have another number of entries.
        """
        names = self.inputNames()
        shapes = _one_each("inputShapes", value_of(self, self.inputShapes), names)
        types = _one_each("inputTypes", value_of(self, self.inputTypes), names)
        columns = [
            Column(name, None if shape is None else tuple(shape), dtype)
            for name, shape, dtype in zip(names, shapes, types, strict=True)
        ]
        return columns if value_of(self, self.featuresCols) else columns[0]


class HasPrediction(HasPredictionCol):
    """Mixin for the column with the prediction."""

    def setPredictionCol(self, value: str) -> Self:
        """Sets the value of :py:attr:`predictionCol`; an empty name leaves the column out."""
        return self._set(predictionCol=value)


class HasClassOutputs(HasProbabilityCol, HasThresholds, HasRawPredictionCol, HasPrediction):
    """Mixin for the columns that a classifier adds."""

    def setRawPredictionCol(self, value: str) -> Self:
        """Sets the value of :py:attr:`rawPredictionCol`; an empty name leaves the column out."""
        return self._set(rawPredictionCol=value)

    def setProbabilityCol(self, value: str) -> Self:
        """Sets the value of :py:attr:`probabilityCol`; an empty name leaves the column out."""
        return self._set(probabilityCol=value)

    def setThresholds(self, value: list[float]) -> Self:
        """Sets the value of :py:attr:`thresholds`."""
        return self._set(thresholds=value)


class HasOutputs(HasPrediction):
    """Mixin for the columns with the outputs of any module."""

    outputCols: Param[list[str]] = _param(
        "outputCols",
        "columns for the outputs of a module that returns several, in order; used instead of predictionCol.",
        converters.names("outputCols"),
    )

    def getOutputCols(self) -> list[str]:
        """Gets the value of outputCols."""
        return self.getOrDefault(self.outputCols)

    def setOutputCols(self, value: list[str]) -> Self:
        """Sets the value of :py:attr:`outputCols`."""
        return self._set(outputCols=value)

    def outputNames(self) -> list[str]:
        """Return the names of the output columns, in order."""
        several = value_of(self, self.outputCols)
        return list(several) if several else [self.getPredictionCol()]


# -- how it is trained -----------------------------------------------------------------------------


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

    batchSize: Param[int] = _param(
        "batchSize",
        "rows of one iteration over all executors.",
        converters.whole("batchSize", 1, "rows of one iteration over all executors"),
    )
    maxEpochs: Param[int] = _param(
        "maxEpochs",
        "maximum number of passes over the rows (>= 0).",
        converters.whole("maxEpochs", 0, "passes"),
    )
    maxIter: Param[int] = _param(
        "maxIter",
        "maximum number of iterations (>= 0), each on one batch; not limited if not set.",
        converters.whole("maxIter", 0, "iterations, each on one batch"),
    )
    learningRate: Param[float] = _param(
        "learningRate",
        "learning rate of the optimizer (> 0); an optimizer that was given keeps its own unless this is set.",
        converters.number("learningRate", lambda x: x > 0, "a number above 0"),
    )
    numPartitions: Param[int] = _param(
        "numPartitions",
        "partitions to train on, each a task of an iteration; one per executor if not set.",
        converters.whole("numPartitions", 1, "partitions to train on"),
    )
    microBatchSize: Param[int] = _param(
        "microBatchSize",
        "rows per forward and backward pass of a task, to save memory; all at once if not set.",
        converters.whole("microBatchSize", 1, "rows per forward and backward pass"),
    )
    precision: Param[str] = _param(
        "precision",
        "number format of forward and backward passes: fp32, or bf16 or fp16 with autocast.",
        converters.one_of("precision", "fp32", "bf16", "fp16"),
    )
    shuffle: Param[bool] = _param(
        "shuffle", "whether each epoch visits the rows in another order.", TypeConverters.toBoolean
    )
    gradientClipNorm: Param[float] = _param(
        "gradientClipNorm",
        "largest L2 norm of the gradient (> 0); larger ones are scaled down; not limited if not set.",
        converters.number("gradientClipNorm", lambda x: x > 0, "a number above 0"),
    )
    validationFraction: Param[float] = _param(
        "validationFraction",
        "share of the rows, chosen at random by seed, that is kept for validation after each epoch (>= 0, < "
        "1); not used with validationIndicatorCol.",
        converters.number("validationFraction", lambda x: 0 <= x < 1, "a number from 0 to below 1"),
    )
    monitor: Param[str] = _param(
        "monitor",
        "validation score that early stopping looks at; if not set the first metric, or the loss.",
        TypeConverters.toString,
    )
    earlyStoppingPatience: Param[int] = _param(
        "earlyStoppingPatience",
        "validations without a better score after which training ends, with the best weights; never if not "
        "set.",
        converters.whole("earlyStoppingPatience", 1, "validations without a better score"),
    )
    checkpointPath: Param[str] = _param(
        "checkpointPath",
        "folder or URL for a checkpoint after each epoch; none are written if not set.",
        TypeConverters.toString,
    )
    resume: Param[bool] = _param(
        "resume",
        "whether to go on from the newest checkpoint in checkpointPath, if there is one.",
        TypeConverters.toBoolean,
    )
    verbose: Param[bool] = _param(
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

    standardization: Param[bool] = _param(
        "standardization",
        "whether the default module brings features (and, in a regression, labels) to mean 0 and deviation "
        "1; a module that was given does as it likes.",
        TypeConverters.toBoolean,
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(standardization=True)

    def getStandardization(self) -> bool:
        """Gets the value of standardization or its default value."""
        return self.getOrDefault(self.standardization)


# -- hyper-parameters ------------------------------------------------------------------------------

HYPER_OF = ("module", "optimizer")
"""What has hyper-parameters: arguments of the factory that makes it."""


class HasHyper(Params):
    """Mixin for Params that stand for arguments of the module's and the optimizer's factory.

    Such a Param is made when it is first asked for, by :meth:`hyper` or by its name, such as
    ``"module.hidden"``. It is then one of the ``params`` like any other: in grids, param maps, copies
    and saved estimators.
    """

    def hyper(self, name: str, of: str = "module") -> Param[Any]:
        """Return the Param that stands for an argument of a factory, for example for a grid.

        ::

            grid = ParamGridBuilder().addGrid(est.hyper("hidden"), [64, 256]).build()

        Args:
            name: name of the keyword argument.
            of: whose factory: ``"module"`` or ``"optimizer"``.

        Raises:
            ConfigError: if this names no argument.
        """
        if of not in HYPER_OF or not isinstance(name, str) or not name.isidentifier():
            raise ConfigError(
                f"hyper({name!r}, of={of!r}): expected the name of a keyword argument, of 'module' or "
                "'optimizer'"
            )
        key = f"{of}.{name}"
        param = vars(self).get(key)
        if param is None:
            param = Param(self, key, f"argument {name!r} of the {of}'s factory.", converters.json_value)
            setattr(self, key, param)
            self._params = None  # Spark keeps the list of params
        return param

    def setHyper(self, of: str = "module", /, **values: Any) -> Self:
        """Set arguments of a factory: ``setHyper(hidden=64)``, ``setHyper("optimizer", momentum=0.9)``."""
        return self._set(**{self.hyper(name, of).name: value for name, value in values.items()})

    def getHyper(self, of: str = "module") -> dict[str, Any]:
        """Return the arguments of a factory that are set."""
        prefix = f"{of}."
        return {
            param.name.removeprefix(prefix): value
            for param, value in self._paramMap.items()
            if param.name.startswith(prefix)
        }

    def getParam(self, paramName: str) -> Param[Any]:
        """Return a Param by its name; one that stands for an argument is made if there is none yet."""
        of, dot, name = paramName.partition(".")
        return self.hyper(name, of) if dot else super().getParam(paramName)


def value_of(instance: Params, param: Param[T]) -> T | None:
    """Return a Param's value, or ``None`` where Spark would raise: it is neither set nor has a default."""
    return instance.getOrDefault(param) if instance.isDefined(param) else None
