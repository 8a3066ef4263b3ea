"""Features of recommenders against plain pandas and numpy, on MovieLens-100K and small tables."""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import partial
from time import tzset
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as F
from support.movielens import ratings

from sparkdl.exceptions import ConfigError, DataError
from sparkdl.recsys import (
    NumberSummary,
    count_categories,
    hash_ids,
    leave_last_out,
    split_by_time,
    summarise_numbers,
    with_buckets,
    with_category,
    with_hash,
    with_history,
    with_negatives,
    with_scaled,
)

KEYS = ["user", "item", "time"]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """The events of 20 users, in an order of time that a hash completes."""
    events = ratings(users=20)
    return events.sort_values(["user", "time"], ignore_index=True)


@pytest.fixture
def events(spark: Any, table: pd.DataFrame) -> Any:
    return spark.createDataFrame(table)


def pairs(df: Any) -> set[tuple[int, ...]]:
    return {tuple(row) for row in df.select("user", "item").collect()}


def test_categories_are_numbered_by_count(spark: Any, events: Any, table: pd.DataFrame) -> None:
    limited = count_categories(events, "item", min_count=3, max_size=200)
    found = limited.orderBy("index").toPandas()
    counts = table.item.value_counts().reset_index()
    counts = counts.sort_values(["count", "item"], ascending=[False, True])
    counts = counts[counts["count"] >= 3][:200]
    assert found.value.tolist() == counts.item.tolist()
    assert found["index"].tolist() == list(range(1, len(counts) + 1))
    np.testing.assert_allclose(found.share, counts["count"] / len(table))
    numbers = dict(zip(found.value, found["index"], strict=True))
    coded = with_category(events, "item", limited, index="number", share="share").toPandas()
    assert len(coded) == len(table)
    assert coded.number.tolist() == [numbers.get(item, 0) for item in coded.item]
    assert ((coded.share > 0) == (coded.number > 0)).all()
    names = spark.createDataFrame([("b", "a"), ("a", "a"), (None, "c")], "one string, `o.ther` string")
    shared = count_categories(names, "one", "o.ther")
    assert [tuple(row)[:3] for row in shared.orderBy("index").collect()] == [
        ("a", 1, 3),
        ("b", 2, 1),
        ("c", 3, 1),
    ]
    unseen = with_category(names, "one", shared.where("value != 'b'"), index="number")
    assert sorted(row.number for row in unseen.collect()) == [0, 0, 1]
    with pytest.raises(DataError, match="one type, found 'user' bigint, 'name' string"):
        count_categories(events.selectExpr("user", "string(item) AS name"), "user", "name")
    with pytest.raises(ConfigError, match="index='n', share='n'"):
        with_category(names, "one", shared, index="n", share="n")
    floats = spark.createDataFrame([(float("nan"),)] * 3 + [(1.0,), (None,)], "v double")
    known = count_categories(floats, "v")
    assert [tuple(row) for row in known.collect()] == [(1.0, 1, 1, 1.0)], "pandas has NaN for null"
    coded = with_category(floats, "v", known, index="n").collect()
    assert sorted(row.n for row in coded) == [0, 0, 0, 0, 1]


def test_values_of_another_type_are_refused(spark: Any) -> None:
    """Spark casts them: '07' would be 7, and a row whose number two strings have would be two rows."""
    texts = spark.createDataFrame([("07",), ("7",)], "v string")
    numbers = spark.createDataFrame([(7,)], "v int")
    for df, counted, types in (
        (texts, numbers, "'value' as int, the DataFrame 'v' as string"),
        (numbers, texts, "'value' as string, the DataFrame 'v' as int"),
        (numbers.selectExpr("double(v) AS v"), numbers, "'v' as double"),
    ):
        with pytest.raises(DataError, match=types) as caught:
            with_category(df, "v", count_categories(counted, "v"), index="n")
        assert caught.value.code == "data-type"
    wide = with_category(numbers.selectExpr("bigint(v) AS v"), "v", count_categories(numbers, "v"), index="n")
    assert wide.collect() == [(7, 1)]


