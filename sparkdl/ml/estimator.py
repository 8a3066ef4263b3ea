"""Estimators: a module, how it is trained, and the Params of a Spark ML pipeline stage."""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, ClassVar, Self

import torch
from pyspark import keyword_only
from pyspark.ml import Estimator
from pyspark.ml.classification import ProbabilisticClassifier
from pyspark.ml.param import Param
from pyspark.ml.regression import Regressor
from pyspark.sql import DataFrame
from torch import Tensor, nn

from sparkdl.data.columns import Column, Columns
from sparkdl.data.dataset import Dataset
from sparkdl.exceptions import ConfigError, DataError, SparkdlError
from sparkdl.ml import converters, fitting
from sparkdl.ml.model import (
    TorchClassificationModel,
    TorchModel,
    TorchRegressionModel,
    _Trained,
    classes_of,
)
from sparkdl.ml.outputs import check_thresholds
from sparkdl.ml.params import (
    HasClassOutputs,
    HasHyper,
    HasInputs,
    HasOutputs,
    HasPrediction,
    HasScaling,
    HasTrainingSetters,
    _param,
    value_of,
)
from sparkdl.ml.persistence import TorchReadable, TorchWritable
from sparkdl.ml.summary import TrainingSummary
from sparkdl.nn.lightning import is_lightning
from sparkdl.nn.losses import binary_cross_entropy, cross_entropy, squared_error
from sparkdl.nn.mlp import MLP
from sparkdl.nn.objective import Loss
from sparkdl.nn.signature import Signature
from sparkdl.nn.source import ModuleSource
from sparkdl.optim.clip import ClipByNorm, ClipByValue
from sparkdl.optim.groups import ParamGroup
from sparkdl.optim.spec import Optimizers
from sparkdl.train.callbacks import Checkpoint, EarlyStopping
from sparkdl.train.hooks import Hook
from sparkdl.train.schedule import Schedule
from sparkdl.train.trainer import Trainer
from sparkdl.train.triggers import MaxEpoch, MaxIteration, Trigger

Factory = Callable[..., nn.Module]

ATTRIBUTES = ("module", "loss", "optimizer", "schedule", "metrics", "hooks", "groups", "clip", "options")
"""What an estimator has besides Params: values that JSON cannot hold."""

_EMPTY: Mapping[str, Any] = {"hooks": (), "groups": (), "options": {}}

_building = threading.Lock()  # torch's generator belongs to all threads


@dataclass(slots=True, kw_only=True)
class _Plan:
    """What is settled about a fit when its first rows have been seen.

    Attributes:
        module: to train.
        source: where its code comes from, if that is known yet.
        signature: what goes in and what comes out.
        loss: what to minimise; ``None`` if the module or an option knows.
        label: columns for the loss.
        classes: number of classes that labels may have but have not been checked for.
    """

    module: nn.Module
    source: ModuleSource | None
    signature: Signature
    loss: Loss | None
    label: Columns | None
    classes: int | None = None


@dataclass(slots=True, kw_only=True)
class _Rows:
    """The rows of a fit.

    Attributes:
        all: to train or validate on.
        train: to train on.
        validation: to validate on, if there are such.
        features: columns for the module.
        first: Dataset of features and label, for a look at the first rows.
        inputs: shape of one row by features column.
        tensors: the first rows, as the module gets them.
    """

    all: DataFrame
    train: DataFrame
    validation: DataFrame | None
    features: Columns
    first: Dataset
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)

    def label_shape(self) -> tuple[int, ...]:
        """Return the shape of one row's label."""
        (key,) = self.first.plan.label.keys
        return tuple(self.first.peek()[key].shape[1:])


