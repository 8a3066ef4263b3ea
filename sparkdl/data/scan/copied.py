"""Rows of a scan in a partition store, for what is computed once for each row and stays beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import prod

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sparkdl.access.base import Access, Frames
from sparkdl.data import ragged
from sparkdl.data.columns import ROW_ID, ColumnPlan, TablePlan
from sparkdl.data.scan.manifest import ScanManifest
from sparkdl.data.scan.reader import Reader
from sparkdl.data.scan.source import ScanSource
from sparkdl.data.scan.storage import Storage
from sparkdl.data.store.build import Partitions, StoreSource
from sparkdl.data.store.dataframe import arrow_writer, partition_keys, rows_per_batch
from sparkdl.data.streams import STREAMS, check_partitions
from sparkdl.exceptions import ConfigError
from sparkdl.wire import frame
from sparkdl.wire.frame import Array

_KEY = "__key"
_MOST_TASKS = 1000
_SPARK_TYPES = {
    "bool": "boolean",
    "int8": "byte",
    "int16": "short",
    "int32": "int",
    "int64": "long",
    "float32": "float",
    "float64": "double",
}
_WIDENED = {"uint8": "int16"}  # what Spark has no type for


class CopiedScan(StoreSource):
    """The rows of a scan, which a job copies to the executors."""

    def __init__(self, spark: SparkSession, scan: ScanSource) -> None:
        self._spark, self._scan = spark, scan

    def check_room(self, plan: TablePlan, row_bytes: int, what: str) -> None:
        """Check that rows of so many bytes fit the space that they may take."""
        nbytes = int(self._scan.manifest(plan).rows.sum()) * row_bytes
        executors = self._scan.access.executors().count
        if nbytes > self._scan.cache_bytes * executors:
            raise ConfigError(
                f"{what} stay beside the rows, which this Dataset reads where they lie: expected "
                f"cache_bytes={-(-nbytes // executors):,} or more, by which executors may copy them to their "
                f"disks ({nbytes:,} bytes on {executors}), found cache_bytes={self._scan.cache_bytes:,}; or "
                "keep=None, by which teachers answer in each step and nothing is copied"
            )

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`StoreSource`."""
        return self._scan.peek(plan, rows)

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`StoreSource`."""
        assert isinstance(partitions, int)
        check_partitions(partitions)
        manifest = replace(self._scan.manifest(plan), columns=plan.columns)
        cuts = _cuts(manifest)
        keys, size = partition_keys(partitions), rows_per_batch(plan)
        read = _read(frame.join(manifest.pack()), self._scan.storage, cuts, keys, size)
        types = [f"{ROW_ID} long", f"{_KEY} int", *(f"{c.key} {_spark_type(c)}" for c in plan.columns)]
        tasks = self._spark.range(0, len(cuts) - 1, 1, len(cuts) - 1)
        rows = tasks.mapInArrow(read, ", ".join(types))
        dealt = rows.repartition(partitions, F.col(_KEY)).drop(_KEY).sortWithinPartitions(ROW_ID)
        # Bytes have become numbers on the way.
        columns = tuple(replace(column, binary=False) for column in plan.columns)
        write = arrow_writer(store, columns, partitions)
        return access.written(access.planned_once(dealt), write, size)


def _cuts(manifest: ScanManifest) -> list[int]:
    """Return where the rows of tasks begin, and their end: no row group is read by two tasks."""
    begins = np.unique(manifest.begins)
    tasks = min(len(begins) - 1, _MOST_TASKS)
    found: list[int] = begins[np.arange(tasks + 1) * (len(begins) - 1) // tasks].tolist()
    return found


def _read(
    manifest: bytes, storage: Storage, cuts: list[int], keys: list[int], size: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the ``mapInArrow`` function that reads the rows of tasks of some numbers."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        scan = ScanManifest.unpack(manifest)
        reader = Reader(scan, storage=storage)
        key_of = np.array(keys, np.int32)
        try:
            for task in (number for batch in batches for number in batch.column(0).to_pylist()):
                for first in range(cuts[task], cuts[task + 1], size):
                    rows = reader.in_order(first, min(first + size, cuts[task + 1]))
                    numbers, columns = rows.numbers.astype(np.int64), rows.read()
                    key = key_of[numbers % STREAMS % len(key_of)]
                    arrays = [_to_arrow(column, columns[column.key]) for column in scan.columns]
                    names = [ROW_ID, _KEY, *(column.key for column in scan.columns)]
                    yield pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(key), *arrays], names)
        finally:
            reader.close()

    return read


def _spark_type(plan: ColumnPlan) -> str:
    """Return the type of a column on its way: a number, or a flat array; arrays of such in ragged ones."""
    dtype = plan.dtype or ""
    kind = _SPARK_TYPES[_WIDENED.get(dtype, dtype)]
    for _ in range(_depth(plan)):
        kind = f"array<{kind}>"
    return kind


def _depth(plan: ColumnPlan) -> int:
    shape = plan.shape or ()
    return min(len(shape), 2 if ragged.is_ragged(shape) else 1)


def _to_arrow(plan: ColumnPlan, values: Array) -> pa.Array:
    """Return converted rows as :func:`from_arrow` reads them again."""
    lengths: list[Array] = []
    if values.dtype == object:
        values, ends = ragged.joined(values)
        lengths.append(ends)
    if _depth(plan) > len(lengths):
        lengths.append(np.full(len(values), prod(values.shape[1:])))
    dtype = _WIDENED.get(str(values.dtype), values.dtype)
    found = pa.array(np.ascontiguousarray(values, dtype).reshape(-1))
    for each in reversed(lengths):
        offsets = np.concatenate([[0], np.cumsum(each)]).astype(np.int32)
        found = pa.ListArray.from_arrays(pa.array(offsets), found)
    return found