def test_names_are_found_as_spark_finds_them(spark: Any) -> None:
    rows = [("u", 1, 1.0), ("u", 2, 2.0), ("v", 3, 3.0)]
    df = spark.createDataFrame(rows, "User string, Item int, Time double")
    assert [row.length for row in with_history(df, 2).orderBy("Time").collect()] == [0, 1, 0]
    assert [part.count() for part in leave_last_out(df)] == [2, 1]
    assert with_negatives(df, 1).count() == 3
    scaled = with_scaled(df, "z", summarise_numbers(df, "time")["time"]).toPandas()
    np.testing.assert_allclose(scaled.z, (scaled.Time - 2) / np.std([1, 2, 3]))
    assert with_hash(df, "id", "user").toPandas().id.tolist() == hash_ids(["u", "u", "v"]).tolist()


def test_the_last_events_are_held_out(spark: Any, events: Any, table: pd.DataFrame) -> None:
    train, test = leave_last_out(events, last=2)
    held = test.toPandas()
    assert pairs(train) | pairs(test) == {tuple(row) for row in table[["user", "item"]].to_numpy()}
    assert (held.groupby("user").size() == 2).all()
    newest = table.groupby("user").time.apply(lambda times: sorted(times)[-2])
    assert (held.time >= held.user.map(newest)).all()
    assert train.count() + len(held) == len(table)
    again = leave_last_out(events.orderBy("rating"), last=2)[1].toPandas()
    assert {*map(tuple, again[KEYS].to_numpy())} == {*map(tuple, held[KEYS].to_numpy())}
    few = spark.createDataFrame([(1, 1, 5), (2, 1, 1), (2, 3, 9)], "user int, item int, time int")
    before, after = leave_last_out(few)
    assert (pairs(before), pairs(after)) == ({(1, 1), (2, 1)}, {(2, 3)})
    early, late = split_by_time(events, share=0.8)
    cut = early.agg({"time": "max"}).collect()[0][0]
    assert late.agg({"time": "min"}).collect()[0][0] > cut
    assert early.count() == pytest.approx(0.8 * len(table), abs=60)
    assert [part.count() for part in split_by_time(few, at=5)] == [1, 2]
    with pytest.raises(ConfigError, match="expected one of them"):
        split_by_time(few)
    with pytest.raises(DataError, match="time='moment' is not in the DataFrame"):
        leave_last_out(few, time="moment")


def test_events_of_one_moment_and_item_are_split_alike_in_whatever_order_they_come(spark: Any) -> None:
    """Both parts are read by jobs of their own: an event would be in both of them, or in none."""
    rows = [(1, 1, 1), (1, 2, 5), (1, 2, 5), (1, 2, 5), (2, 4, 5), (2, 4, 5), (2, 4, 6)]
    given = [(*row, n, {"n": n}, [(n, {1: n})], [float(n)]) for n, row in enumerate(rows)]
    names = "number int, m map<string,int>, s array<struct<a:int,b:map<int,int>>>, v array<float>"
    schema = f"user int, item int, time int, {names}"
    orders = [spark.createDataFrame(rows, schema).coalesce(1) for rows in (given, given[::-1])]
    found = [[{row.number for row in part.collect()} for part in leave_last_out(df)] for df in orders]
    assert found[0] == found[1]
    assert [len(part) for part in found[0]] == [5, 2]
    assert found[0][0] | found[0][1] == set(range(7))
    lengths = [{row.number: row.length for row in with_history(df, 3).collect()} for df in orders]
    assert lengths[0] == lengths[1]


