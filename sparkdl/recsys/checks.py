"""Checks, and a window, that the functions of this package share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl.data.columns import quoted
from sparkdl.data.schema import check_dataframe, check_unambiguous, same_names
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml.stages.rowwise import find_field

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def check_columns(df: DataFrame, owner: str, **columns: str) -> None:
    """Check that a DataFrame has columns."""
    check_dataframe(df, owner)
    for argument, name in columns.items():
        if not same_names(df, name):
            raise DataError(
                f"{owner}: {argument}={name!r} is not in the DataFrame; it has {', '.join(df.columns)}",
                code="data-column",
            )
        check_unambiguous(df, name, f"{owner}: {argument}")


def check_new(df: DataFrame, owner: str, **columns: str | None) -> None:
    """Check that a DataFrame has no column of these names yet; ``None`` names none."""
    for argument, name in columns.items():
        if name is not None and same_names(df, name):
            raise DataError(
                f"{owner}: {argument}={name!r} is in the DataFrame already; choose another name or drop it",
                code="data-column",
            )


def check_no_nulls(df: DataFrame, owner: str, *names: str) -> None:
    """Check that columns have no nulls, by a job if they may have some."""
    from pyspark.sql import functions as F

    names = tuple(name for name in names if find_field(df, owner, name).nullable)
    if not names:
        return
    counts = df.agg(*(F.count_if(quoted(name).isNull()) for name in names)).collect()[0]
    for name, nulls in zip(names, counts, strict=True):
        if nulls:
            raise DataError(
                f"{owner}: column {name!r} is null in {nulls} rows; drop them first, for example with "
                f"df.dropna(subset=[{name!r}])",
                code="data-null",
            )


def check_integer(owner: str, least: int, **values: int) -> None:
    """Check that values are integers of at least ``least``."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{owner}: {name}={value!r}: expected an integer of at least {least}")


def one_group(column: str) -> Column:
    """Return what is the same in all rows, for windows over all of them.

    Spark logs a warning for each window without a partition, or with a constant one.
    """
    from pyspark.sql import functions as F

    return F.pmod(F.hash(column), F.lit(1))
