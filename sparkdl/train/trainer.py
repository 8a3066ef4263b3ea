"""The Trainer: what it is made of and given; a fit itself is in :mod:`sparkdl.train.fit`."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from torch import nn

from sparkdl.data.collate import Collate
from sparkdl.data.columns import ColumnLike, Columns, Structure
from sparkdl.data.dataset import Dataset
from sparkdl.data.given import Chosen, Validation, dataset_of, datasets_of
from sparkdl.exceptions import ConfigError, integer_option
from sparkdl.nn import serialize, shown
from sparkdl.nn.lightning import from_lightning
from sparkdl.nn.objective import Loss, Objective, Step
from sparkdl.optim.spec import Optimizers, check_unscheduled
from sparkdl.train.fit import Fit
from sparkdl.train.given import configure, objective_of, with_schedule
from sparkdl.train.hooks.checkpoint import Resume
from sparkdl.train.interrupt import at_once
from sparkdl.train.leaving import ErrorsCarryResult
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.passes.predict import run_prediction
from sparkdl.train.planning.asked import answer
from sparkdl.train.planning.request import take
from sparkdl.train.recipe import Recipe, is_frozen
from sparkdl.train.result import FitResult
from sparkdl.train.scheduled import ScheduledHyper
from sparkdl.train.shipped import shipped
from sparkdl.train.shown import trainer as trainer_html

if TYPE_CHECKING:
    from sparkdl.metrics import Metrics


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
            schedule. A model of ``transformers`` or ``peft`` has a loss of its own, too.
        optimizer: factory such as ``partial(torch.optim.Adam, lr=1e-3)``, an optimizer over
            ``module.parameters()``, or a dict from patterns of parameter names to factories. Any
            optimizer works whose ``step()`` needs no closure.
        config: options as one object; keyword options replace its fields.
        **options: fields of :class:`TrainConfig`. The run:

            - ``batch_size``: rows per iteration over all executors (32);
            - ``seed``: everything random derives from it (0);
            - ``end_when``: trigger that ends the run (``MaxEpoch(1)``);
            - ``shuffle``: whether each epoch has a fresh permutation (True);
            - ``hooks``: methods that the run calls at its turning points, see :class:`Hook`;
            - ``timeline``: path or URL of a Chrome trace of the first 100 iterations, for Perfetto; for
              others put a :class:`sparkdl.summary.Timeline` among the hooks;
            - ``commit_every``: iterations until the optimizer's state is copied to the driver again, at the
              end of the job that they are in, for when executors take both of their copies with them (what
              3 % of the time allows); 0 for none;
            - ``max_failures``: iterations that may fail within ``failure_window`` seconds (5 in 600)
              and run again before the run ends;
            - ``elastic``: :class:`Elastic` to follow the number of executors, or ``"plan"`` to ask for as
              many as pay, too (None: the partitions stay as they are);
            - ``drop_stragglers``: :class:`DropStragglers` to leave rows of slow tasks out, with two jobs for
              each iteration (None);
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
              weights going through the driver. ``"auto"`` takes replicated for up to 8 MiB of gradients of
              all partitions (32 by shuffles) and for large tables, sharded above, and driver in sessions that
              lack the confs;
            - ``transport``: how messages travel within a job: ``"direct"`` between its tasks (``"auto"``),
              with shuffles where that cannot be, or by ``"shuffle"``; the result does not depend on it;
            - ``iterations_per_job``: how many iterations are one Spark job, unless through the driver (as
              many as take some seconds, or a minute where starting a job is slow); no result depends on it;
            - ``num_shards``: parameter-sync tasks, with ``exchange="driver"`` (one per partition);
            - ``gradient_codec``: how gradients travel: ``"fp32"``, ``"bf16"``, ``"fp16"``, ``"int8"`` or
              :class:`Int8`, or :class:`TopK`; they are summed in full;
            - ``weights_codec``: how weights travel with ``exchange="sharded"``: ``"fp32"``, ``"bf16"`` or
              ``"fp16"``; the owners of shards keep them in full;
            - ``local_steps``: how many steps each partition takes by itself between two exchanges, or
              :class:`LocalSteps` (None: gradients are exchanged in each step);
            - ``staleness``: :class:`sparkdl.optim.Staleness`: gradients of some partitions come one update
              late, as in asynchronous training, by a schedule that follows from a seed (None).

            Validation:

            - ``metrics``: ``torchmetrics`` metrics, one, a list, or a dict by name;
            - ``validate_when``: trigger (``EveryEpoch()``);
            - ``monitor``: score that triggers and schedules look at, ``"val/accuracy"`` (the first
              metric on the first set); ``monitor_mode``: ``"max"`` or ``"min"`` (the metric knows);
              ``min_delta``: least improvement that counts (0);
            - ``validation_batch_size``: rows per forward pass.

            The workers:

            - ``micro_batch_size``: rows per forward pass, to save memory (all at once);
            - ``row_memory``: bytes of memory of each process for tables of embedding variables, with their
              index and optimizer state; what is not used often is in files then (all in memory);
            - ``precision``: ``"fp32"`` or ``"bf16"`` autocast;
            - ``compile``: ``torch.compile`` the module (False), or a dict of its options;
            - ``channels_last``: memory format of images (False);
            - ``checkpoint_activations``: patterns of submodules whose activations are computed again
              in the backward pass, to save memory.

    Attributes:
        config: the options.
        module: the module as it was given.
        objective: the loss.
        result: the result of the last ``fit``, also of one that failed; ``None`` before.

    Raises:
        ConfigError: if an option cannot work.
        ModelError: if the module's parameters cannot be trained.
        OptimizerError: if the optimizer cannot be trained with.
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
        config = configure(config, options)
        lightning = from_lightning(module) if loss is None and step is None else None
        if lightning is not None and optimizer is None:
            # Its schedule is that of its own optimizer, and would bring the learning rates of that one.
            optimizer, config = lightning.optimizer, with_schedule(config, lightning.schedule)
        if optimizer is None:
            raise ConfigError("optimizer=None: expected a factory such as partial(torch.optim.Adam, lr=1e-3)")
        self.config = config
        self.module = module
        self.objective: Objective = (
            lightning.objective if lightning is not None else objective_of(loss, step, module)
        )
        self.result: FitResult | None = None
        self._optimizer = optimizer
        self._recipe = self._made()
        self._label: Structure | None = None
        self._chosen: Chosen | None = None  # columns of the DataFrame that was trained on
        self.name = config.name or type(module).__name__

    def fit(
        self,
        data: Any,
        validation: Any = None,
        *,
        features: Columns | None = None,
        label: Columns | None = None,
        weight: ColumnLike | None = None,
        collate: Collate | None = None,
        resume: Resume = False,
        rows: Literal["same", "new"] = "same",
    ) -> FitResult:
        """Train until ``end_when`` fires, a hook stops the run, or Ctrl-C is pressed.

        Args:
            data: the rows to train on: a :class:`Dataset`, whose store is built if it is not yet; or a
                DataFrame of Spark or pandas, of which the fit makes a Dataset for as long as it runs.
            validation: a Dataset or DataFrame to evaluate at every ``validate_when``, or several by name; or
                the share of the rows that is held out for that, such as ``0.1``. The same seed and rows give
                the same share. Of a Spark DataFrame equal rows stay together; of a Dataset with a store it is
                a share of each partition.
            features: columns of a DataFrame, as in :meth:`Dataset.from_dataframe`; only for DataFrames.
            label: likewise, for the loss.
            weight: likewise, for sample weights.
            collate: likewise, for rows of different lengths, such as ``sparkdl.data.Pad()``.
            resume: ``True`` to go on from the newest sound checkpoint of the :class:`Checkpoint` hook, or
                from the beginning without one; or the path of a checkpoint, or what was read of one. The run
                ends with the same bits as if it had never stopped. Under ``submit --retries`` a driver
                goes on from the checkpoints of the one before, whatever is said here.
            rows: ``"new"`` to go on from a checkpoint with other rows than it was written with: with weights,
                the optimizer's state, schedule and counters. The epoch of the old rows ends, with an entry in
                ``history.new_rows``; ``end_when`` counts from there; hooks begin anew.

        Returns:
            The trained copy of the module and the history.

        Raises:
            DataError: if a column or row cannot become a tensor.
            ModelError: if the module or a metric cannot process the rows.
            ConfigError: if an option does not fit the data.
            NonFiniteError: if the loss or a gradient becomes NaN or infinite.
            TaskError: if a task keeps failing.

        Every exception that leaves a run, also one of a hook or a second Ctrl-C, has a ``result``: the
        :class:`FitResult` of the last completed iteration.
        """
        given = Chosen(features, label, weight, collate)
        with (
            ErrorsCarryResult() as carrier,
            datasets_of(data, validation, given, self.config.seed, self.module, for_one_fit=True) as made,
        ):
            dataset, sets, chosen = made
            self._recipe.check_trains()
            if (request := take()) is not None:  # of `sparkdl plan` or `sparkdl profile`
                answer(request, self, dataset)
            self._chosen = chosen
            return self._fit(dataset, sets, resume, rows, carrier)

    def _fit(
        self, data: Dataset, validation: Validation, resume: Resume, rows: str, carrier: ErrorsCarryResult
    ) -> FitResult:
        self._label = data.plan.label
        fit = Fit(recipe=self._recipe, name=self.name, config=self.config, module=self.module, data=data)
        try:
            with at_once():
                fit.run(validation, resume, rows, carrier)
        finally:
            self.result = carrier.result or self.result
        assert self.result is not None  # it has ended, without an error
        return self.result

    def evaluate(
        self,
        data: Any,
        metrics: Metrics | None = None,
        *,
        module: nn.Module | None = None,
        features: Columns | None = None,
        label: Columns | None = None,
        weight: ColumnLike | None = None,
    ) -> dict[str, float]:
        """Compute loss and metrics over all rows of a Dataset or DataFrame, as a Spark job.

        Args:
            data: the rows: a :class:`Dataset`, or a DataFrame of Spark or pandas.
            metrics: as the option of that name, which is the default.
            module: whose weights to evaluate; by default what the last ``fit`` trained, before that
                the module itself. It may be frozen.
            features: columns of a DataFrame, as in :meth:`fit`. If no columns are named, those that the last
                ``fit`` of a DataFrame read. Its ``collate`` makes the batches, whatever they are.
            label: likewise, for the loss.
            weight: likewise, for sample weights.

        Returns:
            Value by score; ``"loss"`` among them if the rows have the label that it needs.

        Raises:
            ConfigError: if something is no metric.
            DataError: if a column or row cannot become a tensor.
            ModelError: if the module or a metric cannot process the rows.
            TaskError: if a task keeps failing.
        """
        from sparkdl.train.passes.evaluate import check_metrics

        module, recipe = self._to_use(module)
        metrics = self.config.metrics if metrics is None else metrics
        config = replace(self.config, metrics=metrics)
        chosen = Chosen(features, label, weight).collated_as(self._chosen)
        with dataset_of(data, chosen, self._chosen, "evaluate", module) as rows:
            spec = recipe.spec(rows.plan, module, rows.transform, rows.collate, self._label)
            check_metrics(serialize.dumps(spec, "the evaluation"), rows, metrics)
            with shipped(rows.access, rows.store(), spec) as ship, ship.evaluator(config) as evaluator:
                return evaluator.run(rows, ship.weights.publish(), f"sparkdl evaluate {self.name}")

    def predict(
        self,
        data: Any,
        *,
        module: nn.Module | None = None,
        batch_size: int | None = None,
        features: Columns | None = None,
    ) -> Any:
        """Return the module's output for all rows, as numpy arrays in the order of the source.

        Args:
            data: the rows, a :class:`Dataset` or DataFrame; a label is not needed. Those of a DataFrame come
                in the order of ``df.collect()``, if that is always the same.
            module: whose weights to use, as in :meth:`evaluate`.
            batch_size: rows per forward pass.
            features: columns of a DataFrame, as in :meth:`evaluate`.

        Returns:
            An array whose first dimension counts rows, or a tuple or dict of arrays if the module
            returns one. The whole output is held on the driver.

        Raises:
            DataError: if a column or row cannot become a tensor.
            ModelError: if the module cannot process the rows.
            TaskError: if a task keeps failing.
        """
        size = self.config.validation_batch_size
        if batch_size is not None:
            size = integer_option("predict", "batch_size", batch_size, 1)
        module, recipe = self._to_use(module)
        last = None if self._chosen is None else self._chosen.unlabelled(getattr(data, "columns", ()))
        chosen = Chosen(features) if last is None or features is None else replace(last, features=features)
        with (
            dataset_of(data, chosen, last, "predict", module) as rows,
            shipped(
                rows.access,
                rows.store(),
                recipe.spec(rows.plan, module, rows.transform, rows.collate, self._label),
            ) as ship,
        ):
            weights, job = ship.weights.publish(), f"sparkdl predict {self.name}"
            return run_prediction(ship.access, ship.fit, ship.sent, rows, weights, job, size, ship.profile)

    def _given(
        self, data: Any, features: Columns | None, label: Columns | None, weight: ColumnLike | None
    ) -> AbstractContextManager[Dataset]:
        """Make a Dataset of what a fit would be given, for as long as the block runs."""
        return dataset_of(data, Chosen(features, label, weight), None, "fit", self.module)

    def with_options(self, module: nn.Module | None = None, **options: Any) -> Self:
        """Return a Trainer with other options, which has not trained yet.

        Args:
            module: other weights to begin with, in a module like this one's; by default as it was given.
            **options: replace those of this Trainer.

        Raises:
            ConfigError: if an option cannot work.
            ModelError: if the module's parameters cannot be trained.
            OptimizerError: if the optimizer cannot be applied to the module, such as one that was made of the
                parameters of another module.
        """
        other = copy.copy(self)
        other.config = configure(self.config, options)
        other.module = self.module if module is None else module
        other._recipe = other._made()
        other.result, other._label, other._chosen = None, None, None
        other.name = other.config.name or self.name
        return other

    def _made(self) -> Recipe:
        """Return the recipe of module, loss, optimizer and options; a schedule is tried."""
        recipe = Recipe.of(self.module, self.objective, self._optimizer, self.config)
        if self.config.schedule is None and recipe.trains:
            check_unscheduled(self._optimizer, recipe.optimizer)
        ScheduledHyper(recipe.optimizer, self.config.schedule)  # one that cannot be built is told now
        return recipe

    def __repr__(self) -> str:
        return f"Trainer({self.name}, {shown.size(self.module)} parameters)"

    def _repr_html_(self) -> str:
        return trainer_html(self.name, self.module, self._recipe.optimizer, self.config)

    def _to_use(self, module: nn.Module | None) -> tuple[nn.Module, Recipe]:
        """Return the module whose weights to use, and the recipe that suits it."""
        if module is None:
            return self.result.module if self.result is not None else self.module, self._recipe
        if not is_frozen(module, self._recipe.unfreezes):
            return module, self._recipe
        return module, Recipe.of(module, self.objective, {}, self.config)
