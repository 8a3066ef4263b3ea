"""Real rows for the tests, in partitions of chosen sizes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from sklearn.datasets import load_digits

from sparkdl import Dataset
from sparkdl._spark.session import is_connect
from support.reference import Partition

_digits = cache(partial(load_digits, return_X_y=True))  # which parses a file


def digits(rows: int = 700) -> tuple[Any, Any]:
    x, y = _digits()
    return (x[:rows] / 16).astype(np.float32), y[:rows].astype(np.int64)


def partitioned(sizes: list[int]) -> list[Partition]:
    x, y = digits(sum(sizes))
    bounds = np.cumsum([0, *sizes])
    return [Partition(x[lo:hi], y[lo:hi]) for lo, hi in pairwise(bounds)]


def as_dataset(spark: Any, partitions: list[Partition]) -> Dataset:
    """Keep the partitions exactly as they are, however uneven."""
    if is_connect(spark):
        return _on_connect(spark, partitions)
    rdd = spark.sparkContext.parallelize(range(len(partitions)), len(partitions)).flatMap(
        lambda p: list(zip(partitions[p].x, partitions[p].y, strict=True))
    )
    return Dataset.from_rdd(rdd, num_partitions="input")


def _on_connect(spark: Any, partitions: list[Partition]) -> Dataset:
    """Return the same without RDDs."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in chain.from_iterable(batch.column("id").to_pylist() for batch in batches):
            found = partitions[number]
            columns = [pa.array(values.tolist(), _arrow_type(values)) for values in (found.x, found.y)]
            yield pa.RecordBatch.from_arrays(columns, ["x", "y"])

    schema = from_arrow_schema(
        pa.schema([(name, _arrow_type(getattr(partitions[0], name))) for name in ("x", "y")])
    )
    df = spark.range(0, len(partitions), 1, len(partitions)).mapInArrow(rows, schema)
    return Dataset.from_dataframe(df, features="x", label="y", num_partitions="input")


def _arrow_type(values: np.ndarray) -> pa.DataType:
    """Return the type of an array's rows."""
    found = pa.from_numpy_dtype(values.dtype)
    for _ in values.shape[1:]:
        found = pa.list_(found)
    return found


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view that must not be written."""
    view = array.view()
    view.flags.writeable = False
    return view
