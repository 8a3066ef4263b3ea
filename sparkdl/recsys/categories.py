"""Categories to numbers by how often they are, with a limit; and how often they are as a feature."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from sparkdl.data.columns import quoted
from sparkdl.exceptions import ConfigError, DataError, integer_option
from sparkdl.recsys.checks import (
    check_columns,
    check_comparable,
    check_new,
    missing,
    one_group,
)

VALUE, INDEX, COUNT, SHARE = "value", "index", "count", "share"
"""Columns of a table of categories."""


def count_categories(
    df: DataFrame, *columns: str, min_count: int = 1, max_size: int | None = None
) -> DataFrame:
    """Count the values of a column and number the frequent ones: a table for :func:`with_category`.

    It is a plain DataFrame with the columns ``value``, ``index`` (from 1, by falling count, equal counts in
    the order of values), ``count`` and ``share`` (of all values, rare ones included, without null and NaN).
    Keep it with ``write.parquet``. Index 0 is for rare values, new values, null and NaN. One task sorts the
    frequent values; for hundreds of millions of them take ids by a hash instead (:func:`with_hash`).

    Args:
        df: the rows to count in: those to train on.
        columns: one, or several of one type that share the numbers.
        min_count: values in fewer rows get no number.
        max_size: most values that get a number, the most frequent ones.

    Raises:
        ConfigError: if a limit cannot work.
        DataError: naming the column that is missing.
    """
    owner = "count_categories"
    if not columns:
        raise ConfigError(f"{owner}: columns=(): expected at least one column")
    integer_option(owner, "min_count", min_count, 1)
    if max_size is not None:
        integer_option(owner, "max_size", max_size, 1)
    check_columns(df, owner, **{f"columns[{n}]": name for n, name in enumerate(columns)})
    types = {df.select(quoted(name)).schema.fields[0].dataType.simpleString(): name for name in columns}
    if len(types) > 1:
        found = ", ".join(f"{name!r} {kind}" for kind, name in types.items())
        raise DataError(
            f"{owner}: columns that share numbers must have one type, found {found}: cast them",
            code="data-type",
        )
    values = df.select(F.explode(F.array(*(quoted(name) for name in columns))).alias(VALUE))
    counted = values.where(~missing(values, VALUE)[0]).groupBy(VALUE).agg(F.count(F.lit(1)).alias(COUNT))
    shared = counted.crossJoin(counted.agg(F.sum(COUNT).alias(SHARE)))
    shared = shared.withColumn(SHARE, F.col(COUNT) / F.col(SHARE))
    frequent = shared.where(F.col(COUNT) >= min_count)
    order = Window.partitionBy(one_group(VALUE)).orderBy(F.desc(COUNT), VALUE)
    numbered = frequent.withColumn(INDEX, F.row_number().over(order))
    if max_size is not None:
        numbered = numbered.where(F.col(INDEX) <= max_size)
    return numbered.select(VALUE, INDEX, COUNT, SHARE)


def with_category(
    df: DataFrame, column: str, table: DataFrame, *, index: str | None = None, share: str | None = None
) -> DataFrame:
    """Add the number of each row's value, its share of the rows, or both.

    The share is known as frequency encoding; its logarithm is what ``in_batch_softmax`` corrects by.

    Args:
        df: the rows.
        column: with the values.
        table: of :func:`count_categories`.
        index: new column, ``int``: the number, 0 without one.
        share: new column, ``double``: the share, 0.0 without one.

    Raises:
        ConfigError: if neither is named, or both have one name.
        DataError: naming the column that is missing, there already, or of another type than the table's
            values.
    """
    owner = "with_category"
    if index == share:
        raise ConfigError(f"{owner}: index={index!r}, share={share!r}: expected one new column, or two")
    check_columns(df, owner, column=column)
    check_columns(table, f"{owner}: table", **{name: name for name in (VALUE, INDEX, SHARE)})
    check_new(df, owner, index=index, share=share)
    check_comparable(f"{owner}: table", (df, column), (table, VALUE))
    key = "sparkdl_category"
    added = [F.col(VALUE).alias(key)]
    if index is not None:
        added.append(F.col(INDEX).cast("int").alias(index))
    if share is not None:
        added.append(F.col(SHARE).alias(share))
    joined = df.join(table.select(*added), quoted(column) == F.col(key), "left").drop(key)
    for name, unknown in ((index, F.lit(0)), (share, F.lit(0.0))):
        if name is not None:
            joined = joined.withColumn(name, F.coalesce(quoted(name), unknown))
    return joined