def test_events_of_one_moment_stay_together(spark: Any) -> None:
    times = [*[1] * 8, 2, 3]
    df = spark.createDataFrame([(time,) for time in times], "time int")
    sizes = [[part.count() for part in split_by_time(df, share=share)] for share in (0.1, 0.5, 0.87, 0.99)]
    assert sizes == [[8, 2], [8, 2], [9, 1], [9, 1]]
    even = spark.range(10).selectExpr("timestamp_seconds(id * 86400) as time")
    assert [part.count() for part in split_by_time(even, share=0.5)] == [5, 5]
    with pytest.raises(DataError, match="all rows have time=1: no moment splits them"):
        split_by_time(df.where("time = 1"), share=0.5)


@pytest.mark.parametrize("zoned", [True, False])
def test_a_clock_that_is_changed_moves_no_split(
    spark: Any, monkeypatch: pytest.MonkeyPatch, zoned: bool
) -> None:
    """In Berlin one hour of 27 October 2024 came twice, and one of 31 March never."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    tzset()
    try:
        if zoned:
            moment = (F.lit(1729987200) + F.col("id") * 300).cast("timestamp")
        else:
            moment = F.expr("timestamp_ntz'2024-03-31 00:30:00' + make_dt_interval(0, 0, 0, id * 300)")
        df = spark.range(40).select(moment.alias("time"))
        sizes = [[part.count() for part in split_by_time(df, share=n / 40)] for n in (10, 18, 28)]
        assert sizes == [[10, 30], [18, 22], [28, 12]]
        at = datetime(2024, 10, 27, 2, 30) if zoned else datetime(2024, 3, 31, 2, 30)
        counts = [split_by_time(df, at=moment)[0].count() for moment in (at, at.replace(fold=1))]
        assert counts == ([6, 18] if zoned else [24, 24])
        assert split_by_time(df, at=pd.Timestamp(at))[0].count() == counts[0]
    finally:
        monkeypatch.undo()
        tzset()


def test_a_moment_that_is_no_number_splits_nothing(spark: Any) -> None:
    df = spark.createDataFrame([(1.0,), (2.0,)], "time double")
    with pytest.raises(ConfigError, match="at=nan: expected a value of column 'time'"):
        split_by_time(df, at=float("nan"))


@pytest.mark.parametrize("how", [{"share": 0.5}, {"at": 2}])
def test_events_without_a_time_are_not_lost(spark: Any, how: dict[str, Any]) -> None:
    df = spark.createDataFrame([(1,), (None,), (3,)], "time int")
    with pytest.raises(DataError, match="column 'time' is null in 1 of 3 rows, which belong to neither part"):
        split_by_time(df, **how)
    with pytest.raises(DataError, match="null in all rows"):
        split_by_time(df.where("time is null"), **how)


@pytest.mark.parametrize("column", ["user", "time"])
def test_events_of_nobody_or_at_no_moment_are_refused(spark: Any, column: str) -> None:
    """All of nobody's would be of one user, and those at no moment before all others."""
    df = spark.createDataFrame([("u", 1, 1), ("u", 2, 2), ("v", 3, 3)], "user string, item int, time int")
    whole = df.withColumn(column, F.when(F.col("item") != 2, F.col(column)))
    for make in (leave_last_out, partial(with_history, size=2)):
        with pytest.raises(DataError, match=rf"column '{column}' is null in 1 rows; drop them") as caught:
            make(whole)
        assert caught.value.code == "data-null"
    assert with_history(whole.dropna(), size=2).count() == 2


def test_nan_is_no_value(spark: Any) -> None:
    """It is what pandas makes of a missing number: such rows were of one user, or at the last moment."""
    nan = float("nan")
    df = spark.createDataFrame(
        [(1.0, 1, 1.0), (1.0, 2, nan), (nan, 3, 3.0)], "user double, item int, time double"
    )
    for make, column in (
        (leave_last_out, "user"),
        (partial(with_history, size=2), "user"),
        (partial(with_history, size=2, user="item"), "time"),
        (partial(with_negatives, count=1), "user"),
    ):
        with pytest.raises(DataError, match=f"column '{column}' is null or NaN in 1 rows"):
            make(df)
    with pytest.raises(DataError, match="column 'time' is null or NaN in 1 of 3 rows"):
        split_by_time(df, share=0.5)


