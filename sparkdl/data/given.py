"""Rows as a fit is given them: Datasets, DataFrames with chosen columns, and shares of both."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sparkdl.data import sparse
from sparkdl.data.collate import Collate, Pad
from sparkdl.data.columns import ColumnLike, Columns, as_column, structure_of
from sparkdl.data.dataset import Dataset
from sparkdl.data.schema import is_frame, vector_columns
from sparkdl.data.streams import RowShare
from sparkdl.exceptions import ConfigError
from sparkdl.hf.outputs import takes_by_name

Validation = Dataset | Mapping[str, Dataset] | None
"""What ``fit`` takes as ``validation=``: a Dataset, called ``"val"``, or several by name."""


# -- shares ---------------------------------------------------------------------------------------


def check_share(fraction: Any) -> None:
    """Check that something is a share of rows to validate on."""
    if isinstance(fraction, bool) or not 0 < fraction < 1:
        raise ConfigError(
            f"validation={fraction!r}: expected the share of the rows to validate on, above 0 and below 1, a "
            "Dataset or a DataFrame"
        )


def share_of(fraction: Any, seed: int) -> tuple[RowShare, RowShare]:
    """Return the rows for training, and the share of them for validation; ConfigError if it is none."""
    check_share(fraction)
    return RowShare(0.0, fraction, True, seed), RowShare(0.0, fraction, False, seed)


def folds_of(count: int, seed: int) -> list[tuple[RowShare, RowShare]]:
    """Return the rows for training and those for validation of each fold."""
    bounds = [(fold / count, (fold + 1) / count) for fold in range(count)]
    return [(RowShare(a, b, True, seed), RowShare(a, b, False, seed)) for a, b in bounds]


# -- as they are given ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chosen:
    """The columns of DataFrames that are trained on; see :meth:`sparkdl.Dataset.from_dataframe`."""

    features: Columns | None
    label: Columns | None = None
    weight: ColumnLike | None = None
    collate: Collate | None = None

    def given(self) -> list[str]:
        """Return the names of the arguments that were given."""
        return [name for name in self.__slots__ if getattr(self, name) is not None]

    def dataset(self, df: Any) -> Dataset:
        """Return these columns of a DataFrame."""
        assert self.features is not None
        return Dataset.from_dataframe(
            df, features=self.features, label=self.label, weight=self.weight, collate=self.collate
        )

    def unlabelled(self, columns: Collection[str]) -> Chosen:
        """Return the features alone; and the label, if ``collate`` may want it and these columns have it."""
        label = structure_of(self.label, "label").disassemble(self.label).values()
        names = {as_column(column).name for column in label}
        if self.collate is not None and names <= set(columns):
            return replace(self, weight=None)
        return replace(self, label=None, weight=None)._collated_by(self.collate)

    def collated_as(self, last: Chosen | None) -> Chosen:
        """Return them with the ``collate`` of a fit's rows, which is no column, if any are given."""
        return self if last is None or not self.given() else self._collated_by(last.collate)

    def _collated_by(self, collate: Any) -> Chosen:
        if isinstance(collate, Pad):
            collate = replace(collate, has_label=self.label is not None)
        return replace(self, collate=collate)

    def taken_by(self, module: nn.Module | None, vectors: Collection[str]) -> Chosen:
        """Return them with features as a module takes them, given which columns hold ML vectors.

        By argument for a model of Hugging Face whose arguments have their names; sparse for a module that
        takes indices and values.
        """
        if module is None or self.features is None:
            return self
        features = sparse.where_taken(self.features, module, vectors)
        if isinstance(features, Sequence) and not isinstance(features, str):
            names = [as_column(column).name for column in features]
            if takes_by_name(module, names):
                features = dict(zip(names, features, strict=True))
        return replace(self, features=features)


