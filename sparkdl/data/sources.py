"""Where the rows of a Dataset come from: a DataFrame, an RDD or arrays."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from sparkdl._spark.frames import JavaObject, frames_of
from sparkdl._spark.jobs import FrameJobs
from sparkdl._spark.session import planned_once
from sparkdl.data import build
from sparkdl.data.columns import ROW_ID, TablePlan
from sparkdl.exceptions import ConfigError
from sparkdl.frame import Array
from sparkdl.pieces import cut

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

Partitions = int | Literal["input"] | None
_ARROW_BATCH_BYTES = 8 << 20
_TASK_BYTES = 512 << 10  # of arrays that a task brings from the driver; Spark warns of 1,000 KiB


class Source(ABC):
    """Where rows come from."""

    @abstractmethod
    def peek(self, spark: SparkSession, plan: TablePlan, rows: int) -> dict[str, Array]:
        """Return the first rows as arrays by column key; empty if there are none."""

    @abstractmethod
    def tokens(self, spark: SparkSession, plan: TablePlan, store: str, partitions: Partitions) -> JavaObject:
        """Return the lazy RDD whose tasks write the store and yield tokens."""


class DataFrameSource(Source):
    """Columns of a DataFrame.

    Args:
        df: of classic Spark.
        expressions: the columns to select.
    """

    def __init__(self, df: DataFrame, expressions: list[Any]) -> None:
        self._df = df
        self._expressions = expressions
        self._planned: DataFrame | None = None

    def _numbered(self, spark: SparkSession) -> DataFrame:
        """Return the selected columns, planned once.

        A plan made later may cut the files into other partitions, for more executors have come, and
        number the rows otherwise.
        """
        if self._planned is None:
            self._planned = planned_once(spark, self._selected(self._df))
        return self._planned

    def _selected(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return df.select(F.monotonically_increasing_id().alias(ROW_ID), *self._expressions)

    def peek(self, spark: SparkSession, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`Source`."""
        first = self._selected(self._df).limit(rows).collect()
        return build.convert_rows(plan, first) if first else {}

    def tokens(self, spark: SparkSession, plan: TablePlan, store: str, partitions: Partitions) -> JavaObject:
        """See :class:`Source`."""
        df = self._numbered(spark)
        if isinstance(partitions, int):
            # Rows arrive from a shuffle in any order; sorting by their id makes every build the same.
            df = df.repartition(partitions).sortWithinPartitions(ROW_ID)
        written = df.mapInArrow(build.arrow_writer(store, plan.columns), "token binary")
        rows_per_batch = max(1, min(10_000, _ARROW_BATCH_BYTES // max(plan.row_bytes, 1)))
        with _SqlConf(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", str(rows_per_batch)):
            tokens = written.rdd.mapPartitions(_unwrap_token)
            return frames_of(tokens)


def _unwrap_token(rows: Iterable[Any]) -> Iterator[bytes]:
    for row in rows:
        yield bytes(row[0])


class _SqlConf:
    """Set a SQL conf while a plan is made; one thread at a time, for the session's confs are shared."""

    _lock = threading.Lock()

    def __init__(self, spark: SparkSession, name: str, value: str) -> None:
        self._spark, self._name, self._value = spark, name, value

    def __enter__(self) -> None:
        self._lock.acquire()
        self._before = self._spark.conf.get(self._name, None)
        self._spark.conf.set(self._name, self._value)

    def __exit__(self, *_: object) -> None:
        try:
            if self._before is None:
                self._spark.conf.unset(self._name)
            else:
                self._spark.conf.set(self._name, self._before)
        finally:
            self._lock.release()


class RddSource(Source):
    """Elements of an RDD; what of them are features, label and weight is the plan's matter.

    Args:
        rdd: of elements that are alike.
    """

    def __init__(self, rdd: RDD[Any]) -> None:
        self._rdd = rdd

    def peek(self, spark: SparkSession, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`Source`."""
        first = self._rdd.take(rows)
        return build.stack_rows(plan, first, [(0, i) for i in range(len(first))]) if first else {}

    def tokens(self, spark: SparkSession, plan: TablePlan, store: str, partitions: Partitions) -> JavaObject:
        """See :class:`Source`."""
        positioned = self._rdd.mapPartitionsWithIndex(_with_position)
        if isinstance(partitions, int):
            positioned = positioned.repartitionAndSortWithinPartitions(
                partitions, partial(_spread, partitions=partitions)
            )
        return frames_of(positioned.mapPartitionsWithIndex(build.rows_writer(store, plan)))


def _with_position(partition: int, elements: Iterable[Any]) -> Iterator[tuple[tuple[int, int], Any]]:
    for row, element in enumerate(elements):
        yield (partition, row), element


def _spread(position: tuple[int, int], partitions: int) -> int:
    """Deal rows out in turn, starting at another partition for each input partition."""
    return sum(position) % partitions


class ArraySource(Source):
    """Arrays on the driver.

    Args:
        arrays: by column key, of one length.
    """

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays

    def peek(self, spark: SparkSession, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`Source`."""
        return build.convert_numpy(plan, {key: array[:rows] for key, array in self._arrays.items()})

    def tokens(self, spark: SparkSession, plan: TablePlan, store: str, partitions: Partitions) -> JavaObject:
        """See :class:`Source`."""
        if not isinstance(partitions, int):
            raise ConfigError("num_partitions='input' needs a DataFrame or RDD: arrays have no partitions")
        rows = len(next(iter(self._arrays.values())))
        bounds = [p * rows // partitions for p in range(partitions + 1)]
        chunks = (
            (p, build.pickled(lo, {key: array[lo:hi] for key, array in self._arrays.items()}))
            for p, (lo, hi) in enumerate(pairwise(bounds))
        )
        # Through a shuffle: what the driver holds travels with every task that descends from it, which
        # here would be each task of each iteration. In pieces: Spark warns of larger tasks.
        jobs = FrameJobs(spark.sparkContext)
        pieces = ((p, piece) for p, chunk in chunks for piece in cut(p, [chunk], _TASK_BYTES))
        shuffled = jobs.shuffle(jobs.scattered(pieces), partitions)
        return jobs.stage(jobs.values(shuffled), build.arrays_writer(store, plan))
