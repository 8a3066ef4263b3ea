"""Checks, and a window, that the functions of this package share."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import quoted
from sparkdl.data.schema import STRINGS, check_dataframe, check_unambiguous, same_names
from sparkdl.exceptions import DataError
from sparkdl.ml.stages.rowwise import find_field


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


def _may_be_nan(df: DataFrame, name: str) -> bool:
    return isinstance(find_field(df, "column", name).dataType, T.FloatType | T.DoubleType)


def missing(df: DataFrame, name: str) -> tuple[Column, str]:
    """Return whether a column has no value, and what it has then, in words: pandas has NaN for null."""
    column = quoted(name)
    if _may_be_nan(df, name):
        return column.isNull() | F.isnan(column), "null or NaN"
    return column.isNull(), "null"


def check_no_nulls(df: DataFrame, owner: str, *names: str) -> None:
    """Check that columns have no nulls, and no NaN, by a job if they may have some."""
    names = tuple(n for n in names if find_field(df, owner, n).nullable or _may_be_nan(df, n))
    if not names:
        return
    found = [missing(df, name) for name in names]
    counts = df.agg(*(F.count_if(no_value) for no_value, _ in found)).collect()[0]
    for name, (_, what), rows in zip(names, found, counts, strict=True):
        if rows:
            raise DataError(
                f"{owner}: column {name!r} is {what} in {rows} rows; drop them first, for example with "
                f"df.dropna(subset=[{name!r}])",
                code="data-null",
            )


def check_comparable(owner: str, found: tuple[DataFrame, str], other: tuple[DataFrame, str]) -> None:
    """Check that Spark compares the values of two columns as they are: it casts those of other types.

    So ``"07"`` would be 7, and two strings one number.
    """
    kinds = [find_field(df, owner, name).dataType for df, name in (found, other)]
    families = (T.IntegralType, STRINGS)
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
    return F.pmod(F.hash(column), F.lit(1))
