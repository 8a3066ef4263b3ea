"""Estimators: a module, how it is trained, and the Params of a Spark ML pipeline stage."""

from __future__ import annotations

import sys
from functools import partial
from math import prod
from typing import Self, Unpack

import torch
from pyspark import keyword_only
from pyspark.ml import Estimator
from pyspark.ml.classification import ProbabilisticClassifier
from pyspark.ml.regression import Regressor
from pyspark.sql import DataFrame
from torch import nn

from sparkdl.data.columns import Column, Columns
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.hf.labels import class_names
from sparkdl.ml.estimators import fitting, sparsity, tables
from sparkdl.ml.estimators.fits_module import FitPlan, FitRows, building
from sparkdl.ml.estimators.fits_torch import FitsTorch
from sparkdl.ml.estimators.model import TorchClassificationModel, TorchModel, TorchRegressionModel, classes_of
from sparkdl.ml.params.attributes import ATTRIBUTES
from sparkdl.ml.params.columns import HasClassOutputs, HasOutputs, HasPrediction, value_of
from sparkdl.ml.params.entries import constructed_by, setter
from sparkdl.ml.params.keywords import ClassifierKeywords, EstimatorKeywords, RegressorKeywords
from sparkdl.ml.params.training import HasLabelCols, HasScaling
from sparkdl.ml.stages.outputs import check_thresholds
from sparkdl.ml.stages.probabilities import check_logits
from sparkdl.nn.batch import group
from sparkdl.nn.losses import binary_cross_entropy, cross_entropy, squared_error
from sparkdl.nn.models.mlp import MLP, ScaledOutputs
from sparkdl.nn.models.sparse import SparseMLP
from sparkdl.nn.models.tabular import Tabular
from sparkdl.nn.signature import check_outputs_order
from sparkdl.saved.source import ModuleSource
from sparkdl.train.given import knows_loss

_DEVIATIONS = 5.0  # from the mean: the default module tells no more apart
_OF_NUMBERS = (
    "; columns of numbers that featuresCols names need no such step, for they are standardised before they "
    "become float32"
)


@constructed_by(EstimatorKeywords, ATTRIBUTES)
class TorchEstimator(FitsTorch, HasLabelCols, HasOutputs, Estimator[TorchModel]):
    """Fits any module to columns.

    ::

        columns = ["user", "item"]
        est = TorchEstimator(module=Net, loss=nn.L1Loss(), featuresCols=columns, maxEpochs=5)
        grid = ParamGridBuilder().addGrid(est.hyper("width"), [16, 64]).build()

    Besides the Params, which :meth:`explainParams` lists, it has attributes:

    Args:
        module: a ``torch.nn.Module``, or a class or function that makes one; its keyword arguments are
            Params that :meth:`hyper` returns.
        loss: ``loss(output, label)``: a scalar mean over the batch, or one value per row, which
            ``weightCol`` needs. A LightningModule or a model of Hugging Face needs none.
        optimizer: factory such as ``partial(torch.optim.SGD, lr=0.1)``, an optimizer over the module's
            parameters, or a dict from patterns to factories; Adam by default.
        schedule: learning-rate schedule.
        metrics: of ``torchmetrics``, for validations.
        hooks: called while training, see :class:`sparkdl.train.Hook`.
        groups: parameters with hyper-parameters of their own.
        clip: how gradients are clipped.
        options: further options of :class:`sparkdl.Trainer`.
        **params: by name; the list of Params is below, and :meth:`explainParams` prints it. An empty
            ``labelCol`` stands for no label: the loss gets output and input.
    """

    _model_class = TorchModel

    setLabelCols = setter(HasLabelCols.labelCols)

    @keyword_only
    def __init__(self, **params: Unpack[EstimatorKeywords]) -> None:
        super().__init__()
        self.setParams(**params)

    def setParams(self, **params: Unpack[EstimatorKeywords]) -> Self:
        """Set Params and attributes by the names that the constructor has.

        Raises:
            TypeError: if there is no such Param or attribute, or a value has the wrong type.
            ConfigError: if a value cannot work.
        """
        return self._take(**params)

    def _check(self) -> None:
        super()._check()
        if self.module is None:
            raise ConfigError(
                "module=None: expected a torch.nn.Module, or a class or function that makes one"
            )

    def _label_to_look_at(self) -> Columns | None:
        return value_of(self, self.labelCols) or self.getLabelCol() or None

    def _settle(self, rows: FitRows) -> FitPlan:
        module, source = self._build_for(rows)
        if self.loss is None and "step" not in self.options and not knows_loss(module):
            raise ConfigError(
                "loss=None: expected a callable loss(output, label), such as torch.nn.MSELoss()"
            )
        signature = self._signature(module, rows)
        names = value_of(self, self.outputCols)
        if names is not None and len(names) != len(signature.outputs):
            raise ConfigError(
                f"outputCols={names}: the module returns {len(signature.outputs)} tensors; name as many "
                "columns"
            )
        if names is None and len(signature.outputs) > 1:
            raise ConfigError(
                f"outputCols: the module returns {len(signature.outputs)} tensors; name a column for each"
            )
        if names is not None:
            check_outputs_order(names, [output.key for output in signature.outputs])
        return FitPlan(
            module=module, source=source, signature=signature, loss=self.loss, label=self._label_to_look_at()
        )


