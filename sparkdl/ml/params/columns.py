"""Params of what goes into a module and what comes out, which estimators and models share.

Params hold JSON values only; what else an estimator needs (module, loss, optimizer ...) are attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasHandleInvalid,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasThresholds,
)

from sparkdl.data.columns import Column, Columns
from sparkdl.exceptions import ConfigError
from sparkdl.hf.outputs import takes_by_name
from sparkdl.ml.params import converters
from sparkdl.ml.params.entries import HasEntries, ParamEntry, accessors, getter, setter
from sparkdl.nn.signature import check_inputs_order

T = TypeVar("T")
_MAY_BE_EMPTY = "an empty name leaves the column out"


def value_of(instance: Params, param: Param[T]) -> T | None:
    """Return a Param's value, or ``None`` where Spark would raise: it is neither set nor has a default."""
    return instance.getOrDefault(param) if instance.isDefined(param) else None


def is_set(instance: Params, param: Param[Any]) -> bool:
    """Return whether a Param has been given a value; to give it ``None`` is to leave it open."""
    return instance.isSet(param) and instance.extractParamMap()[param] is not None


class HasErrorCol(HasEntries):
    """Mixin for what happens to rows that cannot be scored."""

    onError = ParamEntry(
        "onError",
        "what transform does where a row cannot be used: raise (an error that names the row), or column "
        "(the row's outputs are null, errorCol has the reason, the other rows go on; their number is in the "
        "executors' logs).",
        converters.one_of("onError", "raise", "column"),
        "raise",
    )
    errorCol = ParamEntry(
        "errorCol", "column for the reasons, with onError='column'.", TypeConverters.toString, "error"
    )

    getOnError, setOnError = accessors(onError)
    getErrorCol, setErrorCol = accessors(errorCol)


class HasInputs(HasEntries, HasFeaturesCol, HasHandleInvalid):
    """Mixin for the columns that become the module's inputs."""

    featuresCol = ParamEntry.of(HasFeaturesCol.featuresCol, "features")
    featuresCols = ParamEntry(
        "featuresCols",
        "columns of a module with several inputs, in the order of its forward method; used instead of "
        "featuresCol.",
        converters.names("featuresCols"),
    )
    inputNames = ParamEntry(
        "inputNames",
        "name of the module's argument by features column, for a module that is called with named inputs; by "
        "position if not set, or by the columns' names to a model of Hugging Face with such arguments.",
        converters.arguments,
    )
    inputShapes = ParamEntry(
        "inputShapes",
        "shape of one row's tensor by features column, for vectors, flat arrays and binary columns that are "
        "to be reshaped; null for those that stay.",
        converters.shapes,
    )
    inputTypes = ParamEntry(
        "inputTypes",
        "numpy dtype of the tensor by features column; null for the default: integers become int64, other "
        "numbers and vectors float32, bytes uint8. sparse gives the module two tensors of a column of ML "
        "vectors, indices and values.",
        converters.types,
    )
    handleInvalid = ParamEntry(
        "handleInvalid",
        "how to handle rows with null in a features column (in a fit, any column it reads). Options are "
        "error (throw an error), skip (leave the rows out), keep (transform: outputs are null; fit: as "
        "skip).",
        converters.one_of("handleInvalid", "error", "skip", "keep"),
        "error",
    )
    encode = ParamEntry(
        "encode",
        "whether numbers, strings, booleans and dates in featuresCols become standardised numbers and "
        "categories, null included: on, off, or auto for on where there is no module, or one that takes "
        "cardinalities.",
        converters.one_of("encode", "auto", "on", "off"),
        "auto",
    )
    maxCategories = ParamEntry(
        "maxCategories",
        "most values of a string column that an encoding tells apart; the others are one category.",
        converters.whole("maxCategories", 1, "values of a column"),
        10_000,
    )
    minFrequency = ParamEntry(
        "minFrequency",
        "least rows that a string must be in for an encoding to tell it apart; if not set, one in 1,000, "
        "from 1 to 10.",
        converters.whole("minFrequency", 1, "rows"),
    )
    inferenceBatchSize = ParamEntry(
        "inferenceBatchSize",
        "rows per forward pass in transform; chosen from the size of a row if not set.",
        converters.whole("inferenceBatchSize", 1, "rows per forward pass"),
    )
    maxBatchTokens = ParamEntry(
        "maxBatchTokens",
        "values of a forward pass in transform, padding included, where rows differ in length, as texts do; "
        "4096 if neither this nor inferenceBatchSize is set.",
        converters.whole("maxBatchTokens", 1, "values per forward pass"),
    )
    quantize = ParamEntry(
        "quantize",
        "whether transform multiplies 8-bit integers in linear and convolution layers.",
        TypeConverters.toBoolean,
        False,
    )

    getFeaturesCols, setFeaturesCols = accessors(featuresCols)
    getInputNames = getter(inputNames)
    getInputShapes = getter(inputShapes)
    getInputTypes = getter(inputTypes)
    getEncode, setEncode = accessors(encode)
    getMaxCategories, setMaxCategories = accessors(maxCategories)
    getMinFrequency, setMinFrequency = accessors(minFrequency)
    getInferenceBatchSize, setInferenceBatchSize = accessors(inferenceBatchSize)
    getMaxBatchTokens, setMaxBatchTokens = accessors(maxBatchTokens)
    getQuantize, setQuantize = accessors(quantize)

    setFeaturesCol = setter(featuresCol)
    setHandleInvalid = setter(handleInvalid)

    def setInputNames(self, value: list[str] | str) -> Self:
        """Sets the value of :py:attr:`inputNames`; one name is short for a list of one."""
        return self._set(inputNames=value)

    def setInputShapes(self, value: list[list[int] | None] | list[int]) -> Self:
        """Sets the value of :py:attr:`inputShapes`; one shape is short for a list of one."""
        return self._set(inputShapes=value)

    def setInputTypes(self, value: list[str | None] | str) -> Self:
        """Sets the value of :py:attr:`inputTypes`; one dtype is short for a list of one."""
        return self._set(inputTypes=value)

    def featuresNames(self) -> list[str]:
        """Return the names of the columns that become the module's inputs, in order."""
        several = value_of(self, self.featuresCols)
        return list(several) if several else [self.getFeaturesCol()]

    def inputColumns(self) -> Columns:
        """Return these columns with shapes and dtypes, as far as they are set.

        Returns:
            One column, a list of several, or a dict by argument if inputNames is set.

        Raises:
            ConfigError: if inputNames, inputShapes or inputTypes have another number of entries.
        """
        columns, arguments = self._columns(), self._arguments()
        if arguments:
            return dict(zip(arguments, columns, strict=True))
        return columns if value_of(self, self.featuresCols) else columns[0]

    def _arguments(self) -> list[str]:
        """Return the names of the module's arguments, none if they are given by position."""
        names, several = value_of(self, self.inputNames), value_of(self, self.featuresCols)
        if names is None and several and takes_by_name(getattr(self, "module", None), several):
            return list(several)
        if names is None and several:
            check_inputs_order(getattr(self, "module", None), several)
        return [] if names is None else list(_one_each("inputNames", names, self.featuresNames()))

    def _columns(self) -> list[Column]:
        names = self.featuresNames()
        shapes = _one_each("inputShapes", value_of(self, self.inputShapes), names)
        types = _one_each("inputTypes", value_of(self, self.inputTypes), names)
        return [
            Column(name, None if shape is None else tuple(shape), dtype)
            for name, shape, dtype in zip(names, shapes, types, strict=True)
        ]


