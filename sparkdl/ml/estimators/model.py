"""Fitted models: a trained module, what goes in and comes out, and the Params of its columns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Self

import numpy as np
import torch
from pyspark.ml import Model
from pyspark.ml.classification import ProbabilisticClassificationModel
from pyspark.ml.linalg import DenseVector, Vector, Vectors
from pyspark.ml.regression import RegressionModel
from pyspark.sql import DataFrame
from torch import nn

from sparkdl.data.columns import SPARSE, Column, ColumnPlan, Columns
from sparkdl.data.convert import default_dtype
from sparkdl.data.loose import array_of
from sparkdl.data.schema import is_pandas
from sparkdl.data.sparse import of_row
from sparkdl.exceptions import ConfigError
from sparkdl.hf.labels import class_names
from sparkdl.ml.estimators.summary import TrainingSummary
from sparkdl.ml.params.columns import (
    HasClassOutputs,
    HasErrorCol,
    HasInputs,
    HasOutputs,
    HasPrediction,
    is_set,
    value_of,
)
from sparkdl.ml.params.training import HasLabelCols, HasRun, HasTraining
from sparkdl.ml.persistence.saving import TorchReadable, TorchWritable
from sparkdl.ml.stages.outputs import decide, probability_of, raw_prediction_of
from sparkdl.ml.stages.tabular_frame import inputs_of
from sparkdl.nn.batch import group
from sparkdl.nn.signature import Signature, TensorSpec
from sparkdl.nn.trace import infer
from sparkdl.saved.source import ModuleSource
from sparkdl.table.encoding import TableEncoding
from sparkdl.table.values import arrow


class Fitted(HasRun, TorchWritable, TorchReadable):
    """What all models hold, whatever their columns are.

    Attributes:
        module: the trained module, on the CPU and in evaluation mode.
        source: where its code comes from; ``None`` if it cannot be built again without a pickle.
        signature: shapes and dtypes of its inputs and outputs; incomplete for a module from elsewhere
            until the first rows are seen.
        encoding: what becomes of a table's columns before they enter the module; ``None`` where they enter
            as they are.
        labels: the names of a classifier's classes; empty where labels were numbers.
    """

    module: nn.Module
    source: ModuleSource | None
    signature: Signature
    encoding: TableEncoding | None
    labels: tuple[str, ...]

    def __init__(
        self,
        module: nn.Module | None = None,
        *,
        source: ModuleSource | None = None,
        signature: Signature | None = None,
        summary: TrainingSummary | None = None,
        encoding: TableEncoding | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.module = nn.Identity() if module is None else module
        self.module.eval()
        self.source = source
        self.signature = Signature() if signature is None else signature
        self.encoding = encoding
        self.labels = tuple(labels)
        self._summary = summary

    def __repr__(self) -> str:
        from sparkdl.ml.estimators.shown import line

        return line(self)

    @property
    def hasSummary(self) -> bool:
        """Whether the model has a summary: it has if it comes from a fit, not from disk."""
        return self._summary is not None

    @property
    def summary(self) -> TrainingSummary:
        """How the model was trained.

        Raises:
            RuntimeError: if it comes from disk or from a module that was trained elsewhere.
        """
        if self._summary is None:
            raise RuntimeError(f"No training summary available for this {type(self).__name__}")
        return self._summary


class _TableModel(Fitted, HasTraining, HasInputs, HasErrorCol):
    """What the models of a table's rows share."""

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        *,
        example: Any = None,
        source: ModuleSource | None = None,
        **params: Any,
    ) -> Self:
        """Make a model of a module that was trained elsewhere, for inference.

        Args:
            module: it is copied.
            example: some rows of what the module is called with: an array, a tuple of arrays, a dict of
                them by argument, or a DataFrame of Spark or pandas with the features columns. Needed
                where the shapes can neither be told by ``inputShapes`` nor by looking at rows, as in
                streams.
            source: where its code comes from, for :meth:`save`; found by itself where that is possible.
            **params: values of Params, such as ``featuresCol="image"``.

        Raises:
            ConfigError: if something is no module, or not a Param.
            ModelError: if the module fails on the example.
        """
        if not isinstance(module, nn.Module):
            raise ConfigError(f"module={module!r:.100}: expected a torch.nn.Module")
        module = copy.deepcopy(module).cpu().eval()
        model = cls(module, source=source or ModuleSource.of_instance(module))
        if hasattr(cls, "predictProbability"):
            model.labels = class_names(module)
        unknown = [name for name in params if not model.hasParam(name)]
        if unknown:
            raise ConfigError(
                f"{cls.__name__} has no Param {unknown[0]!r}; expected one of "
                f"{', '.join(param.name for param in model.params)}"
            )
        model._set(**params)
        if is_pandas(example) or hasattr(example, "sparkSession"):
            from sparkdl.ml.stages.inference import look

            model.signature = look(model, example)
        elif example is not None:
            if isinstance(example, Mapping) and not is_set(model, model.inputNames):
                model.setInputNames(_arguments_for(model.featuresNames(), list(example)))
            names = model._arguments()
            model.signature = Signature.of_rows(module, group(_tensors_of(example, names), names))
        else:
            columns = model._columns()
            keys = model._arguments() or (None,) * len(columns)
            inputs = [
                TensorSpec(c.shape, c.dtype or "float32", key) for key, c in zip(keys, columns, strict=True)
            ]
            if all(spec.shape is not None for spec in inputs):
                model.signature = Signature.probe(module, inputs)
        return model

    @property
    def numFeatures(self) -> int:
        """Number of values of one row of the features, -1 if not known."""
        if self.encoding is not None:
            return len(self.featuresNames())
        sizes = [prod(spec.shape) for spec in self.signature.inputs if spec.shape is not None]
        return sum(sizes) if sizes and len(sizes) == len(self.signature.inputs) else -1

    def _transform(self, dataset: DataFrame) -> DataFrame:
        from sparkdl.ml.stages.inference import transform

        return transform(self, dataset)

    def evaluate(
        self, dataset: DataFrame, metrics: Any = None, *, loss: Callable[[Any, Any], Any] | None = None
    ) -> dict[str, float]:
        """Compute loss and metrics over all rows of a DataFrame with a label column, as one Spark job.

        Args:
            dataset: rows with the columns that the model was fitted to.
            metrics: of ``torchmetrics``: one, a list, or a dict by name. They get the module's output and the
                label; a classifier gives logits.
            loss: ``loss(output, label)``; cross-entropy for a classifier and the squared error for a
                regression, as in a fit. Other models have none of their own.

        Returns:
            Value by score, such as ``{"loss": 0.31, "multiclass_accuracy": 0.9}``.

        Raises:
            ConfigError: if there is nothing to compute, or something is no metric.
            DataError: if a column is missing or cannot become a tensor, or a single logit's labels are not
                0 and 1, or labels are numbers where the fit had strings that other numbers stand for.
        """
        from sparkdl.ml.estimators.evaluation import evaluate

        return evaluate(self, dataset, metrics, loss)

    def score(
        self, dataset: DataFrame, path: str, *, resume: bool = True, progress: bool = True
    ) -> DataFrame:
        """Write the rows of a DataFrame with the outputs of :meth:`transform` to a folder, in pieces.

        A call with the same arguments goes on where an earlier one has died. The files are Parquet, and each
        row is in them once, however often drivers, executors and tasks died, also with speculation. Rows are
        counted first. A partition must give its rows in the same order each time.

        Args:
            dataset: a table, not a stream.
            path: folder that all executors see, or a URL that fsspec opens there.
            resume: whether to go on with the job in that folder; else there must be none.
            progress: whether to show a bar with rows per second and the time left.

        Returns:
            The rows of the folder.

        Raises:
            ConfigError: if the folder holds something else, or the rows of another model.
            DataError: if it holds other rows, or the DataFrame does not give the same rows each time.
            ModelError: if the module fails.
        """
        from sparkdl.ml.stages.scoring import score

        return score(self, dataset, path, resume=resume, progress=progress)

    def _repr_html_(self) -> str:
        from sparkdl.ml.estimators.shown import model

        return model(self)

    def asUdf(self) -> Any:
        """Return a function for SQL: ``spark.udf.register("predict", model.asUdf())``.

        It takes the features columns and returns the prediction, or an array where the module gives one.
        """
        from sparkdl.ml.stages.sql import as_udf

        return as_udf(self)

    def predictor(self, **options: Any) -> Any:
        """Return a :class:`sparkdl.serve.Predictor`, which needs no Spark: numpy in, numpy out."""
        from sparkdl.serve import Predictor

        return Predictor.of(self, **options)

    def inputColumns(self) -> Columns:
        """Return the columns that become the module's inputs; of an encoded table, those of its encoding."""
        if self.encoding is None:
            return super().inputColumns()
        return inputs_of(self.encoding, any(spec.key is not None for spec in self.signature.inputs))

    def _columns(self) -> list[Column]:
        """Return the features columns with the shapes and dtypes that the module was trained on."""
        specs, columns = list(self.signature.inputs), super()._columns()
        if not specs:
            return columns
        if sum(_tensors_for(column) for column in columns) != len(specs):
            raise ConfigError(
                f"featuresCols={self.featuresNames()}: {type(self.module).__name__} has {len(specs)} inputs; "
                "give as many columns, and one for two inputs where inputTypes says 'sparse'"
            )
        found = []
        for column in columns:
            spec = specs[0]
            del specs[: _tensors_for(column)]
            sparse = column.dtype == SPARSE
            found.append(column if sparse else Column(column.name, spec.shape, spec.dtype))
        return found

    def _run(self, *values: Any) -> Any:
        if self.encoding is not None:
            return self._run_encoded(values)
        spread = self._spread(values)
        known = self.signature.inputs or (TensorSpec(dtype="float32"),) * len(spread)
        if len(known) != len(spread):
            raise ConfigError(f"found {len(spread)} values, expected {len(known)}, one for each input")
        rows = []
        for n, (value, spec) in enumerate(zip(spread, known, strict=True)):
            plan = ColumnPlan("", "", dtype=spec.dtype, shape=spec.shape, role=f"input {n}")
            row = value.toArray() if isinstance(value, Vector) else value
            rows.append(torch.from_numpy(array_of(plan, [row])))
        named = [str(spec.key) for spec in self.signature.inputs if spec.key is not None]
        return infer(self.module, group(rows, named if self.signature.inputs else self._arguments()))

    def _spread(self, values: Sequence[Any]) -> list[Any]:
        """Return a row's values with indices and values in place of each sparse vector."""
        types = value_of(self, self.inputTypes) or ()
        if SPARSE not in types:
            return list(values)
        if len(types) != len(values):
            raise ConfigError(f"found {len(values)} values, expected one for each of {self.featuresNames()}")
        found: list[Any] = []
        for name, kind, value in zip(self.featuresNames(), types, values, strict=True):
            found += of_row(value, f"column {name!r}") if kind == SPARSE else [value]
        return found

    def _run_encoded(self, values: Sequence[Any]) -> Any:
        """Run the module on one row of a table."""
        assert self.encoding is not None
        names = self.featuresNames()
        if len(values) != len(names):
            raise ConfigError(f"found {len(values)} values, expected a tuple of one for each of {names}")
        table = {name: arrow(name, [value]) for name, value in zip(names, values, strict=True)}
        rows = {name: torch.from_numpy(array) for name, array in self.encoding.encode(table).items()}
        named = [str(spec.key) for spec in self.signature.inputs if spec.key is not None]
        return infer(self.module, group(list(rows.values()), named))


