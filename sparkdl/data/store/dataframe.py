"""Rows of a DataFrame on their way into the store: the job that brings them, and its tasks.

Every task takes the rows of one partition as a stream of batches, writes the files and yields the
partition's token. A row that cannot be converted makes a token with an error in it instead of a failed
task: retrying would find the same row. Rows of other kinds (:mod:`sparkdl.data.elements`) are numbered and
dealt alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl._spark.session import is_deterministic
from sparkdl._spark.tasks import partition_id
from sparkdl.access.base import Access, Frames
from sparkdl.data.columns import ROW_ID, ColumnPlan, TablePlan, name_id, quoted
from sparkdl.data.convert import RowName, from_arrow
from sparkdl.data.sparse import hint
from sparkdl.data.store.build import Partitions, StoreSource, other_rows
from sparkdl.data.store.partition import StoreBatch, Token, write_partition
from sparkdl.data.streams import STREAMS, check_partitions
from sparkdl.exceptions import DataError
from sparkdl.wire.frame import Array
from sparkdl.wire.private import local_folders

_ARROW_BATCH_BYTES = 8 << 20
ROW_BITS = 33  # of an id by monotonically_increasing_id; the input partition is above them
ROWS = (1 << ROW_BITS) - 1


class DataFrameSource(StoreSource):
    """Columns of a DataFrame, an expression named by its key for each.

    A hint is given if ``vectors``, names of columns of ML vectors, should stay sparse.
    """

    def __init__(self, df: DataFrame, expressions: Sequence[Any], vectors: Collection[str]) -> None:
        self._df = df
        self._expressions = expressions
        self._vectors = vectors
        self._planned: DataFrame | None = None
        self._looked_at: tuple[int, list[Any]] = (0, [])  # how many first rows were asked for, and those

    def _numbered(self, access: Access) -> DataFrame:
        """Return the selected columns, planned once.

        A plan made later may cut the files into other partitions, for more executors have come, and
        number the rows otherwise.
        """
        if self._planned is None:
            self._planned = access.planned_once(self._selected(self._df))
        return self._planned

    def _selected(self, df: DataFrame) -> DataFrame:
        return df.select(F.monotonically_increasing_id().alias(ROW_ID), *self._expressions)

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`StoreSource`."""
        if self._looked_at[0] != rows:
            self._looked_at = rows, self._selected(self._df).limit(rows).collect()
        _, first = self._looked_at
        if not first:
            return {}
        found = convert_rows(plan, first)
        for column in plan.columns:
            if column.source in self._vectors and not column.part:
                hint(column.source, found[column.key])
        return found

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`StoreSource`."""
        df = self._numbered(access)
        dealt, places = 0, None
        if isinstance(partitions, int):
            check_partitions(partitions)
            dealt = partitions
            # Rows arrive from a shuffle in any order; sorting by their id makes it that of the source.
            df, places = _by_stream(df, partitions)
            df = df.sortWithinPartitions(ROW_ID)
        write = arrow_writer(store, plan.columns, dealt, places)
        return access.written(df, write, rows_per_batch(plan))

    def look_at(self, other: DataFrameSource) -> None:
        """Take over what another source of the same columns of a DataFrame has read of its first rows."""
        self._looked_at = other._looked_at

    def first(self, rows: int) -> StoreSource:
        """See :class:`StoreSource`."""
        return self._of(self._df.limit(rows))

    def split(self, plan: TablePlan, fraction: float, seed: int) -> tuple[StoreSource, StoreSource]:
        """See :class:`StoreSource`."""
        names = dict.fromkeys(column.source for column in plan.columns)
        train, held = split_by_fraction(self._df.select(*map(quoted, names)), fraction, seed)
        return self._of(train), self._of(held)

    def _of(self, df: DataFrame) -> DataFrameSource:
        return DataFrameSource(df, self._expressions, self._vectors)


def rows_per_batch(plan: TablePlan) -> int:
    """Return how many rows the Arrow batches have in which Spark gives them to tasks that write."""
    return max(1, min(10_000, _ARROW_BATCH_BYTES // max(plan.row_bytes, 1)))


def _by_stream(df: DataFrame, partitions: int) -> tuple[DataFrame, Places | None]:
    """Return the rows of a DataFrame, which have an id, in so many partitions, each that of its stream.

    Beside them, where the input partitions begin; ``None`` if all rows are in one partition.
    """
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


@dataclass(frozen=True, slots=True)
class Places:
    """Where the input partitions begin in the order of the source, for rows that are dealt to others.

    The number of a row is that of the rows in the input partitions before its own, and of those before it
    there. So one job counts the rows of each; with one to deal to there is nothing to count.
    """

    streams: tuple[int, ...]  # the stream of the first row of each

    @classmethod
    def after(cls, counts: Sequence[int]) -> Places:
        """Return where partitions begin, given the rows of each but the last one."""
        return cls(tuple(before % STREAMS for before in accumulate(counts, initial=0)))

    def check(self, batches: Iterable[StoreBatch], partition: int, partitions: int) -> Iterator[StoreBatch]:
        """Yield a partition's batches; DataError if they are not its streams' rows, in turn, as counted."""
        own, first, known = np.arange(partition, STREAMS, partitions), 0, np.array(self.streams)
        for ids, columns in batches:
            begins = known.take(ids >> ROW_BITS, mode="clip")
            expected = own.take(np.arange(first, first + len(ids)), mode="wrap")
            if not np.array_equal((begins + (ids & ROWS)) % STREAMS, expected):
                raise other_rows(partition)
            first += len(ids)
            yield ids, columns

    def stream(self, partition: int, row: int) -> int:
        """Return the stream of a row of an input partition."""
        return (self.streams[partition] + row) % STREAMS


def token_of(
    store: str, plans: Sequence[ColumnPlan], partition: int, batches: Iterable[StoreBatch], dealt: int = 0
) -> Token:
    """Write a partition and return its token, one with an error if rows cannot be converted."""
    executor = str(local_folders()[0])  # a directory of the executor's own: as good as its id
    try:
        return write_partition(store, partition, executor, plans, batches, dealt)
    except DataError as error:
        return Token(store, partition, 0, "", executor, error=str(error))


def arrow_writer(
    store: str, plans: tuple[ColumnPlan, ...], dealt: int = 0, places: Places | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the ``mapInArrow`` function that writes a partition and yields its token.

    ``dealt`` is the number of partitions that rows were dealt to, 0 if they were not, and ``places`` is where
    input partitions begin, if that has to be looked at.
    """

    def token(partition: int, batches: Iterator[pa.RecordBatch]) -> Token:
        converted: Iterable[StoreBatch] = ((_row_ids(b), convert(plans, b)) for b in batches)
        if places is not None:
            converted = places.check(converted, partition, dealt)
        return token_of(store, plans, partition, converted, dealt)

    return token_writer(token)


