"""Datasets from DataFrames, RDDs and arrays, as the tasks see them."""

from __future__ import annotations

import shutil
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql import types as T
from support.stores import store_files

from sparkdl import Column, Dataset, Trainer
from sparkdl.data.store.dataframe import Places
from sparkdl.data.store.partition import Token, read_positions, read_rows
from sparkdl.data.streams import Dealt
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.train import MaxEpoch
from sparkdl.wire import frame


def contents(data: Dataset) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Read each partition's columns back, in stored order."""
    data.store()

    def read(partition: int, tokens: Any) -> Any:
        for token in (Token.from_frame(frame.unpack(t)) for t in tokens):
            rows = np.arange(token.rows)
            columns = read_rows(token, rows)
            yield frame.pack({}, columns | {"positions": read_positions(token, rows)} if columns else {})

    frames = data.access.collect(data.access.stage(data.store().tokens, read))
    return [{k: v.copy() for k, v in frame.unpack(f).arrays.items()} for f in frames]


def column(data: Dataset, key: str) -> np.ndarray[Any, Any]:
    return np.concatenate([c[key] for c in contents(data) if c])


ROWS = [
    Row(
        b=True, i=1, f=1.5, d=Decimal("2.5"), a=[1.0, 2.0], n=[[1, 2], [3, 4]], v=Vectors.dense(1, 2, 3),
        raw=bytes([1, 2, 3, 4]), half=np.arange(2, dtype="<f4").tobytes(),
    ),
    Row(
        b=False, i=2, f=-0.5, d=Decimal("-1.0"), a=[3.0, 4.0], n=[[5, 6], [7, 8]],
        v=Vectors.sparse(3, {1: 9.0}), raw=bytes([5, 6, 7, 255]), half=np.ones(2, "<f4").tobytes(),
    ),
]  # fmt: skip
SCHEMA = T.StructType(
    [
        T.StructField("b", T.BooleanType()),
        T.StructField("i", T.IntegerType()),
        T.StructField("f", T.DoubleType()),
        T.StructField("d", T.DecimalType(10, 2)),
        T.StructField("a", T.ArrayType(T.DoubleType())),
        T.StructField("n", T.ArrayType(T.ArrayType(T.LongType()))),
        T.StructField("v", VectorUDT()),
        T.StructField("raw", T.BinaryType()),
        T.StructField("half", T.BinaryType()),
    ]
)
COLUMNS = [
    ("b", "float32", [1, 0]),
    (Column("b", dtype="int64"), "int64", [1, 0]),
    ("i", "int64", [1, 2]),
    ("f", "float32", [1.5, -0.5]),
    (Column("f", dtype="float64"), "float64", [1.5, -0.5]),
    ("d", "float32", [2.5, -1.0]),
    ("a", "float32", [[1, 2], [3, 4]]),
    (Column("a", shape=(1, 2)), "float32", [[[1, 2]], [[3, 4]]]),
    ("n", "int64", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
    (Column("n", shape=(4,), dtype="uint8"), "uint8", [[1, 2, 3, 4], [5, 6, 7, 8]]),
    ("v", "float32", [[1, 2, 3], [0, 9, 0]]),
    (Column("raw", shape=(2, 2)), "uint8", [[[1, 2], [3, 4]], [[5, 6], [7, 255]]]),
    (Column("half", shape=(2,), dtype="float32"), "float32", [[0, 1], [1, 1]]),
]


def test_every_column_type(spark: Any) -> None:
    df = spark.createDataFrame(ROWS, SCHEMA)
    with Dataset.from_dataframe(df, features=[c for c, _, _ in COLUMNS], num_partitions=1) as data:
        (stored,) = contents(data)
    for index, (_, dtype, values) in enumerate(COLUMNS):
        found = stored[f"features_{index}"]
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.array(values, dtype))


def test_dict_of_features_and_odd_names(spark: Any) -> None:
    df = spark.createDataFrame([(1, 2.0, 3)], "`user id` int, `a.b` double, y int")
    with Dataset.from_dataframe(df, features={"user": "user id", "x": "a.b"}, label="y") as data:
        assert data.plan.features.names == ("user", "x")
        assert set(contents(data)[0]) == {"features_user", "features_x", "label", "positions"}


def test_default_is_one_partition_per_executor(spark: Any) -> None:
    with Dataset.from_dataframe(spark.range(10), features="id") as data:
        assert len(data.store().partitions) == 1
        assert len(data) == 10