def _one_each(name: str, values: Sequence[Any] | None, columns: Sequence[str]) -> Sequence[Any]:
    if values is not None and len(values) != len(columns):
        raise ConfigError(
            f"{name}={values!r}: expected one entry for each features column: {', '.join(columns)}"
        )
    return [None] * len(columns) if values is None else values


class HasPrediction(HasEntries, HasPredictionCol):
    """Mixin for the column with the prediction."""

    predictionCol = ParamEntry.of(HasPredictionCol.predictionCol, "prediction")

    setPredictionCol = setter(predictionCol, _MAY_BE_EMPTY)


class HasClassOutputs(HasProbabilityCol, HasThresholds, HasRawPredictionCol, HasPrediction):
    """Mixin for the columns that a classifier adds."""

    probabilityCol = ParamEntry.of(HasProbabilityCol.probabilityCol, "probability")
    rawPredictionCol = ParamEntry.of(HasRawPredictionCol.rawPredictionCol, "rawPrediction")
    thresholds = ParamEntry.of(HasThresholds.thresholds)
    predictedLabelCol = ParamEntry(
        "predictedLabelCol",
        "column for the label as text, where the labels of the fit were strings.",
        TypeConverters.toString,
        "predictedLabel",
    )

    getPredictedLabelCol = getter(predictedLabelCol)

    setProbabilityCol = setter(probabilityCol, _MAY_BE_EMPTY)
    setRawPredictionCol = setter(rawPredictionCol, _MAY_BE_EMPTY)
    setThresholds = setter(thresholds)
    setPredictedLabelCol = setter(predictedLabelCol, _MAY_BE_EMPTY)


class HasOutputs(HasPrediction):
    """Mixin for the columns with the outputs of any module."""

    outputCols = ParamEntry(
        "outputCols",
        "columns for the outputs of a module that returns several, in order; used instead of predictionCol.",
        converters.names("outputCols"),
    )

    getOutputCols, setOutputCols = accessors(outputCols)

    def outputNames(self) -> list[str]:
        """Return the names of the output columns, in order."""
        several = value_of(self, self.outputCols)
        return list(several) if several else [self.getPredictionCol()]
