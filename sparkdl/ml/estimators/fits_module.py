"""The common part of all estimators: Params and attributes become a Trainer, and its result a model."""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from pyspark.sql import DataFrame
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR

from sparkdl.data.columns import Columns
from sparkdl.data.dataset import Dataset
from sparkdl.exceptions import ConfigError, DataError, SparkdlError, SparkdlWarning
from sparkdl.hf.labels import name_classes
from sparkdl.ml.estimators import continued, fitting, sparsity
from sparkdl.ml.estimators.continued import Earlier
from sparkdl.ml.estimators.model import Fitted
from sparkdl.ml.estimators.observers import observed
from sparkdl.ml.estimators.summary import TrainingSummary
from sparkdl.ml.params.attributes import Factory, HasAttributes
from sparkdl.ml.params.columns import is_set, value_of
from sparkdl.ml.params.hyper import HasHyper
from sparkdl.ml.params.training import HasRunSetters
from sparkdl.ml.persistence.saving import TorchReadable, TorchWritable
from sparkdl.nn.lightning import is_lightning
from sparkdl.nn.objective import Loss
from sparkdl.nn.signature import Signature
from sparkdl.optim.clip import ClipByNorm
from sparkdl.optim.spec import Optimizers
from sparkdl.saved.source import ModuleSource
from sparkdl.table.encoding import TableEncoding
from sparkdl.train.hooks.callbacks import EarlyStopping
from sparkdl.train.hooks.checkpoint import Checkpoint
from sparkdl.train.leaving import ErrorsCarryResult
from sparkdl.train.options.schedule import polynomial, sequence
from sparkdl.train.options.triggers import MaxEpoch, MaxIteration, Trigger
from sparkdl.train.trainer import Trainer

T = TypeVar("T")

building = threading.Lock()  # torch's generator belongs to all threads


@dataclass(slots=True, kw_only=True)
class FitPlan:
    """What is settled about a fit when its first rows have been seen."""

    module: nn.Module  # to train
    source: ModuleSource | None  # where its code comes from, if that is known yet
    signature: Signature  # what goes in and what comes out
    loss: Loss | None  # what to minimise; ``None`` if the module or an option knows
    label: Columns | None  # columns for the loss
    classes: int | None = None  # number of classes that labels may have but have not been checked for


@dataclass(slots=True, kw_only=True)
class FitRows:
    """The rows of a fit."""

    all: DataFrame  # to train or validate on
    train: DataFrame  # to train on
    validation: DataFrame | None  # to validate on, if there are such
    features: Columns  # columns for the module
    first: Dataset  # Dataset of features and label, for a look at the first rows
    # shape of one row by features column; empty for an encoded table
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)  # the first rows, one tensor by features column
    encoding: TableEncoding | None = None  # what became of a table's columns, if they were encoded
    labels: tuple[str, ...] = ()  # the names of the classes, if labels were strings
    before: Earlier | None = None  # what the checkpoint tells that the fit goes on from, if it does
    share: float = 1.0  # of the rows to train on that one fit has: folds leave some out
    _found: dict[str, Any] = field(default_factory=dict)

    def once(self, what: str, find: Callable[[], T]) -> T:
        """Return what a Spark job finds out about the rows; it runs once, however many trials ask."""
        if what not in self._found:
            self._found[what] = find()
        found: T = self._found[what]
        return found

    @property
    def names(self) -> list[str]:
        """Names of the module's arguments, none if they are given by position."""
        return list(self.first.plan.features.names)

    def label_shape(self) -> tuple[int, ...]:
        """Return the shape of one row's label."""
        (key,) = self.first.plan.label.keys
        return tuple(self.first.peek()[key].shape[1:])


