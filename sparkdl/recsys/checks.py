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


def missing(df: DataFrame, name: str) -> tuple[Column, str]:
    """Return whether a column has no value, and what it has then, in words: pandas has NaN for null."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    column = quoted(name)
    if isinstance(df.select(column).schema.fields[0].dataType, T.FloatType | T.DoubleType):
        return column.isNull() | F.isnan(column), "null or NaN"
    return column.isNull(), "null"


def check_no_nulls(df: DataFrame, owner: str, *names: str) -> None:
    """Check that columns have no nulls, and no NaN, by a job if they may have some."""
    from pyspark.sql import functions as F

    found = {name: missing(df, name) for name in names}
    able = [name for name in names if find_field(df, owner, name).nullable or "NaN" in found[name][1]]
    if not able:
        return
    counts = df.agg(*(F.count_if(found[name][0]) for name in able)).collect()[0]
    for name, nulls in zip(able, counts, strict=True):
        if nulls:
            raise DataError(
                f"{owner}: column {name!r} is {found[name][1]} in {nulls} rows; drop them first, for example "
                f"with df.dropna(subset=[{name!r}])",
                code="data-null",
            )


def check_integer(owner: str, least: int, **values: int) -> None:
    """Check that values are integers of at least ``least``."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{owner}: {name}={value!r}: expected an integer of at least {least}")


def check_comparable(owner: str, found: tuple[DataFrame, str], other: tuple[DataFrame, str]) -> None:
    """Check that Spark compares the values of two columns as they are: it casts those of other types.

    So ``"07"`` would be 7, and two strings one number.
    """
    from pyspark.sql import types as T

    kinds = [df.select(quoted(name)).schema.fields[0].dataType for df, name in (found, other)]
    families = (T.IntegralType, T.StringType | T.CharType | T.VarcharType)
    if kinds[0] != kinds[1] and not any(all(isinstance(kind, of) for kind in kinds) for of in families):
        raise DataError(
            f"{owner} has {other[1]!r} as {kinds[1].simpleString()}, the DataFrame {found[1]!r} as "
            f"{kinds[0].simpleString()}: cast one of them",
            code="data-type",
        )


def one_group(column: str) -> Column:
    """Return what is the same in all rows, for windows over all of them.

    Spark logs a warning for each window without a partition, or with a constant one.
    """
    from pyspark.sql import functions as F

    return F.pmod(F.hash(column), F.lit(1))
