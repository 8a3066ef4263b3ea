"""DataFrames of pandas become tensors like those of Spark, and what is no table is refused."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sparkdl import Column, Dataset
from sparkdl.data.elements import convert_numpy
from sparkdl.data.schema import check_dataframe, check_no_stream, is_pandas, plan_pandas
from sparkdl.exceptions import ConfigError, DataError

FRAME = pd.DataFrame(
    {
        "i": [1, 2],
        "f": [1.5, np.nan],
        "b": [True, False],
        "n": pd.array([3, 4], "Int64"),
        "a": [[1.0, 2.0], [3.0, 4.0]],
        "t": [np.ones((2, 2), np.uint8), np.zeros((2, 2), np.uint8)],
        "raw": [bytes([1, 2, 3, 4]), bytes([5, 6, 7, 8])],
        "s": ["x", "y"],
        "null": pd.array([1, None], "Int64"),
        "holes": [[1.0], None],
        "d": pd.to_datetime(["2020-01-01", "2020-01-02"]),
        "m": [Decimal("1.5"), Decimal("2")],
    }
)


@pytest.mark.parametrize(
    ("column", "dtype", "values"),
    [
        ("i", "int64", [1, 2]),
        ("f", "float32", [1.5, np.nan]),
        (Column("f", dtype="float64"), "float64", [1.5, np.nan]),
        ("b", "float32", [1, 0]),
        ("n", "int64", [3, 4]),
        ("a", "float32", [[1, 2], [3, 4]]),
        (Column("a", shape=(1, 2)), "float32", [[[1, 2]], [[3, 4]]]),
        ("t", "uint8", [[[1, 1], [1, 1]], [[0, 0], [0, 0]]]),
        (Column("t", shape=(4,)), "uint8", [[1, 1, 1, 1], [0, 0, 0, 0]]),
        (Column("raw", shape=(2, 2)), "uint8", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
    ],
)
def test_columns_become_what_those_of_spark_become(column: Any, dtype: str, values: Any) -> None:
    plan, arrays = plan_pandas(FRAME, column, None, None)
    found = convert_numpy(plan, arrays)["features"]  # as the tasks do
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array(values, dtype))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "x"}, "features column 'x' is not in the DataFrame; it has i, f, b"),
        ({"features": "s"}, "column 's', row 0: 'x' is not a number"),
        ({"features": "d"}, "column 'd': values of type datetime64.* are not numbers"),
        ({"features": "null"}, "column 'null', row 1: null; drop or fill"),
        ({"features": "holes"}, "column 'holes', row 1: null"),
        ({"features": "raw"}, r"column 'raw' is binary.*Column\('raw', shape="),
        ({"features": Column("raw", shape=(3,))}, "column 'raw', row 0: 4 bytes, expected 3"),
        ({"features": "i", "label": "f"}, "column 'f', row 1: nan must be finite"),
        ({"features": "i", "weight": "a"}, r"column 'a', row 0: shape \(2,\) where a number is expected"),
    ],
)
def test_what_cannot_become_a_tensor_is_named(options: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        plan_pandas(FRAME, **({"label": None, "weight": None} | options))


def test_bytes_are_bytes_whatever_python_keeps_them_in() -> None:
    """``toPandas`` gives bytearrays where ``spark.sql.execution.pyspark.binaryAsBytes`` is false."""
    values = np.array([[1.5], [-2.0]], np.float32)
    for kind in (bytes, bytearray, memoryview):
        frame = pd.DataFrame({"raw": [kind(row.tobytes()) for row in values]})
        _, arrays = plan_pandas(frame, Column("raw", (1,), "float32"), None, None)
        np.testing.assert_array_equal(arrays["features"], values)
        with pytest.raises(DataError, match="column 'raw' is binary"):
            plan_pandas(frame, "raw", None, None)


def test_a_weight_is_one_column() -> None:
    with pytest.raises(ConfigError, match=r"weight=\['i', 'f'\]: expected one column"):
        plan_pandas(FRAME, "i", None, ["i", "f"])  # type: ignore[arg-type]


def test_two_columns_of_one_name() -> None:
    doubled = pd.DataFrame([[1.0, 2.0]], columns=["x", "x"])
    with pytest.raises(DataError, match="features column 'x' is there 2 times among x, x"):
        plan_pandas(doubled, "x", None, None)


@pytest.mark.parametrize("given", [{"x": [1]}, np.ones(3), None, "table"])
def test_what_is_no_table(given: Any) -> None:
    assert not is_pandas(given)
    with pytest.raises(
        DataError, match=r"here: found a .*, expected a Spark DataFrame; spark.createDataFrame"
    ) as e:
        check_dataframe(given, "here")
    assert e.value.code == "data-source"
    with pytest.raises(DataError, match="expected a Spark DataFrame"):
        Dataset.from_dataframe(given, features="x")


def test_pandas_on_spark_knows_the_way_back() -> None:
    class Frame:
        pass

    Frame.__module__ = "pyspark.pandas.frame"
    with pytest.raises(DataError, match=r"found a pyspark.pandas.frame..*; its to_spark\(\) gives one"):
        check_dataframe(Frame(), "here")


def test_streams_have_no_end() -> None:
    with pytest.raises(DataError, match="here: the DataFrame is a stream.*foreachBatch"):
        check_no_stream(SimpleNamespace(isStreaming=True), "here")


def test_a_pandas_dataframe_is_a_source(spark: Any) -> None:
    frame = pd.DataFrame({"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "y": [0, 1, 0], "w": [1.0, 2.0, 3.0]})
    with Dataset.from_dataframe(frame, features="x", label="y", weight="w", num_partitions=2) as data:
        assert len(data) == 3
        np.testing.assert_array_equal(data.peek()["features"], [[1, 2], [3, 4]])
    with pytest.raises(DataError, match="length of at least 1"):
        Dataset.from_dataframe(frame[:0], features="x")
    with pytest.raises(ConfigError, match="num_partitions='input' needs a DataFrame or RDD"):
        Dataset.from_dataframe(frame, features="x", num_partitions="input").store()
