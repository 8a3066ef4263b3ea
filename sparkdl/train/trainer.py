"""The Trainer: the loop on one screen."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal

import torch
from torch import nn

from sparkdl import session
from sparkdl._spark import FrameJobs, broadcast_id
from sparkdl.data import sampler
from sparkdl.data.dataset import Dataset, Store
from sparkdl.exceptions import ConfigError, NonFiniteError, TaskError
from sparkdl.layout import ParamLayout
from sparkdl.nn import serialize
from sparkdl.nn.flat import FlatModule, layout_of, write_back
from sparkdl.nn.gradient import Loss
from sparkdl.optim import OptimizerSpec, check_sliceable, optimizer_spec
from sparkdl.optim.spec import OptimizerFactory
from sparkdl.train.check import dry_run
from sparkdl.train.config import TrainConfig
from sparkdl.train.history import History
from sparkdl.train.interrupt import interruptible
from sparkdl.train.progress import Progress
from sparkdl.train.resources import task_profile, threads_per_task
from sparkdl.train.result import FitResult
from sparkdl.train.state import TrainState
from sparkdl.train.step import ModelState, Outcome, Stepper, choose_slices
from sparkdl.train.worker import FitRef, FitSpec


class Trainer:
    """Trains a module on a :class:`sparkdl.Dataset` by short Spark jobs.

    Args:
        module: any ``torch.nn.Module`` with float32 (or only float64) parameters; it is not
            changed.
        loss: ``loss(output, label)``, a scalar mean over the batch or one loss per row. Without a
            label column the second argument is the input. With sample weights it must return one
            loss per row.
        optimizer: factory such as ``partial(torch.optim.Adam, lr=1e-3)``, or an optimizer over
            ``module.parameters()``. Any elementwise optimizer works.
        config: options as one object; keyword options replace its fields.
        **options: fields of :class:`TrainConfig`:

            - ``batch_size``: rows per iteration over all executors (32);
            - ``seed``: everything random derives from it (0);
            - ``end_when``: trigger that ends the run (``MaxEpoch(1)``);
            - ``shuffle``: whether each epoch has a fresh permutation (True);
            - ``micro_batch_size``: rows per forward pass, to save memory (all at once);
            - ``num_slices``: parameter-sync tasks (one per partition);
            - ``progress``: whether to show a progress bar (True);
            - ``name``: name of the run in the Spark UI (the module's class).

    Raises:
        ConfigError: if an option cannot work.
        ModelError: if the module's parameters cannot be trained.
        OptimizerError: if the optimizer cannot be applied to slices.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        loss: Loss,
        optimizer: OptimizerFactory | torch.optim.Optimizer,
        config: TrainConfig | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise ConfigError(f"module={module!r:.100}: expected a torch.nn.Module")
        if not callable(loss):
            raise ConfigError(f"loss={loss!r:.100}: expected a callable loss(output, label)")
        self.config = _configure(config or TrainConfig(), options)
        self.module = module
        self.loss = loss
        self._optimizer: OptimizerSpec
        self._optimizer, group_of = optimizer_spec(optimizer, module)
        self._layout: ParamLayout = layout_of(module, group_of)
        self._stateful = check_sliceable(self._optimizer)
        self.name = self.config.name or type(module).__name__

    def fit(self, data: Dataset) -> FitResult:
        """Train until ``end_when`` fires or Ctrl-C is pressed.

        Args:
            data: the rows to train on; its store is built if it is not yet.

        Returns:
            The trained copy of the module and the history.

        Raises:
            DataError: if a column or row cannot become a tensor.
            ModelError: if the module cannot process the rows.
            NonFiniteError: if the loss becomes NaN; its ``result`` holds the last good state.
            TaskError: if a task keeps failing; its ``result`` holds the last good state.
        """
        session.check(data.spark)
        shipped = dry_run(self._spec(data, threads=1), data)
        store = data.store()
        steps = sampler.iterations_per_epoch(sum(store.rows), self.config.batch_size)
        learning_rate = self._optimizer.learning_rate()
        end_when = self.config.end_when
        history = History()
        previous = state = TrainState()
        stopped_by: Literal["end_when", "interrupt", "error"] = "end_when"

        with (
            self._stepper(data, store, shipped) as (stepper, model),
            Progress(self.config.progress, self.name, steps) as progress,
            interruptible() as interrupted,
        ):
            while not end_when(previous, state):
                if interrupted():
                    stopped_by = "interrupt"
                    break
                begin = perf_counter()
                if sampler.global_rows(store.rows, steps, state.step):
                    try:
                        model.current, outcome = stepper.run(state, model.current, steps)
                    except (NonFiniteError, TaskError) as error:
                        error.result = self._result(model.current, history, state, "error")
                        raise
                else:  # many tiny partitions: some iterations of an epoch get no row at all
                    outcome = Outcome(0, state.loss, {}, {})
                previous, state = state, state.advance(steps, outcome.samples, outcome.loss)
                history.append(
                    {
                        "epoch": previous.epoch + 1,
                        "iteration": state.iteration,
                        "loss": state.loss,
                        "samples": outcome.samples,
                        "lr": learning_rate,
                        "seconds": perf_counter() - begin,
                        "phases": outcome.phases,
                        "bytes": outcome.bytes,
                    }
                )
                progress.update(state, outcome)
            return self._result(model.current, history, state, stopped_by)

    def _spec(self, data: Dataset, threads: int) -> FitSpec:
        return FitSpec(
            module=self.module,
            loss=self.loss,
            optimizer=self._optimizer,
            layout=self._layout,
            features=data.plan.features,
            label=data.plan.label,
            weighted=data.plan.weighted,
            transform=data.transform,
            seed=self.config.seed,
            shuffle=self.config.shuffle,
            micro_batch_size=self.config.micro_batch_size,
            threads=threads,
        )

    @contextmanager
    def _stepper(self, data: Dataset, store: Store, shipped: bytes) -> Iterator[tuple[Stepper, _Model]]:
        """Broadcast the fit's fixed part and the first weights; release everything at the end."""
        sc = data.spark.sparkContext
        jobs = FrameJobs(sc)
        partitions = len(store.partitions)
        threads = threads_per_task(store.executors, partitions)
        spec = replace(serialize.loads(shipped), threads=threads)
        first = FlatModule(spec.module, spec.layout)
        broadcast = sc.broadcast(serialize.dumps(replace(spec, module=self.module), "the training setup"))
        model: _Model | None = None
        try:
            stepper = Stepper(
                jobs=jobs,
                store=store,
                fit=FitRef(uuid.uuid4().hex, broadcast_id(broadcast)),
                fit_broadcast=broadcast,
                layout=self._layout,
                num_slices=self.config.num_slices or choose_slices(self._layout, partitions),
                stateful=self._stateful,
                profile=task_profile(data.spark, store.executors, partitions),
                describe=self._describe,
            )
            weights = stepper.publish(0, first.params.numpy(), first.buffers(), first.counters())
            model = _Model(ModelState(weights))
            yield stepper, model
        finally:
            if sc._jsc is not None:  # the user may have stopped Spark from within
                if model is not None:
                    model.current.release(jobs)
                broadcast.destroy()

    def _describe(self, state: TrainState, job: str) -> str:
        return f"sparkdl fit {self.name}: epoch {state.epoch + 1}, iteration {state.iteration + 1}, {job}"

    def _result(
        self,
        model: ModelState,
        history: History,
        state: TrainState,
        stopped_by: Literal["end_when", "interrupt", "error"],
    ) -> FitResult:
        module = serialize.loads(serialize.dumps(self.module, "module"))
        write_back(module, self._layout, model.weights.params, model.weights.buffers, model.weights.counters)
        return FitResult(module, history, state, stopped_by)


class _Model:
    """Holds the current model state, so that it can be released however the loop ends."""

    def __init__(self, state: ModelState) -> None:
        self.current = state


def _configure(config: TrainConfig, options: dict[str, Any]) -> TrainConfig:
    try:
        return replace(config, **options)
    except TypeError:
        known = ", ".join(TrainConfig.__slots__)
        unknown = ", ".join(sorted(set(options) - set(TrainConfig.__slots__)))
        raise ConfigError(f"unknown option {unknown}; expected one of {known}") from None
