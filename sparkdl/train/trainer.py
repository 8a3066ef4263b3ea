"""The Trainer: checks first, then ships the run's fixed part, then the loop."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any

from torch import nn

from sparkdl import session
from sparkdl._spark import FrameJobs, JavaObject, broadcast_id
from sparkdl.allreduce.choose import Wanted
from sparkdl.allreduce.cluster import Cluster, SparkCluster
from sparkdl.allreduce.engine import Engine
from sparkdl.allreduce.kept import Snapshot
from sparkdl.allreduce.state import ModelState, Weights
from sparkdl.allreduce.update.shard import reductions
from sparkdl.codec import codec_of, has_error_feedback
from sparkdl.compute.local_steps import InnerRule
from sparkdl.compute.spec import FitSpec
from sparkdl.compute.worker import FitRef
from sparkdl.data.columns import Structure
from sparkdl.data.dataset import Dataset, Store
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.layout import ParamLayout, TensorSpec
from sparkdl.metrics.spec import Metrics
from sparkdl.nn import serialize
from sparkdl.nn.flat import FlatModule, dense_tables, layout_of, sparse_tables, write_back
from sparkdl.nn.lightning import LightningSchedule, from_lightning
from sparkdl.nn.objective import Loss, LossObjective, Objective, Step, StepObjective
from sparkdl.optim import OptimizerSpec, check_sliceable, optimizer_spec
from sparkdl.optim.describe import describe_optimizer
from sparkdl.optim.packed import lazy_groups, sparse_groups
from sparkdl.optim.rule import UpdateRule
from sparkdl.optim.spec import Optimizers
from sparkdl.train.check import dry_run
from sparkdl.train.checkpointing import Resume, find_resume_point
from sparkdl.train.config import TrainConfig
from sparkdl.train.epochs import Epochs
from sparkdl.train.evaluate import Evaluator, check_metrics
from sparkdl.train.history import History
from sparkdl.train.hooks import Hook
from sparkdl.train.interrupt import interruptible
from sparkdl.train.leaving import ErrorsCarryResult, unless_under_way
from sparkdl.train.local_steps import LocalSteps
from sparkdl.train.loop import Loop, StoppedBy
from sparkdl.train.predict import run_prediction
from sparkdl.train.progress import Progress
from sparkdl.train.resources import task_profile, threads_per_task
from sparkdl.train.result import FitResult
from sparkdl.train.run import Run
from sparkdl.train.schedule import PerEpoch, PerIteration, ScheduledHyper
from sparkdl.train.setting import setting_of
from sparkdl.train.state import TrainState
from sparkdl.train.validation import Validation, check_validation, validation_sets
from sparkdl.train.weighted import check_weights


class Trainer:
    """Trains a module on a :class:`sparkdl.Dataset` by short Spark jobs.

    Args:
        module: any ``torch.nn.Module`` with float32 (or only float64) parameters; it is not
            changed.
        loss: ``loss(output, label)``, a scalar mean over the batch or one loss per row. Without a
            label column the second argument is the input. With sample weights it must return one
            loss per row.
        step: instead of ``loss``, ``step(module, batch)``: returns the loss, or a dict with
            ``"loss"`` and further scalars for the history; ``batch`` has ``inputs``, ``label``,
            ``weight`` and ``rows``. Neither is needed for a LightningModule, whose ``training_step``
            and ``configure_optimizers`` are used; ``optimizer`` takes the place of the latter, with its
            schedule.
        optimizer: factory such as ``partial(torch.optim.Adam, lr=1e-3)``, an optimizer over
            ``module.parameters()``, or a dict from patterns of parameter names to factories. Any
            elementwise optimizer works, and those of :mod:`sparkdl.optim`.
        config: options as one object; keyword options replace its fields.
        **options: fields of :class:`TrainConfig`. The run:

            - ``batch_size``: rows per iteration over all executors (32);
            - ``seed``: everything random derives from it (0);
            - ``end_when``: trigger that ends the run (``MaxEpoch(1)``);
            - ``shuffle``: whether each epoch has a fresh permutation (True);
            - ``hooks``: what is called at the run's turning points, see :class:`Hook`;
            - ``timeline``: path or URL of a Chrome trace of the first 100 iterations, for Perfetto; for
              others put a :class:`sparkdl.summary.Timeline` among the hooks;
            - ``commit_every``: iterations between two copies of the optimizer's state on the driver, for
              when executors take both of theirs with them (what 3 % of the time allows); 0 for none;
            - ``max_failures``: iterations that may fail within ``failure_window`` seconds (5 in 600)
              and run again before the run ends;
            - ``progress``: whether to show a progress bar (True);
            - ``name``: name of the run in the Spark UI (the module's class).

            The update:

            - ``groups``: :class:`ParamGroup` entries with hyper-parameters of their own;
            - ``schedule``: a ``torch.optim.lr_scheduler`` factory, stepped once per epoch, or
              :class:`PerIteration` around one;
            - ``clip``: :class:`ClipByValue` or :class:`ClipByNorm`;
            - ``combine``: ``"mean"`` of the partitions' gradients or ``"adasum"``;
            - ``averaging``: :class:`EMA` or :class:`SWA` of the weights;
            - ``exchange``: ``"replicated"``, where every executor makes all weights, of large tables with
              lazy optimizers the rows that a batch has touched; ``"sharded"``, where each partition owns a
              shard of weights and optimizer state; ``"driver"``, two jobs for each iteration, with the
              weights going through the driver. ``"auto"`` takes replicated for up to 32 MiB of gradients per
              task and for large tables, sharded above, and driver in sessions that lack the confs;
            - ``transport``: how messages travel within a job: ``"shuffle"`` (``"auto"``);
            - ``iterations_per_job``: how many iterations are one Spark job, unless through the driver (as
              many as take some seconds); the result does not depend on it;
            - ``num_slices``: parameter-sync tasks, with ``exchange="driver"`` (one per partition);
            - ``gradient_codec``: how gradients travel: ``"fp32"``, ``"bf16"``, ``"fp16"``, ``"int8"`` or
              :class:`Int8`, or :class:`TopK`; they are summed in full;
            - ``weights_codec``: how weights travel with ``exchange="sharded"``: ``"fp32"``, ``"bf16"`` or
              ``"fp16"``; the owners of shards keep them in full;
            - ``local_steps``: how many steps each partition takes by itself between two exchanges, or
              :class:`LocalSteps` (None: gradients are exchanged in each step).

            Validation:

            - ``metrics``: ``torchmetrics`` metrics, one, a list, or a dict by name;
            - ``validate_when``: trigger (``EveryEpoch()``);
            - ``monitor``: score that triggers and schedules look at, ``"val/accuracy"`` (the first
              metric on the first set); ``monitor_mode``: ``"max"`` or ``"min"`` (the metric knows);
              ``min_delta``: least improvement that counts (0);
            - ``validation_batch_size``: rows per forward pass.

            The workers:

            - ``micro_batch_size``: rows per forward pass, to save memory (all at once);
            - ``precision``: ``"fp32"`` or ``"bf16"`` autocast;
            - ``compile``: ``torch.compile`` the module (False), or a dict of its options;
            - ``channels_last``: memory format of images (False);
            - ``checkpoint_activations``: patterns of submodules whose activations are computed again
              in the backward pass, to save memory.

    Attributes:
        config: the options.
        module: the module as it was given.
        objective: what is minimised.
        result: what the last ``fit`` returned, or had trained when it failed; ``None`` before.

    Raises:
        ConfigError: if an option cannot work.
        ModelError: if the module's parameters cannot be trained.
        OptimizerError: if the optimizer cannot be applied to slices.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        loss: Loss | None = None,
        step: Step | None = None,
        optimizer: Optimizers | None = None,
        config: TrainConfig | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise ConfigError(f"module={module!r:.100}: expected a torch.nn.Module")
        config = _configure(config or TrainConfig(), options)
        lightning = from_lightning(module) if loss is None and step is None else None
        if lightning is not None and optimizer is None:
            # Its schedule is that of its own optimizer, and would bring the learning rates of that one.
            optimizer, config = lightning.optimizer, _with_schedule(config, lightning.schedule)
        if optimizer is None:
            raise ConfigError("optimizer=None: expected a factory such as partial(torch.optim.Adam, lr=1e-3)")
        self.config = config
        self.module = module
        self.objective: Objective = lightning.objective if lightning is not None else _objective(loss, step)
        self.result: FitResult | None = None
        self._unfreezes = [p for hook in self.config.hooks for p in hook.unfreezes]
        with _trainable(module, self._unfreezes) as self._frozen_at_first:
            spec, group_of = optimizer_spec(optimizer, module, self.config.groups)
            self._layout: ParamLayout = layout_of(module, group_of)
            sparse, dense = sparse_tables(module), dense_tables(module)
        self._optimizer: OptimizerSpec = spec
        self._rule = UpdateRule(spec, self.config.clip)
        self._stateful = check_sliceable(spec)
        self._inner: InnerRule | None = None
        if self.config.local is not None:
            self._step_locally(self.config.local)
        lazy = lazy_groups(self._rule.optimizer)
        self._tables = tuple(index for index in sparse if self._layout.params[index].group in lazy)
        # To SparseAdam an element of zero is none, and to name its row would make it one.
        by_element = sparse_groups(self._rule.optimizer)
        self._scanned = tuple(i for i in dense if self._layout.params[i].group not in by_element)
        ScheduledHyper(spec, self.config.schedule)  # a schedule that cannot be built is told now
        self._label: Structure | None = None
        self.name = self.config.name or type(module).__name__

    def _step_locally(self, local: LocalSteps) -> None:
        """Let the optimizer be that of the partitions, and the slices' an outer one."""
        self._inner = InnerRule(self._rule, self._layout, self._stateful)
        outer, _ = optimizer_spec(local.outer, self.module)
        self._rule = UpdateRule(outer)
        self._stateful = check_sliceable(outer)
        self._layout = replace(
            self._layout, params=tuple(replace(spec, group=0) for spec in self._layout.params)
        )

    def fit(self, data: Dataset, validation: Validation = None, *, resume: Resume = False) -> FitResult:
        """Train until ``end_when`` fires, a hook stops the run, or Ctrl-C is pressed.

        Args:
            data: the rows to train on; its store is built if it is not yet.
            validation: a Dataset to evaluate at every ``validate_when``, or several by name.
            resume: ``True`` to go on from the newest sound checkpoint of the :class:`Checkpoint` hook,
                or from the beginning if there is none; the path of a checkpoint to go on from that
                one. The run ends with the same bits as if it had never stopped.

        Returns:
            The trained copy of the module and the history.

        Raises:
            DataError: if a column or row cannot become a tensor.
            ModelError: if the module or a metric cannot process the rows.
            ConfigError: if an option does not fit the data.
            NonFiniteError: if the loss becomes NaN.
            TaskError: if a task keeps failing.

        Every exception that leaves a run, also one of a hook or a second Ctrl-C, has a ``result``: the
        :class:`FitResult` of the last completed iteration.
        """
        with ErrorsCarryResult() as kept:
            return self._fit(data, validation, resume, kept)

    def _fit(
        self, data: Dataset, validation: Validation, resume: Resume, kept: ErrorsCarryResult
    ) -> FitResult:
        _check_dataset(data)
        if self.config.elastic is not None and data.num_partitions is not None:
            raise ConfigError(
                f"elastic: the Dataset was made with num_partitions={data.num_partitions!r}; leave it out to "
                "let its partitions follow the cluster"
            )
        self._label = data.plan.label
        sets = validation_sets(validation)
        shipped = dry_run(self._spec(data, self.module), data)
        monitor = check_validation(self.config, shipped, sets)
        better = monitor is not None and monitor.higher_is_better
        schedule = ScheduledHyper(self._optimizer, self.config.schedule, higher_is_better=better)
        if schedule.needs_validation and monitor is None:
            raise ConfigError(
                "schedule: ReduceLROnPlateau needs validation scores: give fit(data, validation=)"
            )
        hooks = self._hooks()
        point = find_resume_point(resume, hooks)

        with self._shipped(data, self.module) as ship, ship.evaluator(self.config) as evaluator:
            check_weights(ship.jobs, data)
            epochs = Epochs(ship.jobs, ship.fit, ship.broadcast, data, self.name)
            ship.cleanups.append(epochs.release)
            if point is not None:
                point.check(self._setting(epochs.store))
            run = Run(
                name=self.name,
                config=self.config,
                module=self.module,
                data=data,
                layout=self._layout,
                steps=epochs.steps(self.config.rows_per_iteration(self.config.batch_size, 0)),
                history=History(),
                previous=TrainState(),
                state=TrainState(),
                frozen=self._frozen_at_first,
                monitored=f"{monitor.set}/{monitor.score}" if monitor is not None else "",
                _current=lambda: loop.current(),
                _average=lambda: loop.averaged(),
                _point=lambda kept: loop.point(kept),
                _write_slices=lambda folder: loop.write_slices(folder),
                _write_back=self._write_back,
            )
            loop = Loop(
                run=run,
                engine=self._engine(ship),
                model=ModelState(ship.weights),
                epochs=epochs,
                schedule=schedule,
                evaluator=evaluator,
                sets=sets,
                monitor=monitor,
                hooks=hooks,
                setting=lambda: self._setting(epochs.store),
            )
            ship.release_model = loop.release
            stopped_by: StoppedBy = "error"
            with interruptible() as interrupted:
                try:
                    if point is not None:
                        loop.resume(point)
                    stopped_by = loop.train(interrupted)
                except BaseException as error:
                    run.error = error
                    stopped_by = "interrupt" if isinstance(error, KeyboardInterrupt) else "error"
                    raise
                finally:  # what was trained is not lost because a hook fails at the very end
                    try:
                        loop.end()
                    finally:
                        with unless_under_way(run.error, "The last weights cannot be fetched any more"):
                            self.result = kept.result = self._result(run, stopped_by)
            return self.result

    def evaluate(
        self, data: Dataset, metrics: Metrics | None = None, *, module: nn.Module | None = None
    ) -> dict[str, float]:
        """Compute loss and metrics over all rows of a Dataset, as a Spark job.

        Args:
            data: the rows.
            metrics: as the option of that name, which is the default.
            module: whose weights to evaluate; by default what the last ``fit`` trained, before that
                the module itself.

        Returns:
            Value by score; ``"loss"`` among them if the rows have the label that it needs.

        Raises:
            ConfigError: if something is no metric.
            DataError: if a column or row cannot become a tensor.
            ModelError: if the module or a metric cannot process the rows.
            TaskError: if a task keeps failing.
        """
        _check_dataset(data)
        module = self._module_to_use(module)
        metrics = self.config.metrics if metrics is None else metrics
        check_metrics(serialize.dumps(self._spec(data, module), "the evaluation"), data, metrics)
        config = replace(self.config, metrics=metrics)
        with self._shipped(data, module) as ship, ship.evaluator(config) as evaluator:
            return evaluator.run(data, ship.weights.publish(), f"sparkdl evaluate {self.name}")

    def predict(
        self, data: Dataset, *, module: nn.Module | None = None, batch_size: int | None = None
    ) -> Any:
        """Return the module's output for all rows, as numpy arrays in the order of the source.

        Args:
            data: the rows; a label is not needed. Those of a DataFrame come in the order of
                ``df.collect()``, if that is always the same.
            module: whose weights to use, as in :meth:`evaluate`.
            batch_size: rows per forward pass.

        Returns:
            An array whose first dimension counts rows, or a tuple or dict of arrays if the module
            returns one. The whole output is held on the driver.

        Raises:
            DataError: if a column or row cannot become a tensor.
            ModelError: if the module cannot process the rows.
            TaskError: if a task keeps failing.
        """
        _check_dataset(data)
        if batch_size is not None and not (isinstance(batch_size, int) and batch_size >= 1):
            raise ConfigError(f"batch_size={batch_size!r}: expected an integer of at least 1, or None")
        module = self._module_to_use(module)
        size = batch_size or self.config.validation_batch_size
        describe = f"sparkdl predict {self.name}"
        with self._shipped(data, module) as ship:
            return run_prediction(
                ship.jobs,
                ship.fit,
                ship.broadcast,
                data,
                ship.weights.publish(),
                describe,
                size,
                ship.profile,
            )

    def _hooks(self) -> list[Hook]:
        """Put the user's hooks and those that options stand for together."""
        hooks: list[Hook] = [Progress(self.name)] if self.config.progress else []
        hooks += self.config.hooks
        if self.config.timeline is not None:
            from sparkdl.summary.timeline import Timeline

            hooks.append(Timeline(self.config.timeline))
        summary = sys.modules.get("sparkdl.summary")  # nobody can have called autolog() without it
        if summary is not None:
            hooks += summary.automatic(hooks)
        return hooks

    def _module_to_use(self, module: nn.Module | None) -> nn.Module:
        trained = self.result.module if self.result is not None else self.module
        return trained if module is None else module

    def _spec(self, data: Dataset, module: nn.Module, threads: int = 1) -> FitSpec:
        with _trainable(module, self._unfreezes):
            _check_fits(module, self._layout)
            return FitSpec(
                module=serialize.loads(serialize.dumps(module, "module")) if self._unfreezes else module,
                objective=self.objective,
                rule=self._rule,
                combine=self.config.combine,
                averaging=self.config.averaging is not None,
                layout=self._layout,
                features=data.plan.features,
                label=data.plan.label if self._label is None else self._label,
                weighted=data.plan.weighted,
                transform=data.transform,
                seed=self.config.seed,
                shuffle=self.config.shuffle,
                micro_batch_size=self.config.micro_batch_size,
                threads=threads,
                numerics=self.config.numerics(),
                gradient_codec=codec_of(self.config.gradient_codec),
                weights_codec=self.config.weights_codec,
                inner=self._inner,
                tables=self._tables,
                scanned=self._scanned,
                plan=data.plan,
            )

    @contextmanager
    def _shipped(self, data: Dataset, module: nn.Module) -> Iterator[_Shipped]:
        """Broadcast the fixed part and the module's weights; release everything at the end."""
        store = data.store()
        sc = data.spark.sparkContext
        jobs = FrameJobs(sc)
        partitions = len(store.partitions)
        spec = self._spec(data, module, threads_per_task(store.executors, partitions))
        data_of_spec = serialize.dumps(spec, "the training setup")
        first = FlatModule(serialize.loads(data_of_spec).module, spec.layout)
        broadcast = sc.broadcast(data_of_spec)
        ship: _Shipped | None = None
        under_way: BaseException | None = None
        try:
            profile = task_profile(data.spark, store.executors, partitions)
            cluster = SparkCluster(jobs, profile)
            ship = _Shipped(
                jobs=jobs,
                store=store,
                fit=FitRef(uuid.uuid4().hex, broadcast_id(broadcast)),
                broadcast=broadcast,
                profile=profile,
                cluster=cluster,
                weights=Weights(cluster, first.params.numpy(), first.buffers(), first.counters()),
            )
            yield ship
        except BaseException as error:
            under_way = error
            raise
        finally:
            if session.is_alive(sc):  # the user may have stopped Spark from within
                with unless_under_way(under_way, "The run's data on the executors could not be deleted"):
                    if ship is not None:
                        ship.release_model()
                        for clean_up in ship.cleanups:
                            clean_up()
                    broadcast.destroy()

    def _engine(self, ship: _Shipped) -> Engine:
        config = self.config
        # Options that change all weights in each iteration, or what partitions send.
        dense = config.combine != "mean" or config.averaging is not None or config.local_steps is not None
        wanted = Wanted(
            exchange=config.exchange,
            layout=self._layout,
            reductions=reductions(self._rule, config.combine),
            stateful=self._stateful or config.averaging is not None,
            averaging=config.averaging is not None,
            tables=() if dense else self._tables,
            weights_codec=config.weights_codec,
            num_shards=config.num_slices,
            stragglers=config.drop_stragglers is not None,
        )
        exchange = wanted.choose(ship.jobs.sc, len(ship.store.partitions))
        return Engine(
            cluster=ship.cluster,
            store=ship.store,
            fit=ship.fit,
            fit_broadcast=ship.broadcast,
            route=lambda store, fit: wanted.route(exchange, ship.jobs, store, fit, ship.profile),
            leaves_files=has_error_feedback(codec_of(config.gradient_codec))
            or (self._inner is not None and self._inner.stateful),
            name=f"sparkdl fit {self.name}",
        )

    def _setting(self, store: Store) -> dict[str, Any]:
        config = self.config
        return setting_of(
            self._layout,
            store.rows,
            batch_size=config.batch_size,
            local_steps=config.local.steps if config.local is not None else None,
            seed=config.seed,
            shuffle=config.shuffle,
            optimizer=describe_optimizer(self._rule.optimizer),
            inner_optimizer=describe_optimizer(self._optimizer) if config.local is not None else None,
        )

    def _write_back(self, snapshot: Snapshot) -> nn.Module:
        with _trainable(self.module, self._unfreezes):
            module: nn.Module = serialize.loads(serialize.dumps(self.module, "module"))
        write_back(module, self._layout, snapshot.params, snapshot.buffers, snapshot.counters)
        named = dict(self.module.named_parameters())
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(named[name].requires_grad)
        return module

    def _result(self, run: Run, stopped_by: StoppedBy) -> FitResult:
        current = run.trained_module()
        averaged: nn.Module | None = None
        if self.config.averaging is not None and not isinstance(run.error, KeyboardInterrupt):
            with unless_under_way(run.error, "The averaged weights cannot be fetched any more"):
                averaged = run.trained_module(run.averaged())
        return FitResult(
            module=averaged or current,
            history=run.history,
            state=run.state,
            stopped_by=stopped_by,
            scores=dict(run.scores),
            unaveraged=current if averaged is not None else None,
        )


@dataclass(slots=True, kw_only=True)
class _Shipped:
    """What is on the executors while a Trainer works."""

    jobs: FrameJobs
    store: Store
    fit: FitRef
    broadcast: Any
    profile: JavaObject | None
    cluster: Cluster
    weights: Weights
    release_model: Any = None
    cleanups: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.release_model = self.weights.release

    @contextmanager
    def evaluator(self, config: TrainConfig) -> Iterator[Evaluator]:
        """Make an evaluator for a while."""
        size = config.validation_batch_size
        evaluator = Evaluator(self.jobs, self.fit, self.broadcast, config.metrics, size, self.profile)
        try:
            yield evaluator
        finally:
            if session.is_alive(self.jobs.sc):
                evaluator.release()


@contextmanager
def _trainable(module: nn.Module, patterns: list[str]) -> Iterator[frozenset[str]]:
    """Let parameters that match a pattern be trainable for a while; yield the names of frozen ones."""
    matching = {
        name: parameter
        for name, parameter in module.named_parameters()
        if not parameter.requires_grad and any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    for parameter in matching.values():
        parameter.requires_grad_(True)
    try:
        yield frozenset(matching)
    finally:
        for parameter in matching.values():
            parameter.requires_grad_(False)


def _check_dataset(data: object) -> None:
    if not isinstance(data, Dataset):
        raise ConfigError(
            f"data: found a {type(data).__module__}.{type(data).__name__}, expected a sparkdl Dataset such "
            "as Dataset.from_dataframe(df, features=..., label=...)"
        )
    session.check(data.spark)


def _check_fits(module: nn.Module, layout: ParamLayout) -> None:
    """Check that a module is like the one that the layout was made of."""
    own = layout_of(module)
    known = {t.name for t in (*layout.buffers, *layout.counters)}  # a forward pass may have made others
    found = [*own.params, *(t for t in (*own.buffers, *own.counters) if t.name in known)]
    expected = [*layout.params, *layout.buffers, *layout.counters]
    for here, there in zip_longest(found, expected):
        if here is None or there is None or (here.name, here.shape) != (there.name, there.shape):
            raise ModelError(
                f"{type(module).__name__} is not like the module that the Trainer was made with: found "
                f"{_say(here)} where {_say(there)} was expected; names, shapes, requires_grad must agree"
            )


def _say(tensor: TensorSpec | None) -> str:
    return f"{tensor.name}{list(tensor.shape)}" if tensor else "nothing"


def _objective(loss: Loss | None, step: Step | None) -> Objective:
    if (loss is None) == (step is None):
        raise ConfigError(
            "give either loss=, a callable loss(output, label), or step=, a callable step(module, batch)"
        )
    name, given = ("loss", loss) if step is None else ("step", step)
    if isinstance(given, type) and issubclass(given, nn.Module):
        raise ConfigError(f"{name}={given.__name__} is a class; did you mean {name}={given.__name__}()?")
    if not callable(given):
        raise ConfigError(f"{name}={given!r:.100}: expected a callable")
    return LossObjective(loss) if loss is not None else StepObjective(step)  # type: ignore[arg-type]


def _with_schedule(config: TrainConfig, schedule: LightningSchedule | None) -> TrainConfig:
    """Take over a LightningModule's schedule, unless the user gave another."""
    if schedule is None or config.schedule is not None:
        return config
    if schedule.frequency != 1:
        raise ConfigError(
            f"configure_optimizers: a schedule of frequency {schedule.frequency} is not supported; step it "
            "every epoch or iteration"
        )
    if schedule.monitor is not None:
        return replace(config, schedule=schedule.factory, monitor=config.monitor or schedule.monitor)
    wrap = PerIteration if schedule.interval == "step" else PerEpoch
    return replace(config, schedule=wrap(schedule.factory))


def _configure(config: TrainConfig, options: Mapping[str, Any]) -> TrainConfig:
    try:
        return replace(config, **options)
    except TypeError:
        known = ", ".join(TrainConfig.__slots__)
        unknown = ", ".join(sorted(set(options) - set(TrainConfig.__slots__)))
        raise ConfigError(f"unknown option {unknown}; expected one of {known}") from None
