"""Params of how a module is trained."""

from __future__ import annotations

from typing import Self

from pyspark.ml.param import TypeConverters
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

from sparkdl.ml.params import converters
from sparkdl.ml.params.entries import HasEntries, ParamEntry, accessors, getter, setter
from sparkdl.wire.codec import CODECS


class HasRun(HasEntries, HasLabelCol, HasBatchSize, HasMaxIter, HasLearningRate, HasSeed):
    """Mixin for how a module is trained, whatever its rows are; models have these Params as well."""

    labelCol = ParamEntry.of(HasLabelCol.labelCol, "label")
    seed = ParamEntry.of(HasSeed.seed, 0)
    batchSize = ParamEntry(
        "batchSize",
        "rows of one iteration over all executors.",
        converters.whole("batchSize", 1, "rows of one iteration over all executors"),
        32,
    )
    maxEpochs = ParamEntry(
        "maxEpochs",
        "maximum number of passes over the rows (>= 0).",
        converters.whole("maxEpochs", 0, "passes"),
        20,
    )
    maxIter = ParamEntry(
        "maxIter",
        "maximum number of iterations (>= 0), each on one batch; not limited if not set.",
        converters.whole("maxIter", 0, "iterations, each on one batch"),
    )
    learningRate = ParamEntry(
        "learningRate",
        "learning rate of the optimizer (> 0); an optimizer that was given keeps its own unless this is set.",
        converters.number("learningRate", lambda x: x > 0, "a number above 0"),
        1e-3,
    )
    numPartitions = ParamEntry(
        "numPartitions",
        "partitions to train on, each a task of an iteration; one per executor if not set.",
        converters.whole("numPartitions", 1, "partitions to train on"),
    )
    microBatchSize = ParamEntry(
        "microBatchSize",
        "rows per forward and backward pass of a task, to save memory; all at once if not set.",
        converters.whole("microBatchSize", 1, "rows per forward and backward pass"),
    )
    precision = ParamEntry(
        "precision",
        "number format of forward and backward passes: fp32, or bf16 with autocast.",
        converters.one_of("precision", "fp32", "bf16"),
        "fp32",
    )
    codec = ParamEntry(
        "codec",
        "how gradients travel: fp32; bf16 or fp16 in half as many bytes; int8 in a quarter of them.",
        converters.one_of("codec", *CODECS),
        "fp32",
    )
    transport = ParamEntry(
        "transport",
        "how messages travel between executors: direct, shuffle, or auto, which is direct where it can be.",
        converters.one_of("transport", "auto", "shuffle", "direct"),
        "auto",
    )
    shuffle = ParamEntry(
        "shuffle", "whether each epoch visits the rows in another order.", TypeConverters.toBoolean, True
    )
    gradientClipNorm = ParamEntry(
        "gradientClipNorm",
        "largest L2 norm of the gradient (> 0); larger ones are scaled down; not limited if not set.",
        converters.number("gradientClipNorm", lambda x: x > 0, "a number above 0"),
    )
    monitor = ParamEntry(
        "monitor",
        "validation score that early stopping looks at; if not set the first metric, or the loss.",
        TypeConverters.toString,
    )
    earlyStoppingPatience = ParamEntry(
        "earlyStoppingPatience",
        "validations without a better score after which training ends, with the best weights; never if not "
        "set.",
        converters.whole("earlyStoppingPatience", 1, "validations without a better score"),
    )
    checkpointPath = ParamEntry(
        "checkpointPath",
        "folder or URL for a checkpoint after each epoch and at the end; none are written if not set.",
        TypeConverters.toString,
    )
    resume = ParamEntry(
        "resume",
        "whether to go on from the newest checkpoint in checkpointPath, if there is one.",
        TypeConverters.toBoolean,
        False,
    )
    warmStartFrom = ParamEntry(
        "warmStartFrom",
        "checkpoint, or folder of checkpoints, from which to go on with these rows in place of the earlier "
        "ones: weights, the optimizer's state, schedule, counters, and what became of a table's columns and "
        "string labels; maxEpochs and maxIter count from there. The fit begins if this is checkpointPath and "
        "there is no checkpoint yet.",
        TypeConverters.toString,
    )
    verbose = ParamEntry(
        "verbose", "whether to show a progress bar while training.", TypeConverters.toBoolean, False
    )

    getMaxEpochs = getter(maxEpochs)
    getNumPartitions = getter(numPartitions)
    getMicroBatchSize = getter(microBatchSize)
    getPrecision = getter(precision)
    getCodec = getter(codec)
    getTransport = getter(transport)
    getShuffle = getter(shuffle)
    getGradientClipNorm = getter(gradientClipNorm)
    getMonitor = getter(monitor)
    getEarlyStoppingPatience = getter(earlyStoppingPatience)
    getCheckpointPath = getter(checkpointPath)
    getResume = getter(resume)
    getVerbose = getter(verbose)
    getWarmStartFrom = getter(warmStartFrom)

    def getStepSize(self) -> float:
        """Gets the value of learningRate, by Spark's other name for it."""
        return self.getLearningRate()