class _TorchEstimator(HasTrainingSetters, HasInputs, HasHyper, TorchWritable, TorchReadable):
    """What all estimators share."""

    _model_class: ClassVar[type[_Trained]]

    module: nn.Module | Factory | None
    loss: Loss | None
    optimizer: Optimizers | None
    schedule: Schedule | None
    metrics: Any
    hooks: Sequence[Hook]
    groups: Sequence[ParamGroup]
    clip: ClipByValue | ClipByNorm | None
    options: Mapping[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.module = None
        self.loss = None
        self.optimizer = None
        self.schedule = None
        self.metrics = None
        self.hooks = ()
        self.groups = ()
        self.clip = None
        self.options = _EMPTY["options"]

    # -- accessors of attributes ------------------------------------------------------------------

    def setParams(self, **values: Any) -> Self:
        """Set Params and attributes by the names that the constructor has.

        Raises:
            TypeError: if there is no such Param or attribute, or a value has the wrong type.
            ConfigError: if a value cannot work.
        """
        for name, value in values.items():
            if name in ATTRIBUTES:
                setattr(self, name, _EMPTY.get(name) if value is None else value)
            elif self.hasParam(name):
                self._set(**{name: value})
            else:
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}")
        return self

    def setModule(self, value: nn.Module | Factory | None) -> Self:
        """Set the module, or the factory that makes it of its hyper-parameters."""
        return self.setParams(module=value)

    def setLoss(self, value: Loss | None) -> Self:
        """Set the loss, ``loss(output, label)``: a scalar mean over the batch, or one value per row."""
        return self.setParams(loss=value)

    def setOptimizer(self, value: Optimizers | None) -> Self:
        """Set the optimizer: a factory, such as ``partial(torch.optim.SGD, lr=0.1)``."""
        return self.setParams(optimizer=value)

    def setSchedule(self, value: Schedule | None) -> Self:
        """Set the learning-rate schedule, as of :class:`sparkdl.Trainer`."""
        return self.setParams(schedule=value)

    def setMetrics(self, value: Any) -> Self:
        """Set the metrics of validations, as of :class:`sparkdl.Trainer`."""
        return self.setParams(metrics=value)

    def setHooks(self, value: Sequence[Hook]) -> Self:
        """Set the hooks. Fits with param maps work on copies of them."""
        return self.setParams(hooks=value)

    def setGroups(self, value: Sequence[ParamGroup]) -> Self:
        """Set groups of parameters with hyper-parameters of their own."""
        return self.setParams(groups=value)

    def setClip(self, value: ClipByValue | ClipByNorm | None) -> Self:
        """Set how gradients are clipped; gradientClipNorm is short for ``ClipByNorm``."""
        return self.setParams(clip=value)

    def setOptions(self, value: Mapping[str, Any]) -> Self:
        """Set further options of :class:`sparkdl.Trainer`, such as ``{"averaging": EMA(0.999)}``."""
        return self.setParams(options=value)

    def copy(self, extra: Mapping[Param[Any], Any] | None = None) -> Self:
        """Return a copy with the same uid and some other values.

        The module and the other attributes are shared, for a fit does not change them; but hooks remember
        a run, and fits may run at the same time, so these are copied.

        Raises:
            ConfigError: if a hook cannot be copied.
        """
        for param in extra or {}:
            if isinstance(param, Param) and param.parent == self.uid:
                self.getParam(param.name)  # makes hyper-parameters that another copy has made
        that = super().copy(dict(extra) if extra is not None else None)
        try:
            that.hooks = [copy.deepcopy(hook) for hook in self.hooks]
        except Exception as error:
            raise ConfigError(
                f"hooks: they cannot be copied ({error!r}), which a fit with param maps needs; leave them "
                "out there"
            ) from error
        return that

    # -- fit ------------------------------------------------------------------------------------------

    @abstractmethod
    def _label_to_look_at(self) -> Columns | None:
        """Return the label columns as they are to be read from the first rows."""

    @abstractmethod
    def _settle(self, rows: _Rows) -> _Plan:
        """Choose module, loss and label by the first rows."""

    def _fit(self, dataset: DataFrame) -> Any:
        name = type(self).__name__
        fitting.check_classic(name, dataset)
        self._check()
        rows = self._rows(dataset)
        plan = self._settle(rows)
        weight = value_of(self, self.weightCol) or None
        count = value_of(self, self.numPartitions)
        with ExitStack() as stack:

            def dataset_of(df: DataFrame) -> Dataset:
                data = Dataset.from_dataframe(
                    df, features=rows.features, label=plan.label, weight=weight, num_partitions=count
                )
                return stack.enter_context(data)

            data = dataset_of(rows.train)
            validation = None if rows.validation is None else dataset_of(rows.validation)
            if validation is not None:
                _check_not_empty(validation)
            trainer = Trainer(
                plan.module, loss=plan.loss, optimizer=self._optimizer_factory(plan.module), **self._options()
            )
            try:
                result = trainer.fit(data, validation, **({"resume": True} if self.getResume() else {}))
            except SparkdlError:
                if plan.classes is not None:  # labels may be why
                    fitting.check_labels(rows.all, self.getLabelCol(), plan.classes)
                raise
        module = result.module.cpu().eval()
        model = self._model_class(
            module,
            source=plan.source or ModuleSource.of_instance(module),
            signature=plan.signature,
            summary=TrainingSummary(result),
        )
        return self._copyValues(model._resetUid(self.uid))

    def _check(self) -> None:
        """Check what does not depend on the rows."""
        if self.getResume() and not value_of(self, self.checkpointPath):
            raise ConfigError("resume=True: checkpointPath must say where the checkpoints are")
        for of, made_by in (("module", self.module), ("optimizer", self.optimizer)):
            hyper = self.getHyper(of)
            if hyper and (isinstance(made_by, nn.Module | torch.optim.Optimizer | Mapping)):
                raise ConfigError(
                    f"{of}.{next(iter(hyper))} is set, but {of} is a {type(made_by).__name__} that was "
                    "built already; give a class or factory instead"
                )

    def _rows(self, df: DataFrame) -> _Rows:
        features, label = self.inputColumns(), self._label_to_look_at()
        labels = [] if label is None else [label] if isinstance(label, str | Column) else list(label)
        names = [*self.inputNames(), *(c.name if isinstance(c, Column) else c for c in labels)]
        weight, indicator = value_of(self, self.weightCol), value_of(self, self.validationIndicatorCol)
        names += [weight] if weight else []
        first = Dataset.from_dataframe(
            df, features=features, label=label, weight=weight or None
        )  # checks names
        if self.getHandleInvalid() != "error":
            df = fitting.with_values(df, names)
        needed = list(dict.fromkeys([*names, *([indicator] if indicator else [])]))
        validation: DataFrame | None = None
        if indicator:
            train, validation = fitting.split_by_indicator(df, indicator)
        elif fraction := self.getValidationFraction():
            df = df.select(*(fitting.column(name) for name in needed))
            train, validation = fitting.split_by_fraction(df, fraction, self.getSeed())
        else:
            train = df
        if df is not train or self.getHandleInvalid() != "error":
            first = Dataset.from_dataframe(train, features=features, label=label, weight=weight or None)
        rows = _Rows(all=df, train=train, validation=validation, features=features, first=first)
        keys = first.plan.features.keys
        rows.tensors = fitting.rows_of(first.peek(), keys)
        rows.inputs = {
            name: tuple(tensor.shape[1:])
            for name, tensor in zip(self.inputNames(), rows.tensors, strict=True)
        }
        return rows

    def _build(
        self, default: Factory | None = None, **arguments: Any
    ) -> tuple[nn.Module, ModuleSource | None]:
        """Make the module, with weights that depend on the seed, and say where its code comes from."""
        if isinstance(self.module, nn.Module):
            return self.module, None
        factory = self.module if self.module is not None else default
        if not callable(factory):
            raise ConfigError(
                f"module={self.module!r:.100}: expected a torch.nn.Module, or a class or function that "
                "makes one"
            )
        arguments = {**arguments, **self.getHyper("module")}
        with _building, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.getSeed())
            try:
                module = factory(**arguments)
            except TypeError as error:
                listed = ", ".join(f"{name}={value!r:.40}" for name, value in arguments.items())
                raise ConfigError(
                    f"module: {factory!r:.100} cannot be called with ({listed}): {error}"
                ) from error
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"module: {factory!r:.100} returned {module!r:.100}; expected a torch.nn.Module"
            )
        try:
            return module, ModuleSource.of(factory, arguments)
        except ConfigError:
            return module, None

    def _optimizer_factory(self, module: nn.Module) -> Optimizers | None:
        hyper = self.getHyper("optimizer")
        if self.isSet(self.learningRate) and not isinstance(self.optimizer, torch.optim.Optimizer | Mapping):
            hyper = {"lr": self.getLearningRate(), **hyper}
        if self.optimizer is not None:
            given: Any = self.optimizer
            return partial(given, **hyper) if hyper else given
        if is_lightning(module) and not hyper:
            return None  # configure_optimizers knows
        return partial(torch.optim.Adam, **{"lr": self.getLearningRate(), **hyper})

    def _options(self) -> dict[str, Any]:
        """Return the Trainer's options."""
        end_when: Trigger = MaxEpoch(self.getMaxEpochs())
        limit = value_of(self, self.maxIter)
        if limit is not None:
            end_when |= MaxIteration(limit)
        hooks = list(self.hooks)
        patience = value_of(self, self.earlyStoppingPatience)
        if patience is not None:
            if not self.getValidationFraction() and not value_of(self, self.validationIndicatorCol):
                raise ConfigError(
                    "earlyStoppingPatience needs validation rows: set validationFraction or "
                    "validationIndicatorCol"
                )
            hooks.append(EarlyStopping(patience))
        path = value_of(self, self.checkpointPath)
        if path:
            hooks.append(Checkpoint(path))
        norm = value_of(self, self.gradientClipNorm)
        if norm is not None and self.clip is not None:
            raise ConfigError("gradientClipNorm and clip are both set; choose one")
        own = {
            "batch_size": self.getBatchSize(),
            "seed": self.getSeed() % (1 << 63),
            "end_when": end_when,
            "shuffle": self.getShuffle(),
            "micro_batch_size": value_of(self, self.microBatchSize),
            "precision": self.getPrecision(),
            "clip": self.clip if norm is None else ClipByNorm(norm),
            "schedule": self.schedule,
            "metrics": self.metrics,
            "hooks": hooks,
            "groups": self.groups,
            "monitor": value_of(self, self.monitor),
            "progress": self.getVerbose(),
            "name": type(self).__name__,
        }
        clash = [name for name in self.options if name in own and name != "name"]
        if clash:
            raise ConfigError(f"options: {clash[0]!r} has a Param or attribute of its own")
        return own | dict(self.options)

    def _loss_or(self, default: Loss, module: nn.Module) -> Loss | None:
        """Return the loss: what was given, or a default where nothing else says how to train."""
        if self.loss is not None:
            return self.loss
        return None if "step" in self.options or is_lightning(module) else default

    def _signature(self, module: nn.Module, rows: _Rows) -> Signature:
        with _building:  # the module's mode changes for a moment, and other fits may share it
            return Signature.of_rows(module, rows.tensors)

    def _one_output(self, signature: Signature) -> tuple[int, ...]:
        """Return the shape of the only output of a module."""
        shapes = [spec.shape for spec in signature.outputs if spec.shape is not None]
        if len(shapes) != 1:
            raise ConfigError(
                f"module: it returns {len(signature.outputs)} tensors; {type(self).__name__} trains modules "
                "that return one. TorchEstimator trains others"
            )
        return shapes[0]


