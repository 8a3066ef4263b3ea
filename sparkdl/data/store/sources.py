"""Sources of a Dataset's rows: a DataFrame, an RDD or arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from sparkdl._spark.frames import frames_of
from sparkdl.access.base import Access, Frames
from sparkdl.data.columns import ROW_ID, TablePlan
from sparkdl.data.schema import vector_columns
from sparkdl.data.sparse import hint
from sparkdl.data.store import writers
from sparkdl.data.store.writers import ROW_BITS, ROWS, Places
from sparkdl.data.streams import STREAMS, Dealt, RowShare, check_partitions
from sparkdl.exceptions import ConfigError
from sparkdl.wire.frame import Array
from sparkdl.wire.pieces import cut

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame

Partitions = int | Literal["input"] | None
_ARROW_BATCH_BYTES = 8 << 20
_TASK_BYTES = 512 << 10  # of arrays that a task brings from the driver; Spark warns of 1,000 KiB


class Source(ABC):
    """Where rows come from."""

    @abstractmethod
    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """Return the first rows as arrays by column key; empty if there are none."""

    @abstractmethod
    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """Return the lazy frames whose tasks write the store and yield tokens."""

    def first(self, rows: int) -> Source:
        """Return a source of the first rows, for a sample; this one if it cannot be cut."""
        return self

    def part(self, plan: TablePlan, share: RowShare) -> Source | None:
        """Return a source of a share of the rows; ``None`` if they are divided where they are stored."""
        return None

    def most_partitions(self, plan: TablePlan) -> int:
        """Return how many partitions there can be, given the columns with dtypes and shapes."""
        return STREAMS

    def shown(self) -> dict[str, object]:
        """Return what else there is to show of a Dataset."""
        return {}

    def release(self) -> None:  # noqa: B027
        """Delete what was sent to the executors for tokens, none of which are in use any more."""


class DataFrameSource(Source):
    """Columns of a DataFrame."""

    def __init__(self, df: DataFrame, expressions: list[Any]) -> None:
        self._df = df
        self._expressions = expressions
        self._planned: DataFrame | None = None

    def _numbered(self, access: Access) -> DataFrame:
        """Return the selected columns, planned once.

        A plan made later may cut the files into other partitions, for more executors have come, and
        number the rows otherwise.
        """
        if self._planned is None:
            self._planned = access.planned_once(self._selected(self._df))
        return self._planned

    def _selected(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return df.select(F.monotonically_increasing_id().alias(ROW_ID), *self._expressions)

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`Source`."""
        first = self._selected(self._df).limit(rows).collect()
        if not first:
            return {}
        found = writers.convert_rows(plan, first)
        vectors = vector_columns(self._df)
        for column in plan.columns:
            if column.source in vectors and not column.part:
                hint(column.source, found[column.key])
        return found

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`Source`."""
        df = self._numbered(access)
        dealt, places = 0, None
        if isinstance(partitions, int):
            check_partitions(partitions)
            dealt = partitions
            # Rows arrive from a shuffle in any order; sorting by their id makes it that of the source.
            df, places = _by_stream(df, partitions)
            df = df.sortWithinPartitions(ROW_ID)
        write = writers.arrow_writer(store, plan.columns, dealt, places)
        return access.written(df, write, rows_per_batch(plan))

    def first(self, rows: int) -> Source:
        """See :class:`Source`."""
        return DataFrameSource(self._df.limit(rows), self._expressions)


def rows_per_batch(plan: TablePlan) -> int:
    """Return how many rows the Arrow batches have in which Spark gives them to tasks that write."""
    return max(1, min(10_000, _ARROW_BATCH_BYTES // max(plan.row_bytes, 1)))


def _by_stream(df: DataFrame, partitions: int) -> tuple[DataFrame, Places | None]:
    """Return the rows of a DataFrame, which have an id, in so many partitions, each that of its stream.

    Beside them, where the input partitions begin; ``None`` if all rows are in one partition.
    """
    from pyspark.sql import functions as F

    if partitions == 1:
        return df.repartition(1), None
    places = Places.after(_counts(df))
    row = f"({ROW_ID} & {ROWS}L)"
    stream = f"({_chosen(places.streams, f'int(shiftright({ROW_ID}, {ROW_BITS}))')} + {row}) % {STREAMS}"
    # Spark goes by a hash of the key, so the key is a number whose hash names the partition.
    key = _chosen(partition_keys(partitions), f"int(({stream}) % {partitions})")
    return df.repartition(partitions, F.expr(key)), places


def _counts(df: DataFrame) -> list[int]:
    """Return the rows of each input partition, up to the last one that has any."""
    from pyspark.sql import functions as F

    number = F.shiftright(ROW_ID, ROW_BITS).alias("partition")
    found = {row[0]: row[1] for row in df.groupBy(number).count().collect()}
    return [found.get(n, 0) for n in range(max(found, default=-1) + 1)]


def _chosen(values: Sequence[int], index: str) -> str:
    """Return SQL for one of some numbers; 0 beyond their end, if the source has changed."""
    return f"coalesce(get(array({', '.join(map(str, values))}), {index}), 0)"


def partition_keys(partitions: int) -> list[int]:
    """Return for each partition a key, an int, that Spark's partitioning by hash sends there."""
    found: dict[int, int] = {}
    key = 0
    while len(found) < partitions:
        found.setdefault(_murmur3(key) % partitions, key)
        key += 1
    return [found[n] for n in range(partitions)]