def test_repartitioning_is_even_and_repeatable(spark: Any) -> None:
    df = spark.range(0, 1000, numPartitions=7)
    found = []
    for _ in range(2):
        with Dataset.from_dataframe(df, features="id", num_partitions=4) as data:
            found.append([c["features"].tolist() for c in contents(data)])
            sizes = data.store().rows
    assert found[0] == found[1]
    assert sorted(np.concatenate(found[0])) == list(range(1000))
    assert max(sizes) - min(sizes) <= 7


def test_input_partitions_are_kept_with_empty_ones(spark: Any) -> None:
    df = spark.range(0, 9, numPartitions=3).filter("id < 3 or id >= 6")
    with Dataset.from_dataframe(df, features="id", num_partitions="input") as data:
        assert data.store().rows == (3, 0, 3)
        assert [c["features"].tolist() for c in contents(data) if c] == [[0, 1, 2], [6, 7, 8]]


def test_more_partitions_than_rows(spark: Any) -> None:
    with Dataset.from_dataframe(spark.range(3), features="id", num_partitions=8) as data:
        assert sum(data.store().rows) == 3
        assert len(data.store().partitions) == 8


def test_rdd_of_tuples_is_spread_in_a_repeatable_way(spark: Any) -> None:
    rdd = spark.sparkContext.parallelize([(np.full((2, 2), i, np.uint8), i % 2) for i in range(11)], 3)
    found = []
    for _ in range(2):
        with Dataset.from_rdd(rdd, num_partitions=2) as data:
            found.append([c["features"][:, 0, 0].tolist() for c in contents(data)])
            assert data.plan.columns[0].dtype == "uint8"
            assert data.plan.columns[0].shape == (2, 2)
    assert found[0] == found[1]
    assert sorted(np.concatenate(found[0])) == list(range(11))


def test_arrays_are_dealt_in_their_order(spark: Any) -> None:
    x = np.arange(10, dtype=np.float64)
    with Dataset.from_numpy([x, x > 4], label=np.arange(10), spark=spark, num_partitions=3) as data:
        order = column(data, "label")
        assert order.tolist() == [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]
        np.testing.assert_array_equal(column(data, "features_0"), x[order])
        assert column(data, "features_1").dtype == np.float32


@pytest.mark.parametrize(
    "partitions", [pytest.param(1, marks=pytest.mark.whole), pytest.param(2, marks=pytest.mark.whole), 3, 7]
)
@pytest.mark.parametrize("kind", ["dataframe", "rdd"])
def test_rows_are_dealt_by_their_numbers(spark: Any, kind: str, partitions: int) -> None:
    """Whatever input partitions there are, row i is in the partition of stream i % 20,160, in order."""
    sizes = [0, 15_000, 1, 0, 26_000, 33, 0]
    ends = np.cumsum([0, *sizes])
    rdd = spark.sparkContext.parallelize(range(7), 7).flatMap(
        lambda n: [(int(i),) for i in range(ends[n], ends[n + 1])]
    )
    if kind == "rdd":
        made = Dataset.from_rdd(rdd.map(lambda row: row[0]), has_label=False, num_partitions=partitions)
    else:
        df = spark.createDataFrame(rdd, "id long")
        made = Dataset.from_dataframe(df, features="id", num_partitions=partitions)
    with made as data:
        for number, found in enumerate(contents(data)):
            expected = Dealt(sum(sizes), number, partitions).numbers()
            np.testing.assert_array_equal(found["features"], expected)


def test_a_dataframe_in_any_partitions_trains_the_same_but_for_rounding(spark: Any, tmp_path: Path) -> None:
    """In double precision, in which rounding is far from anything else; the rows are those of a file."""
    df = spark.range(0, 1000, 1, 5).select(
        F.expr("transform(sequence(1, 6), k -> sin(id * k))").alias("x"), F.expr("cos(id * 0.1)").alias("y")
    )
    df.write.parquet(str(tmp_path / "rows"))
    features, label = Column("x", dtype="float64"), Column("y", dtype="float64")

    def trained(partitions: int) -> torch.Tensor:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
        rows = spark.read.parquet(str(tmp_path / "rows"))
        with Dataset.from_dataframe(rows, features=features, label=label, num_partitions=partitions) as data:
            result = Trainer(
                module,
                loss=lambda output, label: ((output[:, 0] - label) ** 2).mean(),
                optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
                batch_size=64,
                end_when=MaxEpoch(2),
                seed=3,
                progress=False,
            ).fit(data)
        return torch.cat([p.detach().reshape(-1) for p in result.module.parameters()])

    one = trained(1)
    assert float((trained(3) - one).norm() / one.norm()) < 1e-12