def test_strict_histories_hold_earlier_moments_only(spark: Any) -> None:
    rows = [("u", item, time) for item, time in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 3)]]
    df = spark.createDataFrame([*rows, ("v", 9, 2)], "user string, item int, time int").repartition(3)
    found = {row.item: row for row in with_history(df, 4, strict=True).collect()}
    seen = {item: {*row.history[: row.length]} for item, row in found.items()}
    assert all(seen[item] == set() for item in (1, 2, 9))
    assert all(seen[item] == {1, 2} for item in (3, 4, 5))
    assert len(seen[6]) == 4
    loose = {row.item: row for row in with_history(df, 4).collect()}
    assert list(found[6].history) == list(loose[6].history), "the last four in the same order"
    assert sorted(loose[item].length for item in (3, 4, 5)) == [2, 3, 4]


def test_histories_hold_what_came_before(spark: Any, events: Any) -> None:
    found = with_history(events, 5).toPandas()
    for _, own in found.groupby("user"):
        by_length = own.sort_values(["time", "length"])  # the order is told by growing histories
        first = by_length.iloc[0]
        assert (first.length, list(first.history)) == (0, [0] * 5)
        for row in own.itertuples():
            assert len(row.history) == 5
            past = list(row.history)[: row.length]
            assert row.item not in past
            assert not any(row.history[row.length :])
            assert (own[own["item"].isin(past)].time <= row.time).all()
        assert sorted(own.length)[:6] == [0, 1, 2, 3, 4, 5]
    rows = [("u", 7, 1), ("u", 8, 2), ("u", None, 3), ("u", 9, 4), ("v", 1, 1)]
    few = spark.createDataFrame(rows, "user string, item int, time int")
    told = {(r.user, r.time): (list(r.history), r.length) for r in with_history(few, 2).collect()}
    assert told["u", 3] == ([7, 8], 2)
    assert told["u", 4] == ([7, 8], 2), "a null among the last events takes no place"
    assert told["v", 1] == ([0, 0], 0)
    with pytest.raises(DataError, match=r"item='user' has type string, expected integers: with_hash"):
        with_history(few, 2, item="user")


@pytest.mark.parametrize("strict", [False, True])
def test_histories_with_nulls_are_those_of_a_loop(spark: Any, strict: bool) -> None:
    random = np.random.default_rng(0)
    rows = [
        (int(random.integers(3)), None if random.random() < 0.4 else n, int(when))
        for n, when in enumerate(random.permutation(90), start=1)
    ]
    df = spark.createDataFrame(rows, "user int, item int, time int")
    found = {row.time: row for row in with_history(df, 4, strict=strict).collect()}
    past: dict[int, list[int]] = {}
    for user, item, time in sorted(rows, key=lambda row: row[2]):
        last = past.setdefault(user, [])[-4:]
        assert (found[time].history, found[time].length) == (last + [0] * (4 - len(last)), len(last))
        past[user] += [] if item is None else [item]


@pytest.mark.slow
def test_negatives_are_new_to_the_user(spark: Any, events: Any, table: pd.DataFrame) -> None:
    train, test = leave_last_out(events)
    found = with_negatives(train, 8, items=events, seed=3).toPandas()
    assert len(found) == train.count()
    seen = train.toPandas().groupby("user")["item"].agg(set)
    drawn = np.array(found.negatives.tolist())
    assert all(len({*row}) == 8 for row in drawn)
    assert not any(seen[user] & {*row} for user, row in zip(found.user, drawn, strict=True))
    held = dict(zip(*test.toPandas()[["user", "item"]].to_numpy().T, strict=True))
    assert any(held[user] in row for user, row in zip(found.user, drawn, strict=True))
    # All unseen items are equally likely: a user's draws spread over them.
    user = found.user.value_counts().index[0]
    own = drawn[found.user == user].ravel()
    unseen = table.item.nunique() - len(seen[user])
    counts = np.bincount(own, minlength=table["item"].max() + 1)[sorted({*table["item"]} - seen[user])]
    assert counts.mean() == pytest.approx(len(own) / unseen)
    assert counts.var() < 2 * counts.mean()
    again = with_negatives(train.orderBy("rating"), 8, items=events, seed=3).toPandas()
    left, right = (frame.sort_values(["user", "item"]).negatives.tolist() for frame in (found, again))
    assert [list(row) for row in left] == [list(row) for row in right]


