"""Items that a user has not chosen, to tell the chosen ones from."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from sparkdl.data.columns import quoted
from sparkdl.exceptions import DataError, integer_option
from sparkdl.recsys.checks import (
    check_columns,
    check_comparable,
    check_new,
    missing,
    one_group,
)

_ITEM, _NUMBER, _SEEN, _PLACE = (f"sparkdl_{name}" for name in ("item", "number", "seen", "place"))


def with_negatives(
    df: DataFrame,
    count: int,
    *,
    user: str = "user",
    item: str = "item",
    seen: DataFrame | None = None,
    items: DataFrame | None = None,
    output: str = "negatives",
    label: str | None = None,
    seed: int = 0,
) -> DataFrame:
    """Draw items that the user of each row has not seen, all equally likely, and different ones.

    Nothing leaks: for training leave ``seen`` out, so that only what is trained on counts as seen. An item
    that is held out may then be drawn, as it could have been when the events were recorded; leaving it out
    would tell the model which items to expect. For an evaluation give all events as ``seen``.

    The draw follows from seed, user and item alone. The unseen items of a user are cut into ``count``
    stretches of equal length, and one is drawn from each, so no draw is ever repeated or rejected. Users who
    have fewer unseen items get some twice.

    Args:
        df: the rows, with a user and a chosen item each.
        count: how many to draw for each.
        user: column of the user, here and in ``seen``.
        item: column of the item, here, in ``seen`` and in ``items``.
        seen: pairs of users and items that are no negatives; ``df`` itself by default. Those of ``df`` are
            never negatives. Other users than those of ``df`` count for nothing but the items there are.
        items: all items there are; those of ``df`` and ``seen`` by default.
        output: new column, an array of ``count`` items.
        label: adds no array, but ``count`` rows for each row, with a negative in place of its item, and a
            column of this name, ``float``: 1 for the rows of ``df`` and 0 for the others.
        seed: of the draw.

    Raises:
        ConfigError: if ``count`` cannot work.
        DataError: naming the column that is missing, there already or null; if types of items or users
            differ; or if a user of ``df`` has seen all items.
    """
    owner = "with_negatives"
    integer_option(owner, "count", count, 1)
    check_columns(df, owner, user=user, item=item)
    check_new(df, owner, **({"output": output} if label is None else {"label": label}))
    pairs = df.select(quoted(user).alias(user), quoted(item).alias(_ITEM))
    known = pairs.select(_ITEM)
    if seen is not None:
        check_columns(seen, f"{owner}: seen", user=user, item=item)
        for name in (user, item):
            check_comparable(f"{owner}: seen", (df, name), (seen, name))
        more = seen.select(quoted(user).alias(user), quoted(item).alias(_ITEM))
        pairs = pairs.union(more.join(df.select(quoted(user).alias(user)).distinct(), user, "left_semi"))
        known = known.union(more.select(_ITEM))
    if items is not None:
        check_columns(items, f"{owner}: items", item=item)
        check_comparable(f"{owner}: items", (df, item), (items, item))
        known = items.select(quoted(item).alias(_ITEM))
    different = known.where(~missing(known, _ITEM)[0]).distinct()
    total = _check_counts(df, owner, user, item, pairs, different)
    numbered = _numbered(different, seed)
    # Of n items of which a user has seen those with the numbers s0 < s1 < ..., the unseen one with rank u has
    # the number u + (how many j have s_j - j <= u).
    of_user = pairs.join(numbered, _ITEM).groupBy(quoted(user).alias(user))
    sets = of_user.agg(F.array_sort(F.collect_set(_NUMBER)).alias(_SEEN))
    gaps = sets.withColumn(_SEEN, F.transform(_SEEN, lambda number, j: number - j))
    keys = df.select(quoted(user).alias(user), quoted(item).alias(item)).distinct()
    joined = keys.join(gaps, user, "left")
    joined = joined.withColumn(_SEEN, F.coalesce(_SEEN, F.array().cast("array<int>")))
    unseen = F.lit(total).cast("bigint") - F.size(_SEEN)

    def draw(place: Column) -> Column:
        return F.xxhash64(quoted(user), quoted(item), place, F.lit(seed).cast("bigint"))

    def rank(place: Column) -> Column:
        # Stretches differ in length by one at most; a common turn makes all items equally likely.
        low, high = F.floor(place * unseen / count), F.floor((place + 1) * unseen / count)
        within = F.pmod(draw(place), F.greatest(high - low, F.lit(1).cast("bigint")))
        return F.pmod(low + within + F.pmod(draw(F.lit(-1)), unseen), unseen).cast("int")

    def number(rank: Column) -> Column:
        return rank + F.size(F.filter(_SEEN, lambda gap: gap <= rank))

    ranks = F.transform(F.sequence(F.lit(0), F.lit(count - 1)), rank)
    key = (quoted(user), quoted(item))
    numbers = joined.select(*key, F.transform(ranks, number).alias(_NUMBER))
    drawn = numbers.select(*key, F.posexplode(_NUMBER).alias(_PLACE, _NUMBER)).join(numbered, _NUMBER)
    placed = F.array_sort(F.collect_list(F.struct(_PLACE, _ITEM)))
    arrays = (
        drawn.groupBy(*key)
        .agg(placed.alias(_ITEM))
        .select(*key, F.col(f"{_ITEM}.{_ITEM}").alias(output if label is None else _ITEM))
    )
    found = df.join(arrays, [user, item])
    if label is None:
        return found.select(*(quoted(name) for name in df.columns), quoted(output))
    own = F.concat(F.array(quoted(item)), F.col(_ITEM))
    rows = found.select(*(quoted(name) for name in df.columns), F.posexplode(own).alias(_PLACE, _ITEM))
    rows = rows.withColumn(item, F.col(_ITEM)).withColumn(label, (F.col(_PLACE) == 0).cast("float"))
    return rows.select(*(quoted(name) for name in df.columns), quoted(label))


def _numbered(items: DataFrame, seed: int) -> DataFrame:
    """Number different items from 0, in an order that says nothing about them."""
    order = Window.partitionBy(one_group(_ITEM)).orderBy(F.xxhash64(_ITEM, F.lit(seed).cast("bigint")), _ITEM)
    return items.withColumn(_NUMBER, F.row_number().over(order) - 1)


def _check_counts(df: DataFrame, owner: str, user: str, item: str, pairs: DataFrame, items: DataFrame) -> int:
    """Return how many items there are; check that every user has some left."""
    holes = [missing(df, name) for name in (user, item)]
    nulls = df.agg(*(F.count_if(no_value) for no_value, _ in holes))
    seen = pairs.join(items, _ITEM).groupBy(quoted(user).alias(user)).agg(F.countDistinct(_ITEM).alias(_SEEN))
    most = seen.agg(F.max(F.struct(_SEEN, quoted(user))))
    row = nulls.crossJoin(most).crossJoin(items.agg(F.count(F.lit(1)))).collect()[0]
    for name, (_, what), found in zip((user, item), holes, row, strict=False):
        if found:
            raise DataError(
                f"{owner}: column {name!r} is {what} in {found} rows; drop them first, for example with "
                "df.dropna()",
                code="data-null",
            )
    total: int = row[3]
    if row[2] is not None and row[2][0] >= total:
        raise DataError(
            f"{owner}: user {row[2][1]!r} has seen all {total} items: no negative is left; give more items",
            code="data-value",
        )
    return total