class HasRunSetters(HasRun):
    """Mixin for the setters that estimators have and models lack."""

    setLabelCol = setter(HasRun.labelCol)
    setBatchSize = setter(HasRun.batchSize)
    setMaxEpochs = setter(HasRun.maxEpochs)
    setMaxIter = setter(HasRun.maxIter)
    setLearningRate = setter(HasRun.learningRate)
    setSeed = setter(HasRun.seed)
    setNumPartitions = setter(HasRun.numPartitions)
    setMicroBatchSize = setter(HasRun.microBatchSize)
    setPrecision = setter(HasRun.precision)
    setCodec = setter(HasRun.codec)
    setTransport = setter(HasRun.transport)
    setShuffle = setter(HasRun.shuffle)
    setGradientClipNorm = setter(HasRun.gradientClipNorm)
    setMonitor = setter(HasRun.monitor)
    setEarlyStoppingPatience = setter(HasRun.earlyStoppingPatience)
    setCheckpointPath = setter(HasRun.checkpointPath)
    setResume = setter(HasRun.resume)
    setVerbose = setter(HasRun.verbose)
    setWarmStartFrom = setter(HasRun.warmStartFrom)

    def setStepSize(self, value: float) -> Self:
        """Sets the value of :py:attr:`learningRate`, by Spark's other name for it."""
        return self.setLearningRate(value)


class HasTraining(HasRun, HasWeightCol, HasValidationIndicatorCol):
    """Mixin for how a module is trained on the rows of a table."""

    weightCol = ParamEntry.of(HasWeightCol.weightCol)
    validationIndicatorCol = ParamEntry.of(HasValidationIndicatorCol.validationIndicatorCol)
    validationFraction = ParamEntry(
        "validationFraction",
        "share of the rows, chosen at random by seed, that is kept for validation after each epoch (>= 0, < "
        "1); not used with validationIndicatorCol.",
        converters.number("validationFraction", lambda x: 0 <= x < 1, "a number from 0 to below 1"),
        0.0,
    )

    parquetPath = ParamEntry(
        "parquetPath",
        "path or URL of Parquet files that hold the rows: training reads them there in each epoch, without a "
        "copy. The DataFrame must be spark.read.parquet of this path, with select at most. Executors copy "
        "the rows to their disks if not set.",
        TypeConverters.toString,
    )

    getValidationFraction = getter(validationFraction)
    getParquetPath = getter(parquetPath)


class HasTrainingSetters(HasTraining, HasRunSetters):
    """Mixin for the setters that estimators of tables have and models lack."""

    setWeightCol = setter(HasTraining.weightCol)
    setValidationFraction = setter(HasTraining.validationFraction)
    setValidationIndicatorCol = setter(HasTraining.validationIndicatorCol)
    setParquetPath = setter(HasTraining.parquetPath)


class HasLabelCols(HasEntries):
    """Mixin for a loss with several labels."""

    labelCols = ParamEntry(
        "labelCols",
        "columns for a loss with several labels, which gets them as a tuple; used instead of labelCol.",
        converters.names("labelCols"),
    )

    getLabelCols = getter(labelCols)


class HasScaling(HasTrainingSetters, HasStandardization):
    """Mixin for classifiers and regressors, which have a default module that scales what it gets."""

    learningRate = ParamEntry.of(HasTraining.learningRate, 2e-3)
    standardization = ParamEntry(
        "standardization",
        "whether the default module brings features (and, in a regression, labels) to mean 0 and deviation "
        "1, features further than 5 deviations from the mean to 5; a module that was given does as it likes. "
        "Numbers of a table that is encoded are standardised in any case.",
        TypeConverters.toBoolean,
        True,
    )

    getStandardization, setStandardization = accessors(standardization)
