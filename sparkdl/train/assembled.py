"""Puts a run together: the loop, and what its hooks see of it; and runs it to its end, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from sparkdl.allreduce.state import ModelState
from sparkdl.data.dataset import Dataset
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.epochs import Epochs
from sparkdl.train.history import History
from sparkdl.train.hooks.base import Hook
from sparkdl.train.interrupt import interruptible
from sparkdl.train.leaving import ErrorsCarryResult, result_of, unless_under_way
from sparkdl.train.loop import Loop
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.passes.validation import Monitor
from sparkdl.train.passes.validator import Validator
from sparkdl.train.recipe import Recipe
from sparkdl.train.result import StoppedBy
from sparkdl.train.run import Run
from sparkdl.train.scheduled import ScheduledHyper
from sparkdl.train.shipped import Shipped
from sparkdl.train.state import TrainState


def loop_of_run(
    ship: Shipped,
    recipe: Recipe,
    epochs: Epochs,
    *,
    name: str,
    config: TrainConfig,
    module: nn.Module,
    data: Dataset,
    monitor: Monitor | None,
    schedule: ScheduledHyper,
    validator: Callable[[Run], Validator],
    hooks: Sequence[Hook],
) -> Loop:
    """Return the loop of a run that is about to begin.

    Args:
        ship: what is on the executors; releases the loop's model at its end.
        recipe: what to train, and how.
        epochs: the rows.
        name: name of the run.
        config: the options.
        module: the caller's module.
        data: the rows as the caller gave them.
        monitor: the score that triggers and schedules look at.
        schedule: hyper-parameters as they change.
        validator: makes what evaluates validation sets for a run.
        hooks: in the order in which they are called.

    Raises:
        ConfigError: if the exchange that is wanted does not suit session or model.
    """
    run = Run(
        name=name,
        config=config,
        module=module,
        data=data,
        layout=recipe.layout,
        steps=epochs.steps(config.rows_per_iteration(config.batch_size, 0)),
        history=History(),
        previous=TrainState(),
        state=TrainState(),
        frozen=recipe.frozen,
        monitored=f"{monitor.set}/{monitor.score}" if monitor is not None else "",
        # Hooks ask these only while the loop runs, which needs the run first.
        _current=lambda: loop.current(),
        _average=lambda: loop.averaged(),
        _rows=lambda: loop.rows(),
        _point=lambda with_state, since: loop.point(with_state, since),
        _write_shards=lambda folder, since: loop.write_shards(folder, since),
        _write_back=recipe.write_back,
    )
    loop = Loop(
        run=run,
        engine=ship.engine(recipe, name),
        model=ModelState(ship.weights),
        epochs=epochs,
        schedule=schedule,
        validator=validator(run),
        hooks=hooks,
        setting=lambda: recipe.setting(epochs.store.rows),
    )
    ship.release_model = loop.release
    return loop


def train_to_the_end(loop: Loop, point: ResumePoint | None, kept: ErrorsCarryResult) -> None:
    """Train, and keep what has come of it, whatever ends the run.

    Args:
        loop: of the run.
        point: where to begin; ``None`` for the beginning.
        kept: gets the result.
    """
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