class TorchModel(_TableModel, HasLabelCols, HasOutputs, Model):
    """Applies any module to columns; what :class:`TorchEstimator` fits.

    Adds ``predictionCol``, or the ``outputCols`` of a module with several outputs: a double where the
    module gives one value per row, a long where it gives an int64, else an array (of arrays) of floats.
    """


class TorchClassificationModel(_TableModel, HasClassOutputs, ProbabilisticClassificationModel):
    """Applies a classifier to columns; what :class:`TorchClassifier` fits.

    Adds ``rawPredictionCol`` (logits; two have their mean subtracted, as an evaluator of two classes looks at
    the second one alone), ``probabilityCol`` (their softmax, or sigmoid of a single one) and
    ``predictionCol`` (class with the highest probability, or as ``thresholds`` say), as Spark's own do. Where
    labels were strings, also ``predictedLabelCol``, the label itself.
    """

    @property
    def numClasses(self) -> int:
        """Number of classes, -1 if not known."""
        outputs = self.signature.outputs
        if not outputs or outputs[0].shape is None:
            return -1
        return classes_of(outputs[0].shape)

    def predict(self, value: Any) -> float:
        """Return the class of one row: a vector, an array or, with several columns, a tuple of them."""
        return float(decide(self.predictProbability(value).toArray(), value_of(self, self.thresholds)))

    def predictRaw(self, value: Any) -> DenseVector:
        """Return the logits of one row: ``[-z, z]`` for a module with one, two less their mean."""
        logits = np.asarray(self._run(*_values(value)).double()).reshape(-1)
        return Vectors.dense(raw_prediction_of(logits[None])[0])

    def predictProbability(self, value: Any) -> DenseVector:
        """Return the probability of each class for one row."""
        logits = np.asarray(self._run(*_values(value)).double()).reshape(-1)
        return Vectors.dense(probability_of(logits[None])[0])