@constructed_by(ClassifierKeywords, ATTRIBUTES)
class TorchClassifier(FitsTorch, HasClassOutputs, HasScaling, ProbabilisticClassifier):
    """Fits a classifier: a module that gives one logit per class, or a single one for two classes.

    Without a module it is a small multilayer perceptron, :class:`sparkdl.nn.MLP`, on standardised
    features, whose ``hidden``, ``activation`` and ``dropout`` are Params that :meth:`hyper` returns. Labels
    are strings, which are indexed, the most frequent first, or integers from 0. The number of classes is that
    of the strings, or what the label column's metadata says (StringIndexer writes it), else the largest label
    and one, up to 1,000 classes; more are told by ``setHyper(outputs=)``.

    Args:
        module: as of :class:`TorchEstimator`; optional.
        loss: as there; cross-entropy by default. It gets labels as int64, or, where the module gives a
            single logit, as float32 of the output's shape.
        optimizer: as there, as are the other attributes; Adam by default.
        schedule: learning-rate schedule.
        metrics: of ``torchmetrics``, for validations.
        hooks: called while training.
        groups: parameters with hyper-parameters of their own.
        clip: how gradients are clipped.
        options: further options of :class:`sparkdl.Trainer`.
        **params: by name; the list of Params is below, and :meth:`explainParams` prints it.
    """

    _model_class = TorchClassificationModel

    @keyword_only
    def __init__(self, **params: Unpack[ClassifierKeywords]) -> None:
        super().__init__()
        self.setParams(**params)

    def setParams(self, **params: Unpack[ClassifierKeywords]) -> Self:
        """Set Params and attributes by the names that the constructor has; errors as of TorchEstimator."""
        return self._take(**params)

    def _label_to_look_at(self) -> Columns | None:
        return self.getLabelCol()

    def _index_labels(self, df: DataFrame, known: tuple[str, ...]) -> tuple[DataFrame, tuple[str, ...]]:
        name = self.getLabelCol()
        path: str | None = value_of(self, self.parquetPath)
        has_strings = fitting.is_text(df, name)
        if has_strings and path:
            raise ConfigError(
                f"parquetPath: label column {name!r} holds strings, which are numbered in a copy of the "
                "rows; write numbers, or leave parquetPath out"
            )
        named = self._class_names(df) if has_strings and not known else ()
        return fitting.index_strings(df, name, known, named)

    def _class_names(self, df: DataFrame) -> tuple[str, ...]:
        """Return the names that a module of Hugging Face has for its classes."""
        module = self.module
        if callable(module) and not isinstance(module, nn.Module):
            if "transformers" not in sys.modules or tables.encodes(self, df):
                return ()
            module, _ = self._build()
        return class_names(module) if isinstance(module, nn.Module) else ()

    def _settle(self, rows: FitRows) -> FitPlan:
        name = self.getLabelCol()
        if rows.label_shape():
            raise DataError(
                f"label column {name!r} holds arrays of shape {rows.label_shape()}; expected numbers",
                code="data-shape",
            )
        known = fitting.classes_by_metadata(rows.all, name)
        if self.module is None:
            told = known or self.getHyper("module").get("outputs")  # which goes before all others
            classes = (
                max(2, known or 0)
                if told
                else rows.once("classes", partial(fitting.infer_classes, rows.all, name))
            )
            module, source = self._build_default(rows, classes)
        else:
            module, source = self._build_for(rows, **({"outputs": known} if known else {}))
        signature = self._signature(module, rows)
        shape = self._one_output(signature)
        logits = prod(shape)
        if logits == 1:  # a float that is no class would be taken for a share
            known = known or rows.once("labels", partial(fitting.classes_by_labels, rows.all, name))
        if known is not None and known > classes_of(shape):
            raise ConfigError(
                f"module: it gives {logits} logit{'s' if logits > 1 else ''}, for {classes_of(shape)} "
                f"classes, but label column {name!r} has {known}"
            )
        thresholds = value_of(self, self.thresholds)
        if thresholds is not None:
            check_thresholds(thresholds, classes_of(shape))
        if logits == 1:
            label, loss = Column(name, shape, "float32"), binary_cross_entropy
        else:
            label, loss = Column(name, dtype="int64"), cross_entropy
        chosen = self._loss_or(loss, module)
        with building, torch.random.fork_rng(devices=[]):
            check_logits(module, group(rows.tensors, rows.names), chosen)
        return FitPlan(
            module=module,
            source=source,
            signature=signature,
            loss=chosen,
            label=label,
            classes=classes_of(shape),
        )

    def _build_default(self, rows: FitRows, classes: int) -> tuple[nn.Module, ModuleSource | None]:
        if rows.encoding is not None:
            if not self.getStandardization():
                raise ConfigError(
                    "standardization=False: numbers of a table are standardised when they are encoded, and a "
                    "classifier has nothing else to standardise; leave it out, or say encode='off'"
                )
            return self._build(Tabular, **tables.of_default(rows.encoding, classes, self._trial_rows))
        module, source = _perceptron(self, rows, classes)
        if self.getStandardization() and isinstance(module, MLP):
            found = rows.once("moments", partial(fitting.moments, rows.train, rows.inputs))
            module.scale_inputs(*fitting.joined(found, found, _OF_NUMBERS))
        return module, source


