"""Checksums of rows that their order and their spread over partitions do not matter to."""

from __future__ import annotations

import math
import zlib

import numpy as np

from sparkdl.keyed.mix import mix
from sparkdl.wire.frame import Array

_AT_ONCE = 1 << 17  # words: a copy of them stays in the processor's cache


class RowSums:
    """Sums the positions of rows, each mixed, and of their values the rows' bytes, each row's mixed."""

    def __init__(self) -> None:
        self.positions = self.values = 0
        self._of_batch: Array = np.zeros(0, np.uint64)

    def add(self, positions: Array) -> None:
        """Begin the next batch, of int64 positions of shape (rows,)."""
        self.end()
        self.positions = (self.positions + _sum(mix(positions.view(np.uint64)))) % (1 << 64)
        self._of_batch = np.zeros(len(positions), np.uint64)

    def add_column(self, key: str, values: Array, lengths: Array | None = None) -> None:
        """Add a column of the batch: contiguous (rows, ...), or with lengths ragged rows end to end."""
        found = _fixed(values) if lengths is None else _ragged(values, lengths)
        self._of_batch += found * np.uint64(zlib.crc32(key.encode()) << 1 | 1)

    def end(self) -> None:
        """End the last batch."""
        self.values = (self.values + _sum(mix(self._of_batch))) % (1 << 64)
        self._of_batch = np.zeros(0, np.uint64)


def _fixed(values: Array) -> Array:
    """Return a number of each row: its words, each times a number of its place."""
    rows = len(values)
    row_bytes = values.itemsize * math.prod(values.shape[1:])
    unit = math.gcd(row_bytes, 8)
    words = values.reshape(-1).view(f"u{unit}").reshape(rows, row_bytes // unit)
    weights = mix(np.arange(words.shape[1], dtype=np.uint64)) | np.uint64(1)
    found, step = np.empty(rows, np.uint64), max(1, _AT_ONCE // max(1, words.shape[1]))
    for first in range(0, rows, step):
        found[first : first + step] = words[first : first + step].astype(np.uint64) @ weights
    return found


def _ragged(values: Array, lengths: Array) -> Array:
    unit = math.gcd(values.itemsize, 8)
    inner = values.itemsize * math.prod(values.shape[1:]) // unit
    words = np.ascontiguousarray(values).reshape(-1).view(f"u{unit}").astype(np.uint64)
    ends = np.cumsum(lengths) * inner
    begins = ends - lengths * inner
    places = np.arange(len(words)) - np.repeat(begins, lengths * inner)  # of each word in its row
    words *= mix(places.astype(np.uint64)) | np.uint64(1)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)])
    found: Array = sums[ends] - sums[begins] + mix(lengths.astype(np.uint64))
    return found


def _sum(numbers: Array) -> int:
    return int(np.sum(numbers, dtype=np.uint64))