def test_negatives_of_an_evaluation_and_in_rows(spark: Any) -> None:
    rows = [("u", "a"), ("u", "b"), ("v", "c")]
    df = spark.createDataFrame(rows, "user string, item string")
    catalogue = spark.createDataFrame([(name,) for name in "abcdef"], "item string")
    last = df.where("item = 'b'")
    found = with_negatives(last, 4, seen=df, items=catalogue, output="others").collect()
    assert sorted(found[0].others) == ["c", "d", "e", "f"]
    labelled = with_negatives(df, 2, items=catalogue, label="chosen").collect()
    assert len(labelled) == 9
    assert {(r.user, r["item"]) for r in labelled if r.chosen == 1} == {*rows}
    assert not {(r.user, r["item"]) for r in labelled if r.chosen == 0} & {*rows}
    with pytest.raises(DataError, match="user 'u' has seen all 2 items"):
        with_negatives(df.where("user = 'u'"), 1)
    with pytest.raises(DataError, match="'item' is null in 1 rows"):
        with_negatives(spark.createDataFrame([("u", None)], "user string, item string"), 1)
    with pytest.raises(DataError, match="items has 'item' as int, the DataFrame 'item' as string"):
        with_negatives(df, 1, items=spark.createDataFrame([(1,)], "item int"))
    wide = with_negatives(
        spark.createDataFrame([("u", 1)], "user string, item int"),
        5,
        items=spark.createDataFrame([(1,), (2,), (1 << 40,)], "item long"),
    ).collect()
    assert len(wide[0].negatives) == 5
    assert {*wide[0].negatives} == {2, 1 << 40}  # there are no others
    with pytest.raises(DataError, match="seen has 'user' as int, the DataFrame 'user' as string"):
        with_negatives(df, 1, seen=spark.createDataFrame([(1, "c")], "user int, item string"))


def test_negatives_of_a_row_spread_over_all_unseen_items(spark: Any) -> None:
    """Each item comes as often as any other, and with any other: 12 are cut into 3 stretches of 4."""
    users = 600
    df = spark.createDataFrame(pd.DataFrame({"user": np.arange(users), "item": 0}))
    catalogue = spark.createDataFrame(pd.DataFrame({"item": np.arange(13)}))
    drawn = np.array([row.negatives for row in with_negatives(df, 3, items=catalogue, seed=1).collect()])
    together = np.zeros((13, 13))
    for own in drawn:
        together[np.ix_(own, own)] += 1
    chosen = np.diag(together)
    assert chosen[0] == 0, "which all users have seen"
    assert (abs(chosen[1:] - users * 3 / 12) < 4 * np.sqrt(users * 3 / 12 * 9 / 12)).all()
    # Of two stretches' 12 * 4 * 4 draws three are of the same neighbours in the order of the draw.
    assert together[1:, 1:].min() > users * 3 / (12 * 4 * 4) / 3


def test_users_without_a_row_may_have_seen_all_items(spark: Any) -> None:
    """Nor need anybody know of nobody's events: those of all strangers together are of all items."""
    df = spark.createDataFrame([("u", 1), ("u", 2)], "user string, item int")
    others = [(user, item) for user in ("w", None) for item in range(1, 5)]
    seen = spark.createDataFrame([*others, ("u", 3)], "user string, item int")
    assert [row.negatives for row in with_negatives(df, 1, seen=seen).collect()] == [[4], [4]]