class TorchRegressionModel(_TableModel, HasPrediction, RegressionModel[Any]):
    """Applies a regression to columns; what :class:`TorchRegressor` fits.

    Adds ``predictionCol``: a double, or an array of doubles with several targets.
    """

    def predict(self, value: Any) -> Any:
        """Return the prediction for one row: a float, or an array with several targets."""
        result = np.asarray(self._run(*_values(value)).double())[0]
        return float(result.reshape(())) if result.size == 1 else result


def classes_of(shape: Sequence[int]) -> int:
    """Return the number of classes that a module with outputs of this shape tells apart."""
    if len(shape) > 1:
        raise ConfigError(
            f"the module gives outputs of shape {tuple(shape)} per row; a classifier gives one logit per "
            "class, or a single one for two classes. Use TorchEstimator for others"
        )
    return max(2, prod(shape))


def _tensors_for(column: Column) -> int:
    """Return how many inputs of the module a column becomes."""
    return 2 if column.dtype == SPARSE else 1


def _tensors_of(example: Any, names: Sequence[str]) -> list[torch.Tensor]:
    """Return the tensors of an example, in the order of the arguments' names if there are any."""
    values = list(example.values()) if isinstance(example, Mapping) else _values(example)
    if isinstance(example, Mapping) and set(example) == set(names):
        values = [example[name] for name in names]
    elif isinstance(example, Mapping) or (names and len(values) != len(names)):
        found = list(example) if isinstance(example, Mapping) else f"{len(values)} arrays"
        raise ConfigError(f"example: found {found}, expected one array for each of {list(names)}")
    return [_as_tensor(rows) for rows in values]


def _arguments_for(columns: list[str], arguments: list[str]) -> list[str]:
    """Return each column's argument: that of its name, or those of an example in their order."""
    if set(columns) == set(arguments):
        return columns
    for column, argument in zip(columns, arguments, strict=False):
        if column in arguments and column != argument:
            raise ConfigError(
                f"example: its order gives argument {argument!r} the column {column!r}, which is the name of "
                f"another argument: featuresCols={columns}, and the example has {arguments}; say by "
                "inputNames= which argument each column is for"
            )
    return arguments


def _as_tensor(rows: Any) -> torch.Tensor:
    """Turn an array into the tensor that a column of such rows becomes; a tensor stays as it is."""
    if isinstance(rows, torch.Tensor):
        return rows
    array = np.asarray(rows)
    return torch.from_numpy(array.astype(default_dtype(array.dtype, array.ndim)))


def _values(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