@contextmanager
def dataset_of(
    data: Any, chosen: Chosen, last: Chosen | None, method: str, module: nn.Module
) -> Iterator[Dataset]:
    """Make a Dataset of a DataFrame for as long as the block runs; a Dataset stays what it is.

    Where no columns are chosen, it has those of ``last``. Raises ConfigError if it is neither, or columns are
    missing or given for a Dataset; DataError if a column cannot become a tensor.
    """
    with ExitStack() as stack:
        if is_frame(data):
            if chosen.given() or last is None:
                last = chosen.taken_by(module, vector_columns(data))
            check_features(last, method)
            data = stack.enter_context(last.dataset(data))
        else:
            check_none_chosen(chosen)
            check_dataset(data, method)
        data.access.check()
        yield data


@contextmanager
def datasets_of(
    data: Any,
    validation: Any,
    chosen: Chosen,
    seed: int,
    module: nn.Module | None = None,
    validated: Chosen | None = None,
    *,
    for_one_fit: bool = False,
) -> Iterator[tuple[Dataset, Validation, Chosen | None]]:
    """Make Datasets of DataFrames for as long as the block runs; Datasets stay what they are.

    ``validation`` is Datasets or DataFrames, one or several by name, or the share of ``data`` that is kept
    for it, its rows chosen by ``seed``; ``validated`` are other columns to validate on. With ``for_one_fit``
    the job that ends the fit that reads them deletes those that are made here. Beside the Datasets come the
    columns of a DataFrame as ``module`` takes them. Raises ConfigError for wrong columns or a share that is
    none, DataError if a column is no tensor, or a share holds no row.
    """
    of_frame, is_share = is_frame(data), isinstance(validation, float | int)
    if of_frame:
        vectors = vector_columns(data)
        chosen = chosen.taken_by(module, vectors)
    else:
        check_dataset(data)
    if is_share:
        check_share(validation)
    several = dict(validation) if isinstance(validation, Mapping) else {"": validation}
    if of_frame or any(map(is_frame, several.values())):
        check_features(chosen, "fit")
    else:
        check_none_chosen(chosen)
    with ExitStack() as stack:

        def made(one: Dataset) -> Dataset:
            return ends_with_fit(stack, one) if for_one_fit else stack.enter_context(one)

        if of_frame:
            data = made(chosen.dataset(data))
        if is_share:
            parts = data.split(validation, seed) if of_frame else map(data.part, share_of(validation, seed))
            data, several[""] = map(made, parts)
        columns = chosen if validated is None else replace(validated, features=chosen.features)
        sets: Any = {
            name: made(columns.dataset(one)) if is_frame(one) else one for name, one in several.items()
        }
        yield data, sets if isinstance(validation, Mapping) else sets[""], chosen if of_frame else None


def ends_with_fit(stack: ExitStack, data: Dataset) -> Dataset:
    """Return a Dataset whose files the job that ends its fit deletes, or else the end of a stack."""
    data.for_one_fit = True
    return stack.enter_context(data)


def check_dataset(data: object, method: str = "fit") -> None:
    """Check that something is a Dataset."""
    if not isinstance(data, Dataset):
        raise ConfigError(
            f"data: found a {type(data).__module__}.{type(data).__name__}, expected a sparkdl Dataset such "
            f"as Dataset.from_dataframe(df, features=..., label=...); {method} takes a DataFrame as well, "
            "with features= and label="
        )


def check_features(chosen: Chosen, method: str) -> None:
    """Check that columns of a DataFrame are named."""
    if chosen.features is None:
        raise ConfigError(
            f"features=None: a DataFrame needs the names of its columns: {method}(df, features=..., "
            "label=...)"
        )


def check_none_chosen(chosen: Chosen, others: Collection[str] = ()) -> None:
    """Check that no columns are named, nor options of a Dataset, for there is no DataFrame."""
    for name in (*chosen.given(), *others):
        what = "knows its columns" if name in Chosen.__slots__ else "has its options"
        raise ConfigError(f"{name}=...: a Dataset {what}; give them with a DataFrame only")