def token_writer(
    token: Callable[[int, Iterator[pa.RecordBatch]], Token],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the ``mapInArrow`` function that yields the token which is made of a partition and its rows."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stream = iter(batches)
        made = token(partition_id(), stream)
        for _ in stream:
            pass  # after an error: a task that leaves input unread loses its Python worker
        yield pa.RecordBatch.from_pydict({"token": [made.to_frame()]})

    return write


def convert_rows(plan: TablePlan, rows: Sequence[Any]) -> dict[str, Array]:
    """Convert collected rows of the selected columns, like :func:`convert`."""
    names = [ROW_ID, *(column.key for column in plan.columns)]
    values = {
        name: [bytes(v) if isinstance(v, bytearray) else v for v in (row[name] for row in rows)]
        for name in names
    }
    return convert(plan.columns, pa.RecordBatch.from_pydict(values))


def convert(plans: tuple[ColumnPlan, ...], batch: pa.RecordBatch) -> dict[str, Array]:
    """Convert an Arrow batch to arrays by column key."""
    ids = _row_ids(batch)
    name: RowName = lambda index: name_id(int(ids[index]))  # noqa: E731
    return {plan.key: from_arrow(plan, batch.column(plan.key), name) for plan in plans}


def _row_ids(batch: pa.RecordBatch) -> Array:
    ids: Array = batch.column(ROW_ID).to_numpy(zero_copy_only=False)
    return ids


_HASHES = 1 << 20


def split_by_fraction(df: DataFrame, fraction: float, seed: int) -> tuple[DataFrame, DataFrame]:
    """Split rows by a hash of their values; raises DataError if the query gives other rows each time.

    The same rows go to the same side in whatever order they come, equal rows together: both sides are
    computed on their own, and a row that changed sides in between would be lost or seen twice.
    """
    check_repeats(df)
    hashed = F.pmod(F.xxhash64(F.lit(seed), *(quoted(name) for name in df.columns)), F.lit(_HASHES))
    chosen = hashed < F.lit(round(fraction * _HASHES))
    return df.filter(~chosen), df.filter(chosen)


def check_repeats(df: DataFrame, side: str = "") -> None:
    """Check that a query gives the same rows each time, by running it twice where Spark does not know.

    ``side`` is a column that says which part a row is in; other columns may change. Empty if all count.
    """
    if is_deterministic(df):
        return
    keys = [(name,) for name in df.columns] + [(name, side) for name in df.columns if side not in ("", name)]
    found = []
    for _ in range(2):  # queries of their own: one would find its own shuffle files again
        hashes = [F.sum(F.pmod(F.xxhash64(*map(quoted, key)), F.lit(_HASHES))) for key in keys]
        found.append(df.agg(*hashes).collect()[0])
    same = {key for key, first, again in zip(keys, *found, strict=True) if first == again}
    if side:  # as many rows may be in each part, but others: beside a column that stays, this is seen
        moved = any((name,) in same and (name, side) not in same for name in df.columns if name != side)
        changed = [side] if moved or (side,) not in same else []
    else:
        changed = [name for name in df.columns if (name,) not in same]
    if changed:
        raise DataError(
            f"the query gives other values of {', '.join(changed)} each time it runs, and rows for training "
            "and for validation are read one after the other: some would be in both parts, others in none. "
            "Put it behind a cache(), a checkpoint() or a file",
            code="data-value",
        )