def test_a_source_that_gives_other_rows_each_time_is_refused(spark: Any, tmp_path: Path) -> None:
    """Rows are counted before they are dealt."""
    counted = tmp_path / "counted"

    def rows(partition: int, _: Any) -> Any:
        yield from range(21 if counted.exists() else 30)
        if partition == 1:
            counted.touch()

    rdd = spark.sparkContext.parallelize(range(3), 3).mapPartitionsWithIndex(rows)
    data = Dataset.from_rdd(rdd, has_label=False, num_partitions=2)
    with pytest.raises(DataError, match="other rows when they were read than when they were counted"):
        data.store()


@pytest.mark.parametrize("ids", [[0, 2, 4], [0, 4, 2], [0, 2, (1 << 33) + 2], [2, 4, 6]])
def test_rows_of_other_numbers_than_were_counted_are_found(ids: list[int]) -> None:
    """Two input partitions, of which the first had 5 rows; as many rows, of which some are others."""
    batches = [(np.array(ids[:2]), {"x": np.zeros(2)}), (np.array(ids[2:]), {"x": np.zeros(1)})]
    checked = Places.after([5]).check(batches, 0, 2)
    if ids == [0, 2, 4]:
        assert [rows.tolist() for rows, _ in checked] == [[0, 2], [4]]
    else:
        with pytest.raises(DataError, match="partition 0 has rows of other numbers"):
            list(checked)


def test_more_partitions_than_streams_are_refused(spark: Any) -> None:
    with pytest.raises(ConfigError, match="num_partitions=20161: expected at most 20160"):
        Dataset.from_numpy(np.arange(5), spark=spark, num_partitions=20161).store()


@pytest.mark.parametrize("num_partitions", [pytest.param(1, marks=pytest.mark.whole), 4, "input"])
@pytest.mark.parametrize("kind", ["dataframe", "rdd", "numpy"])
def test_positions_give_the_order_of_the_source(spark: Any, kind: str, num_partitions: Any) -> None:
    if kind == "numpy" and num_partitions == "input":
        pytest.skip("arrays have no partitions")
    df = spark.range(0, 200, numPartitions=7).filter("id % 3 = 0").orderBy((F.col("id") * 37) % 101, "id")

    def rdd() -> Any:
        return spark.sparkContext.parallelize(range(50, 0, -1), 6)

    expected, data = {
        "dataframe": lambda: (
            [row.id for row in df.collect()],
            Dataset.from_dataframe(df, features="id", num_partitions=num_partitions),
        ),
        "rdd": lambda: (
            list(range(50, 0, -1)),
            Dataset.from_rdd(rdd(), has_label=False, num_partitions=num_partitions),
        ),
        "numpy": lambda: (
            list(range(50, 0, -1)),
            Dataset.from_numpy(np.arange(50, 0, -1), spark=spark, num_partitions=num_partitions),
        ),
    }[kind]()
    with data:
        order = np.argsort(column(data, "positions"))
        assert len(set(column(data, "positions"))) == len(order)
        assert column(data, "features")[order].tolist() == expected


def test_peek_needs_no_store(spark: Any) -> None:
    data = Dataset.from_dataframe(spark.range(5), features="id")
    np.testing.assert_array_equal(data.peek()["features"], [0, 1])
    assert data._store is None


def test_release_and_rebuild(spark: Any) -> None:
    data = Dataset.from_dataframe(spark.range(6), features="id", num_partitions=2)
    folders = [Path(t.folder) for t in data.store().partitions]
    assert all(f.is_dir() for f in folders)
    data.release()
    assert not any(f.exists() for f in folders)
    assert sorted(column(data, "features")) == list(range(6))
    data.release()
    data.release()


def test_a_missing_partition_is_rebuilt(spark: Any) -> None:
    from sparkdl import Trainer
    from sparkdl.train import MaxIteration

    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    losses = []
    for lose in (False, True):
        with Dataset.from_numpy(x, x.sum(axis=1, keepdims=True), spark=spark, num_partitions=3) as data:
            if lose:
                for token in data.store().partitions[1:]:
                    shutil.rmtree(token.folder)
            torch.manual_seed(0)
            result = Trainer(
                torch.nn.Linear(4, 1),
                loss=torch.nn.MSELoss(),
                optimizer=partial(torch.optim.Adam, lr=0.1),
                batch_size=20,
                end_when=MaxIteration(6),
                progress=False,
            ).fit(data)
            losses.append(result.history.column("loss"))
    assert losses[0] == losses[1]


