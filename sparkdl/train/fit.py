"""A fit of a Dataset to its end: what is checked and shipped, the loop that runs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from torch import nn

from sparkdl.allreduce.state import ModelState
from sparkdl.compute.spec import FitSpec
from sparkdl.data.dataset import Dataset
from sparkdl.data.given import Validation
from sparkdl.exceptions import ConfigError, SparkdlWarning
from sparkdl.optim.spec import OptimizerSpec
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.groups import Epochs
from sparkdl.train.history import History
from sparkdl.train.hooks.callbacks import EarlyStopping
from sparkdl.train.hooks.checkpoint import Resume, find_resume_point, of_attempt
from sparkdl.train.hooks.of_run import hooks_of
from sparkdl.train.interrupt import interruptible
from sparkdl.train.keyed import keyed_groups
from sparkdl.train.leaving import ErrorsCarryResult, result_of, unless_under_way
from sparkdl.train.loop import Loop
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.options.elastic import Elastic
from sparkdl.train.passes.dry_run import dry_run
from sparkdl.train.passes.validation import (
    Monitor,
    Validator,
    check_validation,
    check_weights,
    validation_sets,
)
from sparkdl.train.recipe import Recipe
from sparkdl.train.result import StoppedBy
from sparkdl.train.run import Run
from sparkdl.train.scheduled import ScheduledHyper
from sparkdl.train.shipped import shipped
from sparkdl.train.state import TrainState


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One fit, as its Trainer begins it."""

    recipe: Recipe
    name: str
    config: TrainConfig
    module: nn.Module
    data: Dataset

    def run(self, validation: Validation, resume: Resume, rows: str, carrier: ErrorsCarryResult) -> None:
        """Check what is given, ship it and train; ``carrier`` gets the result, whatever ends the run."""
        recipe, data, config = self.recipe, self.data, self.config
        data.access.check()
        _check_rows(rows, resume)
        _check_elastic(config, data)
        sets = validation_sets(validation)
        recipe.wanted().check(data.access)
        tried = dry_run(self._spec(recipe), data)
        recipe = recipe.moving(tried.moving)
        monitor = check_validation(config, tried.shipped, sets)
        tables = keyed_groups(recipe.keyed, recipe.layout)
        schedule = scheduled_hyper(recipe.optimizer, config, monitor, tables)
        hooks = hooks_of(config, self.name)
        if monitor is None and any(isinstance(hook, EarlyStopping) for hook in hooks):
            _warn("EarlyStopping: without validation it stops nothing; give fit(data, validation=...)")
        resume, rows = of_attempt(resume, rows, hooks)
        point = find_resume_point(resume, hooks)

        with (
            shipped(data.access, data.store(), self._spec(recipe)) as ship,
            ship.evaluator(config) if sets else nullcontext() as evaluator,
        ):
            check_weights(data, monitor, sets)
            epochs = Epochs(data)
            if point is not None:
                point = point.on_new_rows(sum(epochs.store.rows)) if rows == "new" else point
                point.check(recipe.setting(epochs.store.partitions, data.plan))
                point.check_rows(recipe.begun_rows())
            run = self._seen_by_hooks(
                recipe, epochs, f"{monitor.set}/{monitor.score}" if monitor is not None else ""
            )
            loop = Loop(
                run=run,
                engine=ship.engine(recipe, self.name),
                model=ModelState(ship.weights),
                epochs=epochs,
                schedule=schedule,
                validator=Validator(run, evaluator, sets, monitor, schedule),
                hooks=hooks,
                setting=lambda: recipe.setting(epochs.store.partitions, data.plan),
            )
            run.follow(loop)
            ship.release_model = loop.release
            train_to_the_end(loop, point, carrier)

    def _spec(self, recipe: Recipe) -> FitSpec:
        return recipe.spec(self.data.plan, self.module, self.data.transform, self.data.collate)

    def _seen_by_hooks(self, recipe: Recipe, epochs: Epochs, monitored: str) -> Run:
        config = self.config
        return Run(
            name=self.name,
            config=config,
            module=self.module,
            data=self.data,
            optimizer=recipe.optimizer,
            objective=recipe.objective,
            layout=recipe.layout,
            steps=epochs.steps(config.rows_per_iteration(config.batch_size, 0)),
            history=History(),
            previous=TrainState(),
            state=TrainState(),
            frozen=recipe.frozen,
            monitored=monitored,
            _write_back=recipe.write_back,
        )


def _check_rows(rows: object, resume: object) -> None:
    if rows not in ("same", "new"):
        raise ConfigError(f"rows={rows!r:.100}: expected 'same' or 'new'")
    if rows == "new" and resume is False:
        raise ConfigError(
            "rows='new' goes on from a checkpoint with other rows; say from which: resume=True for the "
            "newest of the Checkpoint hook, or resume=path",
            code="config-resume",
        )


def _check_elastic(config: TrainConfig, data: Dataset) -> None:
    """Check that the partitions of a Dataset can follow the cluster, if they are to."""
    if config.elastic is None:
        return
    if data.num_partitions is not None:
        raise ConfigError(
            f"elastic: the Dataset was made with num_partitions={data.num_partitions!r}; leave it out to "
            "let its partitions follow the cluster"
        )
    if not data.access.tells_executors:
        raise ConfigError(
            "elastic: a Spark Connect session does not tell which executors come and go; leave it out, "
            "or fit in a classic session",
            code="config-connect",
        )
    rules = Elastic.of(config.elastic)
    if rules is not None and rules.asks and data.access.conf("spark.dynamicAllocation.enabled") == "true":
        raise ConfigError(
            "elastic='plan' with spark.dynamicAllocation.enabled=true: Spark would undo what the run asks "
            "for; turn dynamic allocation off, or take elastic=Elastic() to follow it",
            code="config-cluster",
        )


def scheduled_hyper(
    optimizer: OptimizerSpec,
    config: TrainConfig,
    monitor: Monitor | None,
    tables: Mapping[str, int] | None = None,
) -> ScheduledHyper:
    """Return hyper-parameters as they will change in a run with this monitored score."""
    better = monitor is not None and monitor.higher_is_better
    hyper = ScheduledHyper(optimizer, config.schedule, higher_is_better=better, tables=tables)
    if hyper.needs_validation and monitor is None:
        raise ConfigError("schedule: ReduceLROnPlateau needs validation scores: give fit(data, validation=)")
    if monitor is not None and better and "min" in hyper.modes:
        raise ConfigError(
            f"schedule: ReduceLROnPlateau has mode='min', its default, but larger {monitor.score!r} is "
            "better: say mode='max', or give its class or a partial, which follow the score"
        )
    return hyper


def train_to_the_end(loop: Loop, point: ResumePoint | None, carrier: ErrorsCarryResult) -> None:
    """Train, and keep what has come of it, whatever ends the run."""
    run = loop.run
    stopped_by: StoppedBy = "error"
    with interruptible() as interrupted:
        try:
            if point is not None:
                loop.resume(point)
            stopped_by = loop.train(interrupted)
            if stopped_by == "end_when":  # a hook, such as a search's, may have ended it early
                for message in loop.left_out():
                    _warn(message)
        except BaseException as error:
            run.error = error
            stopped_by = "interrupt" if isinstance(error, KeyboardInterrupt) else "error"
            raise
        finally:  # what was trained is not lost because a hook fails at the very end
            try:
                loop.end()
            finally:
                with unless_under_way(run.error, "The last weights cannot be fetched any more"):
                    carrier.result = result_of(run, stopped_by)


def _warn(message: str) -> None:
    warnings.warn(SparkdlWarning(message, code="config"), stacklevel=4)
