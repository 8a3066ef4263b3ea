"""Dealing the rows of a DataFrame or an RDD to partitions, by their numbers in the source.

The number of a row is that of the rows in the input partitions before its own, and of those before it there.
So one job counts the rows of each; with one input partition, or one to deal to, there is nothing to count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from sparkdl.data.columns import ROW_ID
from sparkdl.data.store.manifest import ADVICE
from sparkdl.data.store.partition import StoreBatch
from sparkdl.data.streams import STREAMS
from sparkdl.exceptions import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROW_BITS = 33  # of an id by monotonically_increasing_id; the input partition is above them
_ROWS = (1 << _ROW_BITS) - 1


@dataclass(frozen=True, slots=True)
class Places:
    """Where the input partitions begin in the order of the source.

    Attributes:
        streams: the stream of the first row of each.
    """

    streams: tuple[int, ...]

    @classmethod
    def after(cls, counts: Sequence[int]) -> Places:
        """Return where partitions begin, given the rows of each but the last one."""
        return cls(tuple(before % STREAMS for before in accumulate(counts, initial=0)))

    def check(self, batches: Iterable[StoreBatch], partition: int, partitions: int) -> Iterator[StoreBatch]:
        """Yield the batches of a partition, whose rows must be those of its streams, in turn.

        Raises:
            DataError: if the source has other rows than when they were counted.
        """
        own, first, known = np.arange(partition, STREAMS, partitions), 0, np.array(self.streams)
        for ids, columns in batches:
            begins = known.take(ids >> _ROW_BITS, mode="clip")
            expected = own.take(np.arange(first, first + len(ids)), mode="wrap")
            if not np.array_equal((begins + (ids & _ROWS)) % STREAMS, expected):
                raise other_rows(partition)
            first += len(ids)
            yield ids, columns

    def stream(self, partition: int, row: int) -> int:
        """Return the stream of a row of an input partition."""
        return (self.streams[partition] + row) % STREAMS


def other_rows(partition: int) -> DataError:
    """Return the error of a source that gives other rows when they are read than when they are counted."""
    return DataError(
        f"partition {partition} has rows of other numbers than were dealt to it: the source gave other rows "
        f"when they were read than when they were counted. {ADVICE}; or keep its partitions by "
        "num_partitions='input'",
        code="data-changed",
    )


def by_stream(df: DataFrame, partitions: int) -> tuple[DataFrame, Places | None]:
    """Return the rows of a DataFrame, which have an id, in so many partitions, each that of its stream.

    Beside them, where the input partitions begin; ``None`` if all rows are in one partition.
    """
    from pyspark.sql import functions as F

    if partitions == 1:
        return df.repartition(1), None
    places = Places.after(_counts(df))
    row = f"({ROW_ID} & {_ROWS}L)"
    stream = f"({_chosen(places.streams, f'int(shiftright({ROW_ID}, {_ROW_BITS}))')} + {row}) % {STREAMS}"
    # Spark goes by a hash of the key, so the key is a number whose hash names the partition.
    key = _chosen(partition_keys(partitions), f"int(({stream}) % {partitions})")
    return df.repartition(partitions, F.expr(key)), places


def _counts(df: DataFrame) -> list[int]:
    """Return the rows of each input partition, up to the last one that has any."""
    from pyspark.sql import functions as F

    number = F.shiftright(ROW_ID, _ROW_BITS).alias("partition")
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
