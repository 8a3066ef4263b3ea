"""Checks, and a window, that the functions of this package share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl.data.schema import check_dataframe, check_unambiguous, same_names
from sparkdl.exceptions import ConfigError, DataError

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
