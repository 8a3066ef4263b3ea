"""A fit from its arguments to its end: what is checked, what is shipped, and the loop that runs."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from torch import nn

from sparkdl.allreduce.state import ModelState
from sparkdl.data.dataset import Dataset
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.epochs import Epochs
from sparkdl.train.given import scheduled
from sparkdl.train.history import History
from sparkdl.train.hooks.checkpoint import Resume, find_resume_point, of_attempt
from sparkdl.train.hooks.of_run import hooks_of
from sparkdl.train.interrupt import interruptible
from sparkdl.train.leaving import ErrorsCarryResult, result_of, unless_under_way
from sparkdl.train.loop import Loop
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.passes.dry_run import dry_run
from sparkdl.train.passes.validation import Validation, check_validation, validation_sets
from sparkdl.train.passes.validator import Validator
from sparkdl.train.passes.weights import check_monitored, check_weights
from sparkdl.train.recipe import Recipe
from sparkdl.train.result import StoppedBy
from sparkdl.train.run import Run
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

    def run(self, validation: Validation, resume: Resume, rows: str, kept: ErrorsCarryResult) -> None:
        """Check what is given, ship it and train; ``kept`` gets the result, whatever ends the run."""
        recipe, data, config = self.recipe, self.data, self.config
        label = data.plan.label
        sets = validation_sets(validation)
        recipe.wanted().check(data.access)
        tried = dry_run(recipe.spec(data, self.module, label), data)
        recipe = recipe.moving(tried.moving)
        monitor = check_validation(config, tried.shipped, sets)
        schedule = scheduled(recipe.optimizer, config.schedule, monitor)
        hooks = hooks_of(config, self.name)
        resume, rows = of_attempt(resume, rows, hooks)
        point = find_resume_point(resume, hooks)

        with (
            shipped(recipe, data, self.module, label) as ship,
            ship.evaluator(config) if sets else nullcontext() as evaluator,
        ):
            check_weights(ship.access, data)
            check_monitored(ship.access, monitor, sets)
            epochs = Epochs(data)
            if point is not None:
                point = point.on_new_rows(sum(epochs.store.rows)) if rows == "new" else point
                point.check(recipe.setting(epochs.store.partitions))
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
                setting=lambda: recipe.setting(epochs.store.partitions),
            )
            run.follow(loop)
            ship.release_model = loop.release
            train_to_the_end(loop, point, kept)

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


def train_to_the_end(loop: Loop, point: ResumePoint | None, kept: ErrorsCarryResult) -> None:
    """Train, and keep what has come of it, whatever ends the run."""
    run = loop.run
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
                    kept.result = result_of(run, stopped_by)
