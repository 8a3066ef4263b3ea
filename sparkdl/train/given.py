"""Arguments of a Trainer: options, a loss or a step, Datasets or DataFrames; checked, in one form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sparkdl.data import sparse
from sparkdl.data.collate import Collate, Pad
from sparkdl.data.columns import Column, ColumnLike, Columns, quoted, structure_of
from sparkdl.data.dataset import Dataset
from sparkdl.data.schema import is_frame, is_pandas, vector_columns
from sparkdl.data.shares import check_share, share_of, shares_of, split_by_fraction, split_pandas
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.hf.outputs import is_model, own_step, takes_by_name
from sparkdl.nn.lightning import LightningSchedule, is_lightning
from sparkdl.nn.objective import Loss, LossObjective, Objective, Step, StepObjective
from sparkdl.train.hooks.of_run import check_hooks
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.options.names import OF_TRAINER, meant
from sparkdl.train.options.schedule import PerEpoch, PerIteration
from sparkdl.train.passes.validation import Validation

_ARGUMENTS = ("loss", "step", "optimizer", "config")
"""Arguments of a Trainer beside its options."""

_ROLES = ("features", "label", "weight")

_OF_ALL_FITS = " (set for good when a Trainer is made: make another one)"


def configure(config: TrainConfig | None, options: Mapping[str, Any]) -> TrainConfig:
    """Return options whose fields were replaced by others.

    Raises:
        ConfigError: if there is no option of a name, or a value cannot work.
    """
    known = (*_ARGUMENTS, *TrainConfig.__slots__)
    unknown = [
        name + (_OF_ALL_FITS if name in _ARGUMENTS else meant(name, value, known, OF_TRAINER))
        for name, value in options.items()
        if name not in TrainConfig.__slots__
    ]
    if unknown:
        raise ConfigError(f"unknown option {', '.join(unknown)}; expected one of {', '.join(known)}")
    config = replace(config or TrainConfig(), **options)
    check_hooks(config.hooks)
    if config.metrics is not None:
        from sparkdl.metrics.spec import metric_specs

        metric_specs(config.metrics)  # one that is none is told now
    return config


def with_schedule(config: TrainConfig, schedule: LightningSchedule | None) -> TrainConfig:
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


def objective_of(loss: Loss | None, step: Step | None, module: nn.Module | None = None) -> Objective:
    """Return what is minimised."""
    if loss is None and step is None and is_model(module):
        step = own_step
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


def knows_loss(module: object) -> bool:
    """Return whether a module has a loss of its own."""
    return isinstance(module, nn.Module) and (is_lightning(module) or is_model(module))


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


def check_dataset(data: object, method: str = "fit") -> None:
    """Check that something is a Dataset, whose session can run jobs."""
    if not isinstance(data, Dataset):
        raise ConfigError(
            f"data: found a {type(data).__module__}.{type(data).__name__}, expected a sparkdl Dataset such "
            f"as Dataset.from_dataframe(df, features=..., label=...); {method} takes a DataFrame as well, "
            "with features= and label="
        )
    data.access.check()


@dataclass(frozen=True, slots=True)
class Chosen:
    """The columns of DataFrames that are trained on; see :meth:`sparkdl.Dataset.from_dataframe`.

    Attributes:
        of_frame: whether the rows that they were chosen for are a DataFrame.
    """

    features: Columns | None
    label: Columns | None
    weight: ColumnLike | None
    collate: Collate | None
    of_frame: bool

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


@contextmanager
def dataset_of(data: Any, chosen: Chosen, last: Chosen | None, method: str) -> Iterator[Dataset]:
    """Make a Dataset of a DataFrame for as long as the block runs; a Dataset stays what it is.

    Raises:
        ConfigError: if it is neither, or columns are missing, or given for a Dataset.
        DataError: if a column cannot become a tensor.
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

    Args:
        data: a Dataset, or a DataFrame of Spark or pandas.
        validation: Datasets or DataFrames, one or several by name; or the share of ``data`` that is kept
            for validation.
        chosen: columns of the DataFrames.
        seed: chooses the rows of a share.
        validated: columns of DataFrames to validate on, if these are others.

    Raises:
        ConfigError: if columns are missing, or given for a Dataset; if a share is none.
        DataError: if a column cannot become a tensor, or a share holds no row.
    """
    with ExitStack() as stack:
        if isinstance(validation, float | int):
            if isinstance(data, Dataset):
                data, validation = stack.enter_context(shares_of(data, share_of(validation, seed)))
            else:
                data, validation = split(data, validation, chosen, seed)
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


def split(data: Any, fraction: Any, chosen: Chosen, seed: int) -> tuple[Any, Any]:
    """Split a DataFrame into rows for training and rows for validation.

    Raises:
        ConfigError: if it is no share.
        DataError: if a column cannot become a tensor, or a share holds no row.
    """
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