def _check_not_empty(validation: Dataset) -> None:
    try:
        validation.peek()
    except DataError as error:
        raise DataError(f"validation rows: {error}") from error


class TorchEstimator(_TorchEstimator, HasOutputs, Estimator[TorchModel]):
    """Fits any module to columns.

    ::

        est = TorchEstimator(module=Net, loss=nn.L1Loss(), featuresCols=["user", "item"], maxEpochs=5)
        grid = ParamGridBuilder().addGrid(est.hyper("width"), [16, 64]).build()

    Besides the Params, which :meth:`explainParams` lists, it has attributes:

    Args:
        module: a ``torch.nn.Module``, or a class or function that makes one; its keyword arguments are
            Params that :meth:`hyper` returns.
        loss: ``loss(output, label)``: a scalar mean over the batch, or one value per row, which
            ``weightCol`` needs. A LightningModule needs none.
        optimizer: factory such as ``partial(torch.optim.SGD, lr=0.1)``, an optimizer over the module's
            parameters, or a dict from patterns to factories; Adam by default.
        schedule: learning-rate schedule.
        metrics: of ``torchmetrics``, for validations.
        hooks: called while training, see :class:`sparkdl.train.Hook`.
        groups: parameters with hyper-parameters of their own.
        clip: how gradients are clipped.
        options: further options of :class:`sparkdl.Trainer`.
        **params: by name, see :meth:`explainParams`. An empty ``labelCol`` stands for no label: the loss
            gets output and input.
    """

    _model_class = TorchModel
    _input_kwargs: dict[str, Any]

    labelCols: Param[list[str]] = _param(
        "labelCols",
        "columns for a loss with several labels, which gets them as a tuple; used instead of labelCol.",
        converters.names("labelCols"),
    )

    @keyword_only
    def __init__(
        self,
        *,
        module: nn.Module | Factory | None = None,
        loss: Loss | None = None,
        optimizer: Optimizers | None = None,
        schedule: Schedule | None = None,
        metrics: Any = None,
        hooks: Sequence[Hook] = (),
        groups: Sequence[ParamGroup] = (),
        clip: ClipByValue | ClipByNorm | None = None,
        options: Mapping[str, Any] | None = None,
        featuresCol: str = "features",
        featuresCols: list[str] | None = None,
        inputShapes: list[list[int] | None] | list[int] | None = None,
        inputTypes: list[str | None] | str | None = None,
        handleInvalid: str = "error",
        labelCol: str = "label",
        labelCols: list[str] | None = None,
        weightCol: str | None = None,
        predictionCol: str = "prediction",
        outputCols: list[str] | None = None,
        learningRate: float = 1e-3,
        batchSize: int = 32,
        maxEpochs: int = 20,
        maxIter: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        numPartitions: int | None = None,
        microBatchSize: int | None = None,
        precision: str = "fp32",
        gradientClipNorm: float | None = None,
        validationFraction: float = 0.0,
        validationIndicatorCol: str | None = None,
        monitor: str | None = None,
        earlyStoppingPatience: int | None = None,
        checkpointPath: str | None = None,
        resume: bool = False,
        inferenceBatchSize: int | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        self.setParams(**self._input_kwargs)

    def setLabelCols(self, value: list[str]) -> Self:
        """Sets the value of :py:attr:`labelCols`."""
        return self._set(labelCols=value)

    def getLabelCols(self) -> list[str]:
        """Gets the value of labelCols."""
        return self.getOrDefault(self.labelCols)

    def _label_to_look_at(self) -> Columns | None:
        return value_of(self, self.labelCols) or self.getLabelCol() or None

    def _settle(self, rows: _Rows) -> _Plan:
        module, source = self._build()
        if self.loss is None and "step" not in self.options and not is_lightning(module):
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
        return _Plan(
            module=module, source=source, signature=signature, loss=self.loss, label=self._label_to_look_at()
        )


class TorchClassifier(_TorchEstimator, HasClassOutputs, HasScaling, ProbabilisticClassifier):
    """Fits a classifier: a module that gives one logit per class, or a single one for two classes.

    Without a module it is a small multilayer perceptron, :class:`sparkdl.nn.mlp.MLP`, on standardised
    features, whose ``hidden``, ``activation`` and ``dropout`` are Params that :meth:`hyper` returns. Labels
    are integers from 0. The number of classes is what the label column's metadata says (StringIndexer
    writes it), else the largest label and one.

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
        **params: by name, see :meth:`explainParams`.
    """

    _model_class = TorchClassificationModel
    _input_kwargs: dict[str, Any]

    @keyword_only
    def __init__(
        self,
        *,
        module: nn.Module | Factory | None = None,
        loss: Loss | None = None,
        optimizer: Optimizers | None = None,
        schedule: Schedule | None = None,
        metrics: Any = None,
        hooks: Sequence[Hook] = (),
        groups: Sequence[ParamGroup] = (),
        clip: ClipByValue | ClipByNorm | None = None,
        options: Mapping[str, Any] | None = None,
        featuresCol: str = "features",
        featuresCols: list[str] | None = None,
        inputShapes: list[list[int] | None] | list[int] | None = None,
        inputTypes: list[str | None] | str | None = None,
        handleInvalid: str = "error",
        labelCol: str = "label",
        weightCol: str | None = None,
        predictionCol: str = "prediction",
        probabilityCol: str = "probability",
        rawPredictionCol: str = "rawPrediction",
        thresholds: list[float] | None = None,
        standardization: bool = True,
        learningRate: float = 1e-3,
        batchSize: int = 32,
        maxEpochs: int = 20,
        maxIter: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        numPartitions: int | None = None,
        microBatchSize: int | None = None,
        precision: str = "fp32",
        gradientClipNorm: float | None = None,
        validationFraction: float = 0.0,
        validationIndicatorCol: str | None = None,
        monitor: str | None = None,
        earlyStoppingPatience: int | None = None,
        checkpointPath: str | None = None,
        resume: bool = False,
        inferenceBatchSize: int | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        self.setParams(**self._input_kwargs)

    def setStandardization(self, value: bool) -> Self:
        """Sets the value of :py:attr:`standardization`."""
        return self._set(standardization=value)

    def _label_to_look_at(self) -> Columns | None:
        return self.getLabelCol()

    def _settle(self, rows: _Rows) -> _Plan:
        name = self.getLabelCol()
        if rows.label_shape():
            raise DataError(
                f"label column {name!r} holds arrays of shape {rows.label_shape()}; expected numbers"
            )
        known = fitting.classes_by_metadata(rows.all, name)
        if self.module is None:
            classes = max(2, known or fitting.classes_by_labels(rows.all, name))
            module, source = self._build_default(rows, classes)
        else:
            module, source = self._build()
        signature = self._signature(module, rows)
        shape = self._one_output(signature)
        logits = prod(shape)
        if logits == 1:  # a float that is no class would be taken for a share
            known = known or fitting.classes_by_labels(rows.all, name)
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
        return _Plan(
            module=module,
            source=source,
            signature=signature,
            loss=self._loss_or(loss, module),
            label=label,
            classes=classes_of(shape),
        )

    def _build_default(self, rows: _Rows, classes: int) -> tuple[nn.Module, ModuleSource | None]:
        module, source = self._build(MLP, inputs=sum(map(prod, rows.inputs.values())), outputs=classes)
        if self.getStandardization() and isinstance(module, MLP):
            found = fitting.moments(rows.train, rows.inputs)
            module.scale_inputs(*fitting.joined(list(found.values())))
        return module, source


class TorchRegressor(_TorchEstimator, HasPrediction, HasScaling, Regressor[TorchRegressionModel]):
    """Fits a regression: a module that gives one value per row, or as many as the label column's arrays have.

    Without a module it is a small multilayer perceptron, :class:`sparkdl.nn.mlp.MLP`, on standardised
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
        **params: by name, see :meth:`explainParams`.
    """

    _model_class = TorchRegressionModel
    _input_kwargs: dict[str, Any]

    @keyword_only
    def __init__(
        self,
        *,
        module: nn.Module | Factory | None = None,
        loss: Loss | None = None,
        optimizer: Optimizers | None = None,
        schedule: Schedule | None = None,
        metrics: Any = None,
        hooks: Sequence[Hook] = (),
        groups: Sequence[ParamGroup] = (),
        clip: ClipByValue | ClipByNorm | None = None,
        options: Mapping[str, Any] | None = None,
        featuresCol: str = "features",
        featuresCols: list[str] | None = None,
        inputShapes: list[list[int] | None] | list[int] | None = None,
        inputTypes: list[str | None] | str | None = None,
        handleInvalid: str = "error",
        labelCol: str = "label",
        weightCol: str | None = None,
        predictionCol: str = "prediction",
        standardization: bool = True,
        learningRate: float = 1e-3,
        batchSize: int = 32,
        maxEpochs: int = 20,
        maxIter: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        numPartitions: int | None = None,
        microBatchSize: int | None = None,
        precision: str = "fp32",
        gradientClipNorm: float | None = None,
        validationFraction: float = 0.0,
        validationIndicatorCol: str | None = None,
        monitor: str | None = None,
        earlyStoppingPatience: int | None = None,
        checkpointPath: str | None = None,
        resume: bool = False,
        inferenceBatchSize: int | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__()
        self.setParams(**self._input_kwargs)

    def setStandardization(self, value: bool) -> Self:
        """Sets the value of :py:attr:`standardization`."""
        return self._set(standardization=value)

    def _label_to_look_at(self) -> Columns | None:
        return self.getLabelCol()

    def _settle(self, rows: _Rows) -> _Plan:
        name, targets = self.getLabelCol(), rows.label_shape()
        if self.module is None:
            module, source = self._build_default(rows, targets)
        else:
            module, source = self._build()
        signature = self._signature(module, rows)
        shape = self._one_output(signature)
        if prod(shape) != prod(targets):
            raise ConfigError(
                f"module: it gives values of shape {shape} per row, but label column {name!r} holds "
                f"{f'arrays of shape {targets}' if targets else 'numbers'}"
            )
        return _Plan(
            module=module,
            source=source,
            signature=signature,
            loss=self._loss_or(squared_error, module),
            label=Column(name, shape, signature.outputs[0].dtype),
        )

    def _build_default(self, rows: _Rows, targets: tuple[int, ...]) -> tuple[nn.Module, ModuleSource | None]:
        inputs = sum(map(prod, rows.inputs.values()))
        module, source = self._build(MLP, inputs=inputs, outputs=prod(targets))
        if self.getStandardization() and isinstance(module, MLP):
            label = self.getLabelCol()
            found = fitting.moments(rows.train, {**rows.inputs, label: targets})
            module.scale_inputs(*fitting.joined([found[column] for column in rows.inputs]))
            module.scale_outputs(*fitting.joined([found[label]]))
        return module, source