def test_sql_conf_is_restored(spark: Any) -> None:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    with Dataset.from_dataframe(spark.range(5), features="id") as data:
        data.store()
    assert spark.conf.get(name) == before


# -- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "label", "message"),
    [
        ("nope", None, "features column 'nope' is not in the DataFrame; it has"),
        ("x", "nope", "label column 'nope'"),
        ("s", None, "'s' has type string: .*StringIndexer"),
        ("t", None, "'t' has type timestamp: .*unix_timestamp"),
        ("m", None, "'m' has type map<string,int>: expected numbers"),
        ("raw", None, r"'raw' is binary: .*Column\('raw', shape="),
        (["x", "s"], None, "'s' has type string"),
    ],
)
def test_schema_mistakes_are_found_at_once(spark: Any, features: Any, label: Any, message: str) -> None:
    df = spark.createDataFrame([], "x double, s string, t timestamp, m map<string,int>, raw binary")
    with pytest.raises(DataError, match=message):
        Dataset.from_dataframe(df, features=features, label=label)


@pytest.mark.parametrize(
    ("schema", "rows", "options", "message"),
    [
        ("x double", [(1.0,), (None,)], {}, r"column 'x', row 1 of input partition 0: null"),
        ("x array<double>", [([1.0],), ([None],)], {}, "column 'x', row 1 .*null inside"),
        ("x array<double>", [([1.0],), ([1.0, 2.0],)], {}, "row 1 .*array of 2 values where other rows"),
        (
            "x array<array<double>>",
            [([[1.0], [2.0]],), ([[1.0], [2.0, 3.0]],)],
            {},
            "row 1 .*array of 2 values where other rows have 1",
        ),
        ("x double, y double", [(1.0, 1.0), (1.0, float("nan"))], {"label": "y"}, "'y', row 1 .*nan must be"),
        ("x double, w double", [(1.0, -1.0)], {"weight": "w"}, "'w', row 0 .*-1.0 must not be negative"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("late", [False, True], ids=["first rows", "later rows"])
def test_bad_rows_name_column_and_row(
    spark: Any, schema: str, rows: Any, options: Any, message: str, late: bool
) -> None:
    if late:  # hide the bad row from the peek
        good = rows[0] if len(rows) > 1 else (1.0, 1.0)
        rows = [good] * 5 + rows
        message = message.replace("row 1 ", r"row 6 ").replace("row 0 ", r"row 5 ")
    df = spark.createDataFrame(rows, schema).coalesce(1)
    with pytest.raises(DataError, match=message):
        Dataset.from_dataframe(df, features="x", **options).store()


def test_ragged_across_partitions(spark: Any) -> None:
    df = spark.createDataFrame([([1.0],), ([1.0],), ([1.0, 2.0],), ([1.0, 2.0],)], "x array<double>")
    with pytest.raises(DataError, match="array of 2 values where other rows have 1"):
        Dataset.from_dataframe(df, features="x", num_partitions=2).store()


@pytest.mark.parametrize("build", [
    lambda spark: Dataset.from_dataframe(spark.range(0), features="id").store(),
    lambda spark: Dataset.from_rdd(spark.sparkContext.parallelize([], 2)).store(),
    lambda spark: Dataset.from_numpy(np.empty((0, 3)), spark=spark).store(),
])  # fmt: skip
def test_empty_sources(spark: Any, build: Any) -> None:
    with pytest.raises(DataError, match=r"empty|length of at least 1"):
        build(spark)


@pytest.mark.parametrize("count", [0, -1, 2.0, True, "all"])
def test_bad_partition_counts(spark: Any, count: Any) -> None:
    with pytest.raises(ConfigError, match="num_partitions"):
        Dataset.from_dataframe(spark.range(3), features="id", num_partitions=count)


def test_rdd_elements_that_disagree(spark: Any) -> None:
    rdd = spark.sparkContext.parallelize([(1.0, 0)] * 5 + [("a", 0)], 1)
    with pytest.raises(DataError, match="row 5 of input partition 0: 'a' is not a number"):
        Dataset.from_rdd(rdd).store()


def test_a_partition_that_fails_takes_the_others_with_it(spark: Any) -> None:
    rdd = spark.sparkContext.parallelize([(1.0, 0)] * 5 + [("a", 0)], 2)
    with pytest.raises(DataError, match="'a' is not a number"):
        Dataset.from_rdd(rdd, num_partitions=2).store()
    left = spark.sparkContext.parallelize(range(2), 2).flatMap(lambda _: store_files()).collect()
    assert not left
