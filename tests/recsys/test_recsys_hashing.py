"""Ids by hash: the same with and without Spark, for integers, strings, booleans, null and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparkdl.exceptions import ConfigError, DataError
from sparkdl.recsys import collisions, hash_ids, with_hash

TEXTS = ["", "a", "ann", "Łódź", "x" * 31, "x" * 32, "y" * 100, None]
NUMBERS = [0, -1, 7, 2**40, -(2**63), 2**63 - 1, None, 5]
FLAGS = [True, False, None, True, True, False, False, None]


def test_ids_are_those_of_spark(spark: Any) -> None:
    rows = list(zip(TEXTS, NUMBERS, FLAGS, strict=True))
    df = spark.createDataFrame(
        [(n, *row, list(row[:1])) for n, row in enumerate(rows)],
        ("n int, `te.xt` string, number bigint, flag boolean, many array<string>"),
    )
    df = with_hash(df, "one", "te.xt", salt="s")
    df = with_hash(df, "cross", "te.xt", "number", "flag")
    df = with_hash(df, "small", "number", "te.xt", buckets=10)
    df = with_hash(df.withColumn("short", df.n.cast("smallint")), "width", "short")
    found = with_hash(df, "each", "many", salt="s").orderBy("n").toPandas()
    assert found.one.tolist() == hash_ids(TEXTS, salt="s").tolist()
    assert found.cross.tolist() == hash_ids(TEXTS, NUMBERS, FLAGS).tolist()
    assert found.small.tolist() == hash_ids(NUMBERS, TEXTS, buckets=10).tolist()
    assert found.width.tolist() == hash_ids(np.arange(8)).tolist()
    assert [list(each) for each in found.each] == [[one] for one in found.one]
    lost = collisions(df, "number", "te.xt", buckets=3)
    assert (lost.values, lost.ids, lost.lost) == (8, 3, 5)
    with pytest.raises(DataError, match=r"columns\[0\]='nobody' is not in the DataFrame"):
        with_hash(df, "x", "nobody")
    with pytest.raises(DataError, match="output='small' is in the DataFrame already"):
        with_hash(df, "small", "n")
    with pytest.raises(DataError, match=r"'half' has type double.*with_buckets"):
        with_hash(df.selectExpr("n / 2 AS half"), "x", "half")


def test_null_and_order_count() -> None:
    assert hash_ids([None], ["a"])[0] != hash_ids(["a"], [None])[0]
    assert hash_ids(["a"], ["b"])[0] != hash_ids(["b"], ["a"])[0]
    assert hash_ids([0])[0] != hash_ids([None])[0]
    assert hash_ids(["a"])[0] != hash_ids(["a"], salt="user")[0]
    assert hash_ids(np.array([3, 4], np.int32)).tolist() == hash_ids([3, 4]).tolist()
    masked = [np.ma.array([3, 4], mask=[0, 1]), np.ma.array(["a", "b"], mask=[1, 0])]
    assert hash_ids(*masked).tolist() == hash_ids([3, None], [None, "b"]).tolist()
    assert (hash_ids(range(-50, 50), buckets=7) >= 0).all()


def test_hashes_stay_as_they_are() -> None:
    assert hash_ids(["ann"], [3]).tolist() == [-8419084997967902072]


def test_what_cannot_be_hashed_is_named() -> None:
    with pytest.raises(DataError, match=r"columns\[1\], value 1 is 0.5"):
        hash_ids(["a", "b"], [1, 0.5])
    with pytest.raises(DataError, match=r"\[2, 1\] values"):
        hash_ids([1, 2], [1])
    with pytest.raises(ConfigError, match="buckets=0"):
        hash_ids([1], buckets=0)
    with pytest.raises(ConfigError, match="at least one column"):
        hash_ids()


@pytest.mark.parametrize(
    "values",
    [[1, 2**63], [1, 2**63, None], np.array([1, 2**63], np.uint64), [1, -(2**63) - 1]],
    ids=["list", "with null", "unsigned", "negative"],
)
def test_integers_that_spark_has_no_type_for_are_refused(values: Any) -> None:
    with pytest.raises(
        DataError, match=r"columns\[0\], value 1 is -?922337203685477580[89], expected an integer"
    ):
        hash_ids(values)
    ends = np.array([2**63 - 1, -(2**63)])
    assert hash_ids(ends).tolist() == hash_ids(ends.tolist()).tolist()
