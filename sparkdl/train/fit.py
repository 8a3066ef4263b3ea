"""A fit from its arguments to its end: Datasets of them, what is checked and shipped, the loop that runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sparkdl.allreduce.state import ModelState
from sparkdl.data import sparse
from sparkdl.data.collate import Collate, Pad
from sparkdl.data.columns import Column, ColumnLike, Columns, quoted, structure_of
from sparkdl.data.dataset import Dataset
from sparkdl.data.schema import is_frame, is_pandas, vector_columns
from sparkdl.data.shares import check_share, share_of, shares_of, split_by_fraction, split_pandas
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.hf.outputs import takes_by_name
from sparkdl.optim.spec import OptimizerSpec
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.groups import Epochs
from sparkdl.train.history import History
from sparkdl.train.hooks.checkpoint import Resume, find_resume_point, of_attempt
from sparkdl.train.hooks.of_run import hooks_of
from sparkdl.train.interrupt import interruptible
from sparkdl.train.leaving import ErrorsCarryResult, result_of, unless_under_way
from sparkdl.train.loop import Loop
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.options.elastic import Elastic
from sparkdl.train.passes.dry_run import dry_run
from sparkdl.train.passes.validation import Monitor, Validation, check_validation, validation_sets
from sparkdl.train.passes.validator import Validator
from sparkdl.train.passes.weights import check_weights
from sparkdl.train.recipe import Recipe
from sparkdl.train.result import StoppedBy
from sparkdl.train.run import Run
from sparkdl.train.scheduled import ScheduledHyper
from sparkdl.train.shipped import shipped
from sparkdl.train.state import TrainState

_ROLES = ("features", "label", "weight")


# -- Datasets of its arguments ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chosen:
    """The columns of DataFrames that are trained on; see :meth:`sparkdl.Dataset.from_dataframe`."""

    features: Columns | None
    label: Columns | None
    weight: ColumnLike | None
    collate: Collate | None
    of_frame: bool  # whether the rows that they were chosen for are a DataFrame

    @classmethod
    def of(
        cls,
        data: object,
        features: Columns | None,
        label: Columns | None = None,
        weight: ColumnLike | None = None,
        collate: Collate | None = None,
        *,
        module: nn.Module | None = None,
    ) -> Chosen:
        """Return what was chosen for some rows, of DataFrames as a module takes it."""
        of_frame = is_frame(data)
        if of_frame and module is not None and features is not None:
            features = _as_taken(features, module, data)
        return cls(features, label, weight, collate, of_frame)

    def given(self) -> list[str]:
        """Return the names of the arguments that were given."""
        return [name for name in (*_ROLES, "collate") if getattr(self, name) is not None]

    def names(self) -> list[str]:
        """Return the names of the columns, each once."""
        found: list[str] = []
        for role in _ROLES:
            value = getattr(self, role)
            for chosen in structure_of(value, role).disassemble(value).values():
                found.append(chosen.name if isinstance(chosen, Column) else chosen)
        return list(dict.fromkeys(found))

    def dataset(self, df: Any) -> Dataset:
        """Return these columns of a DataFrame."""
        assert self.features is not None
        return Dataset.from_dataframe(
            df, features=self.features, label=self.label, weight=self.weight, collate=self.collate
        )

    def unlabelled(self, df: Any) -> Chosen:
        """Return the features alone; and the label, if ``collate`` may want it and the DataFrame has it."""
        found = replace(self, features=None, weight=None).names()
        if self.collate is not None and set(found) <= set(getattr(df, "columns", ())):
            return replace(self, weight=None)
        collate = self.collate
        collate = replace(collate, has_label=False) if isinstance(collate, Pad) else collate
        return replace(self, label=None, weight=None, collate=collate)


def _as_taken(features: Columns, module: nn.Module, df: Any) -> Columns:
    """Return features columns as a module takes them.

    By argument for a model of Hugging Face whose arguments have their names; sparse for a module that takes
    indices and values.
    """
    features = sparse.where_taken(features, module, vector_columns(df))
    if isinstance(features, str | Column) or not isinstance(features, Sequence):
        return features
    names = [column.name if isinstance(column, Column) else column for column in features]
    return dict(zip(names, features, strict=True)) if takes_by_name(module, names) else features


@contextmanager
def dataset_of(data: Any, chosen: Chosen, last: Chosen | None, method: str) -> Iterator[Dataset]:
    """Make a Dataset of a DataFrame for as long as the block runs; a Dataset stays what it is.

    Raises ConfigError if it is neither, or columns are missing or given for a Dataset; DataError if a column
    cannot become a tensor.
    """
    if not chosen.of_frame:
        check_none_chosen(chosen)
        check_dataset(data, method)
        yield data
        return
    found = chosen if chosen.given() or last is None else last
    check_features(found, method)
    with found.dataset(data) as dataset:
        check_dataset(dataset, method)
        yield dataset


@contextmanager
def datasets_of(
    data: Any, validation: Any, chosen: Chosen, seed: int, validated: Chosen | None = None
) -> Iterator[tuple[Dataset, Validation]]:
    """Make Datasets of DataFrames for as long as the block runs; Datasets stay what they are.

    ``validation`` is Datasets or DataFrames, one or several by name, or the share of ``data`` that is kept
    for it, its rows chosen by ``seed``; ``validated`` are other columns to validate on. Raises ConfigError
    for wrong columns or a share that is none, DataError if a column is no tensor, or a share holds no row.
    """
    with ExitStack() as stack:
        if isinstance(validation, float | int):
            if isinstance(data, Dataset):
                data, validation = stack.enter_context(shares_of(data, share_of(validation, seed)))
            else:
                data, validation = _split(data, validation, chosen, seed)
        several = validation if isinstance(validation, Mapping) else {"": validation}
        if chosen.of_frame or any(map(is_frame, several.values())):
            check_features(chosen, "fit")
        else:
            check_none_chosen(chosen)
        if chosen.of_frame:
            data = stack.enter_context(chosen.dataset(data))
        check_dataset(data)
        sets: Any = {
            name: stack.enter_context((validated or chosen).dataset(one)) if is_frame(one) else one
            for name, one in several.items()
        }
        yield data, sets if isinstance(validation, Mapping) else sets[""]


def check_dataset(data: object, method: str = "fit") -> None:
    """Check that something is a Dataset, whose session can run jobs."""
    if not isinstance(data, Dataset):
        raise ConfigError(
            f"data: found a {type(data).__module__}.{type(data).__name__}, expected a sparkdl Dataset such "
            f"as Dataset.from_dataframe(df, features=..., label=...); {method} takes a DataFrame as well, "
            "with features= and label="
        )
    data.access.check()


def check_features(chosen: Chosen, method: str) -> None:
    """Check that columns of a DataFrame are named."""
    if chosen.features is None:
        raise ConfigError(
            f"features=None: a DataFrame needs the names of its columns: {method}(df, features=..., "
            "label=...)"
        )


def check_none_chosen(chosen: Chosen) -> None:
    """Check that no columns are named, for there is no DataFrame."""
    if chosen.given():
        raise ConfigError(
            f"{chosen.given()[0]}=...: a Dataset knows its columns; give them with a DataFrame only"
        )


def _split(data: Any, fraction: Any, chosen: Chosen, seed: int) -> tuple[Any, Any]:
    """Split a DataFrame into rows for training and rows for validation."""
    check_share(fraction)
    if chosen.features is None:  # the error about columns comes next
        return data, None
    chosen.dataset(data)  # checks columns
    if is_pandas(data):
        parts = split_pandas(data[chosen.names()], fraction, seed)
    else:
        parts = split_by_fraction(data.select(*map(quoted, chosen.names())), fraction, seed)
    for what, part in zip(("training", "validation"), parts, strict=True):
        if part.empty if is_pandas(part) else part.isEmpty():
            raise DataError(
                f"validation={fraction!r}: no row is left for {what}; choose another share, or give "
                "fit(df, validation=other_df)",
                code="data-empty",
            )
    return parts


# -- the fit -------------------------------------------------------------------------------------


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
        _check_rows(rows, resume)
        _check_elastic(config, data)
        sets = validation_sets(validation)
        recipe.wanted().check(data.access)
        tried = dry_run(recipe.spec(data, self.module), data)
        recipe = recipe.moving(tried.moving)
        monitor = check_validation(config, tried.shipped, sets)
        schedule = scheduled_hyper(recipe.optimizer, config, monitor)
        hooks = hooks_of(config, self.name)
        resume, rows = of_attempt(resume, rows, hooks)
        point = find_resume_point(resume, hooks)

        with (
            shipped(data.access, data.store(), recipe.spec(data, self.module)) as ship,
            ship.evaluator(config) if sets else nullcontext() as evaluator,
        ):
            check_weights(data, monitor, sets)
            epochs = Epochs(data)
            if point is not None:
                point = point.on_new_rows(sum(epochs.store.rows)) if rows == "new" else point
                point.check(recipe.setting(epochs.store.partitions, data.plan))
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


def scheduled_hyper(optimizer: OptimizerSpec, config: TrainConfig, monitor: Monitor | None) -> ScheduledHyper:
    """Return hyper-parameters as they will change in a run with this monitored score."""
    better = monitor is not None and monitor.higher_is_better
    hyper = ScheduledHyper(optimizer, config.schedule, higher_is_better=better)
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
