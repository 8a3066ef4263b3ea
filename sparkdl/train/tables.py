"""What ``fit`` is given: Datasets, or DataFrames and the names of their columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sparkdl.data.collate import Collate, Pad
from sparkdl.data.columns import Column, ColumnLike, Columns, structure_of
from sparkdl.data.dataset import Dataset
from sparkdl.data.split import column, split_by_fraction, split_pandas
from sparkdl.data.tables import is_pandas
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.train.passes.validation import Validation


@dataclass(frozen=True, slots=True)
class Chosen:
    """The columns of DataFrames that are trained on; see :meth:`sparkdl.Dataset.from_dataframe`."""

    features: Columns | None = None
    label: Columns | None = None
    weight: ColumnLike | None = None
    collate: Collate | None = None

    def given(self) -> list[str]:
        """Return the names of the arguments that were given."""
        return [name for name in self.__slots__ if getattr(self, name) is not None]

    def names(self) -> list[str]:
        """Return the names of the columns, each once."""
        found: list[str] = []
        for role in ("features", "label", "weight"):
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
def dataset_of(data: Any, chosen: Chosen, last: Chosen | None, method: str) -> Iterator[Any]:
    """Make a Dataset of a DataFrame for as long as the block runs; anything else stays what it is.

    Args:
        data: a Dataset, or a DataFrame of Spark or pandas.
        chosen: columns of the DataFrame, if any were named.
        last: those of the last fit, which count otherwise.
        method: who asks, for errors.

    Raises:
        ConfigError: if columns are missing, or given for a Dataset.
        DataError: if a column cannot become a tensor.
    """
    if not is_frame(data):
        check_none_chosen(chosen)
        yield data
        return
    found = chosen if chosen.given() or last is None else last
    check_features(found, method)
    with found.dataset(data) as dataset:
        yield dataset


@contextmanager
def datasets_of(
    data: Any, validation: Any, chosen: Chosen, seed: int
) -> Iterator[tuple[Dataset, Validation]]:
    """Make Datasets of DataFrames for as long as the block runs; Datasets stay what they are.

    Args:
        data: a Dataset, or a DataFrame of Spark or pandas.
        validation: Datasets or DataFrames, one or several by name; or the share of ``data`` that is kept
            for validation.
        chosen: columns of the DataFrames.
        seed: chooses the rows of a share.

    Raises:
        ConfigError: if columns are missing, or given for a Dataset; if a share is none.
        DataError: if a column cannot become a tensor, or a share holds no row.
    """
    with ExitStack() as stack:
        if isinstance(validation, float | int):
            data, validation = split(data, validation, chosen, seed)
        several = validation if isinstance(validation, Mapping) else {"": validation}
        if any(map(is_frame, [data, *several.values()])):
            check_features(chosen, "fit")
        else:
            check_none_chosen(chosen)

        def dataset(value: Any) -> Any:
            return stack.enter_context(chosen.dataset(value)) if is_frame(value) else value

        data = dataset(data)
        sets: Any = {name: dataset(value) for name, value in several.items()}
        yield data, sets if isinstance(validation, Mapping) else sets[""]


def check_features(chosen: Chosen, method: str) -> None:
    """Check that columns of a DataFrame are named.

    Raises:
        ConfigError: if not.
    """
    if chosen.features is None:
        raise ConfigError(
            f"features=None: a DataFrame needs the names of its columns: {method}(df, features=..., "
            "label=...)"
        )


def check_none_chosen(chosen: Chosen) -> None:
    """Check that no columns are named, for there is no DataFrame.

    Raises:
        ConfigError: if some are.
    """
    if chosen.given():
        raise ConfigError(
            f"{chosen.given()[0]}=...: a Dataset knows its columns; give them with a DataFrame only"
        )


def split(data: Any, fraction: Any, chosen: Chosen, seed: int) -> tuple[Any, Any]:
    """Split a DataFrame into rows for training and rows for validation.

    Args:
        data: of Spark or pandas.
        fraction: the share of the rows for validation.
        chosen: the columns that are used.
        seed: chooses the rows.

    Raises:
        ConfigError: if it is no share, or ``data`` no DataFrame.
        DataError: if a column cannot become a tensor, or a share holds no row.
    """
    if isinstance(fraction, bool) or not 0 < fraction < 1:
        raise ConfigError(
            f"validation={fraction!r}: expected the share of the rows to validate on, above 0 and below 1, a "
            "Dataset or a DataFrame"
        )
    if not is_frame(data):
        raise ConfigError(
            f"validation={fraction!r}: only the rows of a DataFrame can be split: fit(df, features=..., "
            "label=..., validation=0.1); for a Dataset give another one"
        )
    if chosen.features is None:  # the error about columns comes next
        return data, None
    chosen.dataset(data)  # checks columns
    if is_pandas(data):
        parts = split_pandas(data[chosen.names()], fraction, seed)
    else:
        parts = split_by_fraction(data.select(*map(column, chosen.names())), fraction, seed)
    for what, part in zip(("training", "validation"), parts, strict=True):
        if part.empty if is_pandas(part) else part.isEmpty():
            raise DataError(
                f"validation={fraction!r}: no row is left for {what}; choose another share, or give "
                "fit(df, validation=other_df)",
                code="data-empty",
            )
    return parts


def is_frame(value: object) -> bool:
    """Return whether this is a DataFrame of Spark or pandas."""
    return is_pandas(value) or (
        type(value).__module__.startswith("pyspark.sql.") and type(value).__name__ == "DataFrame"
    )
