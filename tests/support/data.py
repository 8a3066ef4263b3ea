"""Real rows for the tests, in partitions of chosen sizes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from sparkdl import Dataset
from support.reference import Partition


def digits(rows: int = 700) -> tuple[Any, Any]:
    x, y = load_digits(return_X_y=True)
    return (x[:rows] / 16).astype(np.float32), y[:rows].astype(np.int64)


def partitioned(sizes: list[int]) -> list[Partition]:
    x, y = digits(sum(sizes))
    bounds = np.cumsum([0, *sizes])
    return [Partition(x[lo:hi], y[lo:hi]) for lo, hi in pairwise(bounds)]


def as_dataset(spark: Any, partitions: list[Partition]) -> Dataset:
    """Keep the partitions exactly as they are, however uneven."""
    rdd = spark.sparkContext.parallelize(range(len(partitions)), len(partitions)).flatMap(
        lambda p: list(zip(partitions[p].x, partitions[p].y, strict=True))
    )
    return Dataset.from_rdd(rdd, num_partitions="input")


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view that must not be written."""
    view = array.view()
    view.flags.writeable = False
    return view