def test_numbers_are_scaled_and_put_into_buckets(spark: Any) -> None:
    values = np.random.default_rng(0).exponential(3, 400)
    rows = [(n, float(value), n % 3) for n, value in enumerate(values)]
    df = spark.createDataFrame(
        [*rows, (400, None, None), (401, float("nan"), None)], "n int, x double, k int"
    )
    found = summarise_numbers(df, "x", "k", buckets=4)
    x, k = found["x"], found["k"]
    assert NumberSummary.from_json(json.loads(json.dumps(x.to_json()))) == x
    assert (x.count, x.low, x.high) == (400, values.min(), values.max())
    assert (x.mean, x.deviation) == pytest.approx((values.mean(), values.std()))
    assert x.splits == pytest.approx(np.sort(values)[[99, 199, 299]])
    assert k.splits == (1.0, 2.0)
    for scale in ("standard", "min_max", "log"):
        df = with_scaled(df, scale, x, scale=scale)
    df = with_buckets(with_buckets(df, "bucket", x), "level", k)
    table = df.orderBy("n").toPandas()
    np.testing.assert_allclose(table.standard[:400], (values - values.mean()) / values.std())
    np.testing.assert_allclose(table.min_max[:400], (values - values.min()) / np.ptp(values))
    np.testing.assert_allclose(table.log[:400], np.log1p(values - values.min()))
    assert not table.iloc[400:][["standard", "min_max", "log", "bucket", "level"]].to_numpy().any()
    assert table.bucket[:400].tolist() == (np.searchsorted(x.splits, values, "right") + 1).tolist()
    assert table.level[:3].tolist() == [1, 2, 3]
    infinite = spark.createDataFrame([(float("inf"),), (-float("inf"),)], "x double")
    assert [row.y for row in with_scaled(infinite, "y", x, scale="min_max").collect()] == [1.0, 0.0]
    for scale in ("standard", "log"):
        with pytest.raises(Exception, match="with_scaled: column 'x' has infinite values"):
            with_scaled(infinite, "y", x, scale=scale).collect()
    with pytest.raises(DataError, match="'x' has infinite values"):
        summarise_numbers(spark.createDataFrame([(float("inf"),)], "x double"), "x")
    for low, high, scales in (
        (-1e200, 1e200, ("standard",)),
        (-1e308, 1e308, ("min_max", "log")),
        (0, 1e-160, ("standard",)),
    ):
        given = np.array([low, high, 0.0])
        with np.errstate(over="ignore"):
            far = NumberSummary("x", 3, float(given.mean()), float(given.std()), low, high, ())
        for scale in scales:
            with pytest.raises(DataError, match=re.escape(f"'x' has values from {low} to {high}: doubles")):
                with_scaled(infinite, "y", far, scale=scale)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'x' is null in all rows"):
        summarise_numbers(spark.createDataFrame([(None,)], "x double"), "x")
    with pytest.raises(ConfigError, match="scale='rank'"):
        with_scaled(df, "y", x, scale="rank")  # type: ignore[arg-type]


def test_equal_numbers_have_no_deviation(spark: Any) -> None:
    """Spark's mean of 11 times 0.1 and that of one differ in a digit, and so a deviation is left of them."""
    eleven, one = (spark.range(n).coalesce(1).selectExpr("0.1D + 0 * id as x") for n in (11, 1))
    df = eleven.union(one)
    x = summarise_numbers(df, "x")["x"]
    assert (x.mean, x.deviation) == (0.1, 0.0)
    assert {row.y for row in with_scaled(df, "y", x).collect()} == {0.0}


def test_an_id_by_hash_is_one_in_any_frame(events: Any) -> None:
    assert hash_ids([1, 2], salt="item").tolist() != hash_ids([1, 2]).tolist()
