"""The events before an event, as a sequence of fixed length."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import quoted, tensor_metadata
from sparkdl.exceptions import DataError, integer_option
from sparkdl.ml.stages.rowwise import find_field
from sparkdl.recsys.checks import check_columns, check_new, check_no_nulls
from sparkdl.recsys.splits import time_order

_ITEMS = "__sparkdl_items"
_COUNT = "__sparkdl_count"


def with_history(
    df: DataFrame,
    size: int,
    *,
    user: str = "user",
    item: str = "item",
    time: str = "time",
    output: str = "history",
    length: str = "length",
    seed: int = 0,
    strict: bool = False,
) -> DataFrame:
    """Add the items of a user's last events before each event, oldest first, filled up with 0 at the end.

    An event's own item is not in its history, and none of a later moment. Events of one moment are put in an
    order by a hash, the order of :func:`leave_last_out`, and are in each other's histories in this order;
    with ``strict`` they are not, and all have the history of the moments before. Make histories before a
    split, so that held-out events have theirs.

    Args:
        df: the events.
        size: elements of the sequence.
        user: column of the user.
        item: column of the item: integers, such as ids of :func:`with_hash`; null is passed over.
        time: column of the time.
        output: new column, ``array<bigint>`` with ``size`` elements.
        length: new column, ``int``: how many of them are items.
        seed: of the order.
        strict: only events of earlier moments.

    Raises:
        ConfigError: if ``size`` cannot work.
        DataError: naming the column that is missing, there already or of another type; or of users or times
            that are null, which are of nobody, or at no moment.
    """
    owner = "with_history"
    integer_option(owner, "size", size, 1)
    check_columns(df, owner, user=user, item=item, time=time)
    check_new(df, owner, output=output, length=length)
    field = find_field(df, f"{owner}: item", item)
    if not isinstance(field.dataType, T.IntegralType):
        raise DataError(
            f"{owner}: item={item!r} has type {field.dataType.simpleString()}, expected integers: with_hash "
            "and with_category make them",
            code="data-type",
        )
    check_no_nulls(df, owner, user, time)
    order = time_order(df, user, item, time, seed)
    ordered = Window.partitionBy(quoted(user)).orderBy(*order)
    before = F.collect_list(quoted(item).cast("bigint"))
    if field.nullable:  # how many items came before numbers them, without those that are null
        number = F.count(quoted(item)).over(ordered.rowsBetween(Window.unboundedPreceding, -1))
        numbered = df.withColumn(_COUNT, number)
        of_items = Window.partitionBy(quoted(user)).orderBy(F.col(_COUNT)).rangeBetween(-size, -1)
        with_items = numbered.withColumn(_ITEMS, before.over(of_items)).drop(_COUNT)
    else:
        with_items = df.withColumn(_ITEMS, before.over(ordered.rowsBetween(-size, -1)))
    together = Window.partitionBy(quoted(user), quoted(time)).orderBy(*order)
    padding = F.array_repeat(F.lit(0).cast("bigint"), size)
    filled = F.slice(F.concat(F.col(_ITEMS), padding), 1, size)
    described = filled.alias(output, metadata=tensor_metadata((size,), "int64"))
    if strict:  # before the first event of a moment are those of the moments before
        with_items = with_items.withColumn(_ITEMS, F.first(_ITEMS).over(together))
    return with_items.select("*", described, F.size(_ITEMS).alias(length)).drop(_ITEMS)
