"""The order of an epoch's rows of a scan, which no number of partitions changes.

An epoch permutes the row groups by (seed, epoch) and deals them whole to V streams, the longest ones first,
each to the stream with the fewest rows; a group of more than N / (4·V) rows is dealt in slices. A stream's
rows are those of its groups, one group after the other, cut into chunks of W rows. Within a chunk they are
permuted by (seed, epoch, stream, chunk). So a reader needs one chunk of each stream at a time, and any batch
is found without those before it.

Row j of a stream with n rows comes at (j + u) / n of the epoch, where the streams' u are spread over 0 to 1
by the order q of :mod:`sparkdl.data.streams`; rows sorted by that have *slots*, as rows of a store have. Each
batch takes from each stream its share, and so from each partition, if the number of these divides V.

Without shuffle all rows are one stream, in the order of the files, and each partition takes its share of each
batch, from one end to the other.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from sparkdl import seeding
from sparkdl.data.streams import scrambled
from sparkdl.wire.frame import Array


@dataclass(frozen=True, eq=False)
class ScanLayout:
    """The rows of a scan, as far as their order depends on them."""

    groups: Array  # rows of each row group, in the order of the files
    streams: int  # V
    window: int  # W, the most rows of a chunk

    @property
    def rows(self) -> int:
        """N."""
        return int(self.groups.sum())


class Part(NamedTuple):
    """Some rows of a chunk, which follow each other in an epoch."""

    stream: int  # the chunk's stream
    chunk: int  # its number in the stream
    first: int  # place in the chunk of the first row
    end: int  # place after the last one


class RowSpan(NamedTuple):
    """Rows that follow each other in the files: all of a row group, or some."""

    first: int  # number of the first row
    rows: int  # how many


@dataclass(frozen=True, eq=False)
class Order:
    """The order of an epoch's rows."""

    layout: ScanLayout  # the rows
    seed: int | None  # from which chunks are permuted; ``None`` if they are not
    firsts: Array  # number of the first row of each piece, stream by stream
    counts: Array  # rows of each piece
    begins: Array  # number of each stream's first piece, and of all pieces
    lengths: Array  # rows of each stream
    places: Array  # place of each stream in the order q
    _chunks: dict[int, tuple[list[list[RowSpan]], list[int]]] = field(default_factory=dict)
    _before: dict[int, Array] = field(default_factory=dict)

    def parts(self, slots: tuple[int, int], rank: int, ranks: int) -> list[Part]:
        """Return the rows that a partition has in a range of slots."""
        begin, end = slots
        if self.seed is None:
            cuts = [begin + (end - begin) * n // ranks for n in (rank, rank + 1)]
            return list(self.in_stream(0, *cuts))
        streams = range(rank, self.layout.streams, ranks)
        firsts, ends = (self.before(slot)[rank::ranks].tolist() for slot in slots)
        return [
            part
            for stream, *some in zip(streams, firsts, ends, strict=True)
            for part in self.in_stream(stream, *some)
        ]

    def before(self, slot: int) -> Array:
        """Return how many rows of each stream come before a slot."""
        found = self._before.get(slot)
        if found is None:
            found = self._counted(slot)
            while len(self._before) > 3:
                del self._before[min(self._before)]
            self._before[slot] = found
        return found

    def _counted(self, slot: int) -> Array:
        lengths, rows, streams = self.lengths, self.layout.rows, len(self.lengths)
        if streams == 1:
            return np.array([slot])
        if not 0 < slot < rows:
            return np.zeros_like(lengths) if slot <= 0 else lengths
        shifts, turn = self._turn
        # Before (x - V) / N come fewer than x rows, and before (x + V) / N more; a row more for rounding.
        low = np.ceil((slot - streams) / rows * lengths - shifts).astype(np.int64) - 1
        high = np.ceil((slot + streams) / rows * lengths - shifts).astype(np.int64) + 1
        low, high = np.clip(low, 0, lengths), np.clip(high, 0, lengths)
        sizes = (high - low)[turn]
        of = np.repeat(turn, sizes)
        numbers = low[of] + np.arange(len(of)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        keys = (numbers + shifts[of]) / lengths[of]
        chosen = of[np.argsort(keys, kind="stable")[: slot - int(low.sum())]]
        return low + np.bincount(chosen, minlength=streams)

    @cached_property
    def _turn(self) -> tuple[Array, Array]:
        """Each stream's u, and the streams in the order q, by which equal keys come."""
        return (self.places + 0.5) / len(self.places), np.argsort(self.places)

    def in_stream(self, stream: int, first: int, end: int) -> Iterator[Part]:
        """Iterate over a range of a stream's rows, chunk by chunk."""
        _, begins = self._cut(stream)
        chunk = bisect_right(begins, first) - 1
        while first < end:
            begin, stop = begins[chunk], begins[chunk + 1]
            yield Part(stream, chunk, first - begin, min(end, stop) - begin)
            first, chunk = stop, chunk + 1

    def chunks(self, stream: int) -> int:
        """Return the number of a stream's chunks."""
        return len(self._cut(stream)[0])

    def spans(self, stream: int, chunk: int) -> list[RowSpan]:
        """Return the rows of a chunk as they lie in the files."""
        return self._cut(stream)[0][chunk]

    def rows(self, stream: int, chunk: int) -> int:
        """Return the number of a chunk's rows."""
        _, begins = self._cut(stream)
        return begins[chunk + 1] - begins[chunk]

    def permutation(self, stream: int, chunk: int) -> Array | None:
        """Return the order of a chunk's rows; ``None`` for that of the files."""
        if self.seed is None:
            return None
        return seeding.shuffled(self.rows(stream, chunk), self.seed, stream, chunk)

    def numbers(self, parts: list[Part]) -> Array:
        """Return the numbers of rows: their places in the order of the files."""
        found = [np.empty(0, np.int64)]
        for stream, chunk, first, end in parts:
            if self.seed is None:
                (span,) = self.spans(stream, chunk)
                found.append(np.arange(span.first + first, span.first + end))
                continue
            rows = np.concatenate([np.arange(s.first, s.first + s.rows) for s in self.spans(stream, chunk)])
            order = self.permutation(stream, chunk)
            found.append(rows[first:end] if order is None else rows[order[first:end]])
        return np.concatenate(found)

    def _cut(self, stream: int) -> tuple[list[list[RowSpan]], list[int]]:
        """Return the spans of each of a stream's chunks, and where chunks begin."""
        if stream not in self._chunks:
            pieces = slice(self.begins[stream], self.begins[stream + 1])
            most = self.layout.window
            # In the order of the files each group is a chunk, for partitions begin anywhere; otherwise the
            # first one is shorter, so that refills are spread over time.
            room = 0 if self.seed is None else most - most * stream // self.layout.streams
            self._chunks[stream] = _chunks(self.firsts[pieces], self.counts[pieces], most, room)
        return self._chunks[stream]


def _chunks(firsts: Array, counts: Array, most: int, room: int) -> tuple[list[list[RowSpan]], list[int]]:
    """Cut a stream's pieces into chunks of ``most`` rows, the first one of ``room``.

    A room of zero lets no chunk have rows of two pieces.
    """
    one_piece, room = room == 0, room or most
    chunks: list[list[RowSpan]] = [[]]
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        end = first + count
        while first < end:
            if room == 0 or (one_piece and chunks[-1]):
                chunks.append([])
                room = most
            rows = min(end - first, room)
            chunks[-1].append(RowSpan(first, rows))
            first, room = first + rows, room - rows
    chunks = chunks if chunks[-1] else []
    sizes = (sum(span.rows for span in chunk) for chunk in chunks)
    return chunks, list(accumulate(sizes, initial=0))


def order_of(layout: ScanLayout, seed: int, epoch: int) -> Order:
    """Return the order of an epoch's rows, shuffled."""
    base = seeding.derive(seeding.ORDER, seed, epoch)
    generator = np.random.Generator(np.random.PCG64(base))
    firsts, counts = _sliced(layout)
    turn = generator.permutation(len(counts))
    streams = scrambled(layout.streams, generator)
    firsts, counts = firsts[turn], counts[turn]
    stream = _dealt(counts, layout.streams)
    by_stream = np.argsort(stream, kind="stable")  # each stream's pieces in the order of the permutation
    lengths = np.bincount(stream, counts, layout.streams).astype(np.int64)
    begins = np.searchsorted(stream[by_stream], np.arange(layout.streams + 1))
    places = np.argsort(streams)
    return Order(layout, base, firsts[by_stream], counts[by_stream], begins, lengths, places)


@lru_cache(maxsize=8)
def in_files(layout: ScanLayout) -> Order:
    """Return the order of the files."""
    firsts, counts = _begins(layout.groups), layout.groups
    some = counts > 0
    zeros = np.zeros(1, np.int64)
    begins = np.array([0, int(some.sum())])
    return Order(layout, None, firsts[some], counts[some], begins, np.array([layout.rows]), zeros)


def _begins(counts: Array) -> Array:
    return np.cumsum(counts) - counts


def _sliced(layout: ScanLayout) -> tuple[Array, Array]:
    """Return the first row and the rows of each piece that is dealt, in the order of the files."""
    groups = layout.groups.astype(np.int64)
    slices = np.maximum(1, -(-groups * 4 * layout.streams // max(1, layout.rows)))
    slices = np.minimum(slices, np.maximum(groups, 1))
    of = np.repeat(np.arange(len(groups)), slices)
    number = np.arange(len(of)) - np.repeat(_begins(slices), slices)
    low, high = (n * groups[of] // slices[of] for n in (number, number + 1))
    some = high > low
    return (_begins(groups)[of] + low)[some], (high - low)[some]


def _dealt(counts: Array, streams: int) -> Array:
    """Deal pieces to streams, the longest ones first, each to the stream with the fewest rows."""
    found = np.empty(len(counts), np.int64)
    heap = [(0, stream) for stream in range(streams)]
    rows = counts.tolist()
    for piece in np.argsort(-counts, kind="stable").tolist():
        before, stream = heap[0]
        heapq.heapreplace(heap, (before + rows[piece], stream))
        found[piece] = stream
    return found