def _murmur3(value: int) -> int:
    """Return Spark's hash of an int: MurmurHash3 by Austin Appleby, with seed 42; signed."""
    mask = (1 << 32) - 1

    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> 32 - bits) & mask

    word = rotated(value * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    found = (rotated(42 ^ word, 13) * 5 + 0xE6546B64 & mask) ^ 4  # of four bytes
    found = (found ^ found >> 16) * 0x85EBCA6B & mask
    found = (found ^ found >> 13) * 0xC2B2AE35 & mask
    found ^= found >> 16
    return found - (1 << 32) if found >> 31 else found


class RddSource(Source):
    """Elements of an RDD; what of them are features, label and weight is the plan's matter."""

    def __init__(self, rdd: RDD[Any]) -> None:
        self._rdd = rdd

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`Source`."""
        first = self._rdd.take(rows)
        return writers.stack_rows(plan, first, [(0, i) for i in range(len(first))]) if first else {}

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`Source`."""
        positioned = self._rdd.mapPartitionsWithIndex(_with_position)
        dealt, places = 0, None
        if isinstance(partitions, int):
            check_partitions(partitions)
            dealt = partitions
            places = Places.after(self._counts()) if partitions > 1 else None
            positioned = positioned.repartitionAndSortWithinPartitions(
                partitions, partial(_dealt, places, partitions)
            )
        return frames_of(positioned.mapPartitionsWithIndex(writers.rows_writer(store, plan, dealt, places)))

    def _counts(self) -> list[int]:
        """Return the rows of each partition but the last one."""
        others = range(self._rdd.getNumPartitions() - 1)
        return self._rdd.context.runJob(self._rdd, _count, others) if others else []

    def first(self, rows: int) -> Source:
        """See :class:`Source`."""
        return RddSource(self._rdd.context.parallelize(self._rdd.take(rows)))


def _with_position(partition: int, elements: Iterable[Any]) -> Iterator[tuple[tuple[int, int], Any]]:
    for row, element in enumerate(elements):
        yield (partition, row), element


def _count(elements: Iterable[Any]) -> list[int]:
    return [sum(1 for _ in elements)]


def _dealt(places: Places | None, partitions: int, position: tuple[int, int]) -> int:
    """Return the partition of the row's stream."""
    return places.stream(*position) % partitions if places is not None else 0


class ArraySource(Source):
    """Arrays on the driver."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`Source`."""
        return writers.convert_numpy(plan, {key: array[:rows] for key, array in self._arrays.items()})

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`Source`."""
        if not isinstance(partitions, int):
            raise ConfigError("num_partitions='input' needs a DataFrame or RDD: arrays have no partitions")
        check_partitions(partitions)
        rows = len(next(iter(self._arrays.values())))
        chunks = (
            (p, writers.pickled(own, {key: array[own.numbers()] for key, array in self._arrays.items()}))
            for p, own in ((p, Dealt(rows, p, partitions)) for p in range(partitions))
        )
        # In pieces: what the driver holds travels inside tasks, and Spark warns of large ones.
        pieces = ((p, piece) for p, chunk in chunks for piece in cut(p, [chunk], _TASK_BYTES))
        return access.stage(access.scattered(pieces, partitions), writers.arrays_writer(store, plan))

    def first(self, rows: int) -> Source:
        """See :class:`Source`."""
        return ArraySource({key: array[:rows] for key, array in self._arrays.items()})