class FitsModule(HasAttributes, HasRunSetters, HasHyper, TorchWritable, TorchReadable):
    """What all estimators share, whatever their columns are."""

    _model_class: ClassVar[type[Fitted]]
    _rate_epochs: int | None = None  # over which a rate falls that goes by maxEpochs, if not over these
    _trial_rows: int | None = None  # of a table, whose number decides on batch and module in place of its own

    @abstractmethod
    def _look_at(self, dataset: DataFrame) -> FitRows:
        """Check Params and columns, and read the first rows."""

    @abstractmethod
    def _settle(self, rows: FitRows) -> FitPlan:
        """Choose module, loss and label by the first rows."""

    @abstractmethod
    def _datasets(
        self, rows: FitRows, label: Columns | None
    ) -> AbstractContextManager[tuple[Dataset, Dataset | None]]:
        """Make Datasets of the rows to train on, and of those to validate on if there are any."""

    @abstractmethod
    def _check_validates(self) -> None:
        """Check that some rows are kept for validation, which early stopping needs."""

    def _fit(self, dataset: DataFrame) -> Any:
        with ErrorsCarryResult() as kept, observed(self, dataset) as note:
            model = self._fit_model(dataset, kept)
            note(model)
            return model

    def _fit_model(self, dataset: DataFrame, kept: ErrorsCarryResult) -> Any:
        rows = self._look_at(dataset)
        plan = self._settle(rows)
        with self._datasets(rows, plan.label) as (data, validation):
            if validation is not None:
                _check_not_empty(validation)
            elif self.metrics is not None:
                message = (
                    "metrics: without validation rows none is computed; set some aside, or leave metrics out"
                )
                warnings.warn(SparkdlWarning(message, code="config"), stacklevel=5)
            trainer = self._trainer(rows, plan)
            for one in (data, validation):
                if one is not None:
                    one.for_one_fit = True
            try:
                result = trainer.fit(data, validation, **self._going_on())
            except SparkdlError as error:
                kept.result = error.result
                if plan.classes is not None:  # labels may be why
                    fitting.check_labels(rows.all, self.getLabelCol(), plan.classes)
                raise
            kept.result = result
        module = result.module.cpu().eval()
        renamed = name_classes(module, rows.labels)  # transformers shows them, and a factory does not know
        source = ModuleSource.of_instance(module) if renamed or plan.source is None else None
        model = self._model_class(
            module,
            source=source or plan.source,
            signature=plan.signature,
            summary=TrainingSummary(result),
            encoding=rows.encoding,
            labels=rows.labels,
        )
        fitted = self._copyValues(model._resetUid(self.uid))
        return fitted if rows.encoding is None else fitted._set(batchSize=trainer.config.batch_size)

    def _trainer(self, rows: FitRows, plan: FitPlan, **more: Any) -> Trainer:
        """Return what trains the module of a plan."""
        options = self._options() | more
        if value_of(self, self.checkpointPath):
            options["hooks"] = [*options["hooks"], *continued.learned(rows)]
        return Trainer(plan.module, loss=plan.loss, optimizer=self._optimizer_factory(plan.module), **options)

    def _going_on(self) -> dict[str, Any]:
        """Return how the Trainer goes on from another run, if it does."""
        if path := continued.warm_start(self):
            return {"resume": path, "rows": "new"}
        return {"resume": True} if self.getResume() else {}

    def _check(self) -> None:
        """Check what does not depend on the rows."""
        warm: str | None = value_of(self, self.warmStartFrom)
        if self.getResume() and warm:
            raise ConfigError(
                "resume and warmStartFrom are both set; resume goes on with the same rows, warmStartFrom "
                "with others: choose one"
            )
        if self.getResume() and not value_of(self, self.checkpointPath):
            raise ConfigError("resume=True: checkpointPath must say where the checkpoints are")
        for of, made_by in (("module", self.module), ("optimizer", self.optimizer)):
            hyper = self.getHyper(of)
            if hyper and (isinstance(made_by, nn.Module | torch.optim.Optimizer | Mapping)):
                raise ConfigError(
                    f"{of}.{next(iter(hyper))} is set, but {of} is a {type(made_by).__name__} that was "
                    "built already; give a class or factory instead"
                )
        if is_set(self, self.learningRate) and isinstance(self.optimizer, torch.optim.Optimizer | Mapping):
            raise ConfigError(
                f"learningRate is set, but optimizer is a {type(self.optimizer).__name__} that has rates of "
                "its own; set them there, or give a class or factory instead"
            )

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
        with building, torch.random.fork_rng(devices=[]):
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
        if is_set(self, self.learningRate):
            hyper = {"lr": self.getLearningRate(), **hyper}
        if self.optimizer is not None:
            given: Any = self.optimizer
            return partial(given, **hyper) if hyper else given
        if is_lightning(module) and not hyper:
            return None  # configure_optimizers knows
        return sparsity.optimizers(module, {"lr": self.getLearningRate(), **hyper})

    def _options(self) -> dict[str, Any]:
        end_when: Trigger = MaxEpoch(self.getMaxEpochs())
        limit = value_of(self, self.maxIter)
        if limit is not None:
            end_when |= MaxIteration(limit)
        hooks = list(self.hooks)
        patience = value_of(self, self.earlyStoppingPatience)
        if patience is not None:
            self._check_validates()
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
            "gradient_codec": self.getCodec(),
            "transport": self.getTransport(),
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

    def _falling(self, module: nn.Module, iterations: int, start: int) -> dict[str, Any]:
        """Return the option of a Trainer for a rate that falls in a straight line to 0 at the last iteration.

        The estimator's own schedule or optimizer, or that of a LightningModule, goes before. ``start`` are
        the iterations of a run before, from which it goes on.
        """
        chosen = self.schedule is not None or self.optimizer is not None or is_lightning(module)
        if chosen or not iterations:
            return {}
        line = polynomial(iterations)
        level = partial(ConstantLR, factor=1.0, total_iters=1)  # for iterations that are over
        return {"schedule": sequence([(level, start), (line, None)]) if start else line}

    def _loss_or(self, default: Loss, module: nn.Module) -> Loss | None:
        """Return the loss: what was given, or a default where nothing else says how to train."""
        if self.loss is not None:
            return self.loss
        return None if "step" in self.options or is_lightning(module) else default


def _check_not_empty(validation: Dataset) -> None:
    try:
        validation.peek()
    except DataError as error:
        raise DataError(f"validation rows: {error}") from error
