"""Splits of events by time: what is tested comes after what is trained on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import quoted
from sparkdl.exceptions import ConfigError, DataError, integer_option
from sparkdl.ml.stages.rowwise import find_field
from sparkdl.recsys.checks import check_columns, check_no_nulls, missing

_ACCURACY = 1_000_000


def time_order(df: DataFrame, user: str, item: str, time: str, seed: int) -> list[Column]:
    """Return an order of a user's events by time; a hash decides between events of one moment.

    An order by item would not be fair: often, low ids are the better known items. Events of one moment and
    item follow each other by their other columns, and not as they come: each job that reads them may get them
    in another order, and two parts of a split are read by two jobs.
    """
    tie = F.xxhash64(quoted(user), quoted(item), F.lit(seed).cast("bigint"))
    others = [quoted(f.name) for f in df.schema.fields if _is_hashed(f.dataType.jsonValue())]
    return [quoted(time).asc(), tie.asc(), quoted(item).asc(), F.xxhash64(*others).asc()]


def _is_hashed(kind: Any) -> bool:
    """Return whether Spark has a hash of values of a type, which is given as JSON."""
    if isinstance(kind, str):
        return not kind.startswith(("variant", "geo"))
    if kind["type"] == "struct":
        return all(_is_hashed(field["type"]) for field in kind["fields"])
    return _is_hashed(kind["elementType"]) if kind["type"] == "array" else kind["type"] != "map"


def leave_last_out(
    df: DataFrame, *, user: str = "user", item: str = "item", time: str = "time", last: int = 1, seed: int = 0
) -> tuple[DataFrame, DataFrame]:
    """Split events into those before each user's last ones, and these.

    Users with ``last`` events or fewer have all of them in the first part, so that none is tested who was
    never trained on. Splitting the first part again gives a part for validation.

    Args:
        df: the events.
        user: column of the user.
        item: column of the item; with ``seed`` it decides between events of one moment.
        time: column of the time, of any type that has an order.
        last: how many events of each user the second part has.
        seed: of the decision.

    Raises:
        ConfigError: if ``last`` cannot work.
        DataError: naming the column that is missing, or of users or times that are null.
    """
    owner, number, total = "leave_last_out", "sparkdl_number", "sparkdl_total"
    integer_option(owner, "last", last, 1)
    check_columns(df, owner, user=user, item=item, time=time)
    check_no_nulls(df, owner, user, time)
    of_user = Window.partitionBy(quoted(user))
    numbered = df.withColumn(
        number, F.row_number().over(of_user.orderBy(*time_order(df, user, item, time, seed)))
    )
    numbered = numbered.withColumn(total, F.count(F.lit(1)).over(of_user))
    held_out = (F.col(total) > last) & (F.col(number) > F.col(total) - last)
    return (
        numbered.where(~held_out).drop(number, total),
        numbered.where(held_out).drop(number, total),
    )


def split_by_time(
    df: DataFrame, *, time: str = "time", at: Any = None, share: float | None = None
) -> tuple[DataFrame, DataFrame]:
    """Split events into those before a moment, and those from then on, of all users alike.

    Args:
        df: the events.
        time: column of the time, without nulls.
        at: the moment, a value of this column; or
        share: how much of the events the first part has, if the column holds numbers or timestamps. Events of
            one moment stay together, so the first part has the share that comes nearest.

    Raises:
        ConfigError: unless one of ``at`` and ``share`` is given, and can work.
        DataError: if the column is missing, has nulls or no values; or, with ``share``, if all events have
            one time.
    """
    owner = "split_by_time"
    check_columns(df, owner, time=time)
    if (at is None) == (share is None):
        raise ConfigError(f"{owner}: at={at!r}, share={share!r}: expected one of them")
    if at is not None and at != at:
        raise ConfigError(f"{owner}: at={at!r}: expected a value of column {time!r}, of which none is later")
    kind = find_field(df, owner, time).dataType
    # As numbers: on its way through Python a timestamp would lose which of two hours of one name it is in.
    instants = isinstance(kind, T.TimestampType) and share is not None
    moment, (no_time, what) = quoted(time), missing(df, time)
    number = F.unix_micros(moment) if instants else moment
    wanted = [F.count_if(no_time), F.count_if(~no_time), F.max(moment)]
    if share is None:
        nulls, rows, last = df.agg(*wanted).collect()[0]
    elif not 0 < share < 1:
        raise ConfigError(f"{owner}: share={share!r}: expected a number between 0 and 1")
    else:
        about = F.percentile_approx(number, share, _ACCURACY)
        nulls, rows, last, at = df.agg(*wanted, about).collect()[0]
    if not rows:
        raise DataError(f"{owner}: column {time!r} is {what} in all rows", code="data-empty")
    if nulls:
        raise DataError(
            f"{owner}: column {time!r} is {what} in {nulls} of {nulls + rows} rows, which belong to neither "
            f"part: drop them, as df.dropna(subset=[{time!r}]) does, or give them a time",
            code="data-null",
        )
    if share is not None:
        at = _nearest(df, number, at, kind, share * rows)
        if at is None:
            raise DataError(f"{owner}: all rows have {time}={last}: no moment splits them", code="data-value")
    border = F.timestamp_micros(F.lit(at)) if instants else _literal(at, kind)
    return df.where(moment < border), df.where(moment >= border)


def _literal(at: Any, kind: T.DataType) -> Column:
    """Return a moment in SQL; PySpark's own takes a time without a zone for one of this machine's clock."""
    at = at.to_pydatetime() if hasattr(at, "to_pydatetime") else at  # of pandas
    if isinstance(at, datetime) and at.tzinfo is None:
        if isinstance(kind, T.TimestampNTZType):
            return F.lit(at.isoformat(" ")).cast("timestamp_ntz")
        at = at.astimezone(UTC)  # of two hours of one name that of its `fold`
    return F.lit(at)


def _nearest(df: DataFrame, moment: Column, at: Any, kind: T.DataType, wanted: float) -> Any:
    """Return the moment, this or the next, before which there are most nearly as many events as wanted."""
    border = _literal(at, kind)
    before, until, then = df.agg(
        F.count_if(moment < border),
        F.count_if(moment <= border),
        F.min(F.when(moment > border, moment)),
    ).collect()[0]
    if not before or (then is not None and abs(until - wanted) < abs(before - wanted)):
        return then
    return at