@constructed_by(RegressorKeywords, ATTRIBUTES)
class TorchRegressor(FitsTorch, HasPrediction, HasScaling, Regressor[TorchRegressionModel]):
    """Fits a regression: a module that gives one value per row, or as many as the label column's arrays have.

    Without a module it is a small multilayer perceptron, :class:`sparkdl.nn.MLP`, on standardised
    features and labels, whose ``hidden``, ``activation`` and ``dropout`` are Params that :meth:`hyper`
    returns.

    Args:
        module: as of :class:`TorchEstimator`; optional.
        loss: as there; the squared error by default. It gets labels in the shape of the output.
        optimizer: as there, as are the other attributes; Adam by default.
        schedule: learning-rate schedule.
        metrics: of ``torchmetrics``, for validations.
        hooks: called while training.
        groups: parameters with hyper-parameters of their own.
        clip: how gradients are clipped.
        options: further options of :class:`sparkdl.Trainer`.
        **params: by name; the list of Params is below, and :meth:`explainParams` prints it.
    """

    _model_class = TorchRegressionModel

    @keyword_only
    def __init__(self, **params: Unpack[RegressorKeywords]) -> None:
        super().__init__()
        self.setParams(**params)

    def setParams(self, **params: Unpack[RegressorKeywords]) -> Self:
        """Set Params and attributes by the names that the constructor has; errors as of TorchEstimator."""
        return self._take(**params)

    def _label_to_look_at(self) -> Columns | None:
        return self.getLabelCol()

    def _settle(self, rows: FitRows) -> FitPlan:
        name, targets = self.getLabelCol(), rows.label_shape()
        if self.module is None:
            module, source = self._build_default(rows, targets)
        else:
            module, source = self._build_for(rows, outputs=prod(targets))
        signature = self._signature(module, rows)
        shape = self._one_output(signature)
        if prod(shape) != prod(targets):
            raise ConfigError(
                f"module: it gives values of shape {shape} per row, but label column {name!r} holds "
                f"{f'arrays of shape {targets}' if targets else 'numbers'}"
            )
        return FitPlan(
            module=module,
            source=source,
            signature=signature,
            loss=self._loss_or(squared_error, module),
            label=Column(name, shape, signature.outputs[0].dtype),
        )

    def _build_default(
        self, rows: FitRows, targets: tuple[int, ...]
    ) -> tuple[nn.Module, ModuleSource | None]:
        if rows.encoding is not None:
            arguments = tables.of_default(rows.encoding, prod(targets), self._trial_rows)
            module, source = self._build(Tabular, **arguments)
        else:
            module, source = _perceptron(self, rows, prod(targets))
        if self.getStandardization() and isinstance(module, ScaledOutputs):
            label = self.getLabelCol()
            inputs = rows.inputs if isinstance(module, MLP) else {}
            found = rows.once("moments", partial(fitting.moments, rows.train, {**inputs, label: targets}))
            if isinstance(module, MLP):
                module.scale_inputs(*fitting.joined(found, inputs, _OF_NUMBERS))
            module.scale_outputs(*fitting.joined(found, [label]))
        return module, source


def _perceptron(
    estimator: TorchClassifier | TorchRegressor, rows: FitRows, outputs: int
) -> tuple[nn.Module, ModuleSource | None]:
    """Make the default module for rows that are no table; on a sparse column it is a sparse one."""
    plans = rows.first.plan.columns[: len(rows.tensors)]
    part = next((plan for plan in plans if plan.part), None)
    if part is None:
        inputs = sum(map(prod, rows.inputs.values()))
        limit = _DEVIATIONS if estimator.getStandardization() else None
        return estimator._build(MLP, inputs=inputs, outputs=outputs, limit=limit)
    if len(plans) > 2:
        raise ConfigError(
            f"inputTypes: the default module takes no sparse column such as {part.source!r} beside others; "
            "give a module, for example one with a sparkdl.nn.SparseLinear"
        )
    return estimator._build(SparseMLP, inputs=sparsity.size_of(rows.all, part.source), outputs=outputs)
