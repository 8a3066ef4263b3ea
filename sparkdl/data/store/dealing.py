"""Dealing the rows of a DataFrame or an RDD to partitions, by their numbers in the source.

The number of a row is that of the rows in the input partitions before its own, and of those before it there.
So one job counts the rows of each; with one input partition, or one to deal to, there is nothing to count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from sparkdl.data.columns import ROW_ID
from sparkdl.data.streams import STREAMS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROW_BITS = 33  # of an id by monotonically_increasing_id; the input partition is above them


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

    def stream(self, partition: int, row: int) -> int:
        """Return the stream of a row of an input partition."""
        if partition >= len(self.streams):  # all go to one partition, or the source has changed
            return row % STREAMS
        return (self.streams[partition] + row) % STREAMS


def by_stream(df: DataFrame, partitions: int) -> DataFrame:
    """Return the rows of a DataFrame, which have an id, in so many partitions, each that of its stream."""
    from pyspark.sql import functions as F

    if partitions == 1:
        return df.repartition(1)
    places = Places.after(_counts(df))
    row = f"({ROW_ID} & {(1 << _ROW_BITS) - 1}L)"
    stream = f"({_chosen(places.streams, f'int(shiftright({ROW_ID}, {_ROW_BITS}))')} + {row}) % {STREAMS}"
    # Spark goes by a hash of the key, so the key is a number whose hash names the partition.
    key = _chosen(_keys(partitions), f"int(({stream}) % {partitions})")
    return df.repartition(partitions, F.expr(key))


def _counts(df: DataFrame) -> list[int]:
    """Return the rows of each input partition, up to the last one that has any."""
    from pyspark.sql import functions as F

    number = F.shiftright(ROW_ID, _ROW_BITS).alias("partition")
    found = {row[0]: row[1] for row in df.groupBy(number).count().collect()}
    return [found.get(n, 0) for n in range(max(found, default=-1) + 1)]


def _chosen(values: Sequence[int], index: str) -> str:
    """Return SQL for one of some numbers; 0 beyond their end, if the source has changed."""
    return f"coalesce(get(array({', '.join(map(str, values))}), {index}), 0)"


def _keys(partitions: int) -> list[int]:
    """Return for each partition a key that Spark's partitioning by hash sends there."""
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
