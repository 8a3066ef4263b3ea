"""The order of an epoch's rows that no number of partitions changes.

Between rows and partitions stand *streams*: row i of a store belongs to stream i % V, and of R partitions
the one of number stream % R has its rows. An epoch has a slot for each row. Slot k·V + q(s) takes the k-th
row of stream s's own permutation, where q permutes the streams that have one row more among themselves, and
the others. Of N rows in T iterations, iteration t takes the slots from floor(t·N/T) up to floor((t+1)·N/T).
So by iteration t stream s has given (floor(t·N/T) + V - 1 - q(s)) // V rows. Without shuffle slots are rows.

A partition computes its part of this alone: its rows lie in the order of the source, V/R of each V, so that
row and number in the partition follow from each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl import seeding
from sparkdl.wire.frame import Array

STREAMS = 840
"""V: most numbers of partitions divide it. A store of fewer rows has streams without any."""

_AT_ONCE = 1 << 20  # rows that are sorted at a time
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Dealt:
    """What a partition has of rows that are dealt to streams.

    Attributes:
        rows: N, of all partitions.
        partition: number of the partition.
        partitions: R.
        streams: V.
    """

    rows: int
    partition: int
    partitions: int
    streams: int = STREAMS

    @property
    def own(self) -> Array:
        """The partition's streams, ascending."""
        return np.arange(self.partition, self.streams, self.partitions)

    def before(self, slot: int, places: Array) -> int:
        """Return how many of the partition's slots come before one, given q of its streams, ascending."""
        whole, rest = divmod(slot, self.streams)
        return whole * len(places) + int(np.searchsorted(places, rest))

    def numbers(self) -> Array:
        """Return the rows that the partition has, ascending: its row of number n is row ``numbers()[n]``."""
        blocks = np.arange(0, self.rows, self.streams)
        found: Array = (blocks[:, None] + self.own).reshape(-1)
        return found[found < self.rows]


@dataclass(frozen=True, slots=True)
class Epoch:
    """A partition's part of an epoch.

    Attributes:
        dealt: the partition.
        places: q of its streams, ascending.
        order: numbers of its rows, in the order of their slots; ``None`` for that of the source.
    """

    dealt: Dealt
    places: Array
    order: Array | None

    def rows(self, iterations: int, t: int) -> Array:
        """Return the numbers of the rows that the partition contributes to an iteration."""
        slots = (step * self.dealt.rows // iterations for step in (t, t + 1))
        first, end = (self.dealt.before(slot, self.places) for slot in slots)
        return np.arange(first, end) if self.order is None else self.order[first:end]


def epoch_of(dealt: Dealt, seed: int, epoch: int, shuffle: bool) -> Epoch:
    """Return a partition's part of an epoch."""
    if not shuffle:
        return Epoch(dealt, dealt.own, None)
    base = seeding.derive(seeding.ORDER, seed, epoch)
    places = _places(dealt, base)[dealt.own]
    first = np.argsort(places)  # of its streams, by their slots
    order = _order(dealt, base, first)
    order.flags.writeable = False
    return Epoch(dealt, places[first], order)


def _places(dealt: Dealt, base: int) -> Array:
    """Return q, for all streams."""
    generator = np.random.Generator(np.random.PCG64(base))
    longer = dealt.rows % dealt.streams
    return np.concatenate(
        [generator.permutation(longer), longer + generator.permutation(dealt.streams - longer)]
    )


def _order(dealt: Dealt, base: int, first: Array) -> Array:
    """Return the partition's rows in the order of their slots, given its streams' order by slots."""
    own, width = dealt.own, len(first)
    deep = -(-dealt.rows // dealt.streams)
    longer = dealt.before(dealt.rows, own) - (deep - 1) * width  # streams that have a row at the bottom
    if not width or not deep:
        return np.empty(0, np.int32)
    order: Array = np.empty((deep, width), np.int32 if deep * width < 2**31 else np.int64)
    depths = np.arange(deep)
    for begin in range(0, width, at_once := max(1, _AT_ONCE // deep)):
        chosen = first[begin : begin + at_once]
        drawn = _keys(base, own[chosen][:, None] + depths * dealt.streams)
        # The depth in the lowest bits: no two keys are equal, and sorting them is all there is to do.
        bits = np.uint64((1 << deep.bit_length()) - 1)
        keys = (drawn & ~bits) | depths.astype(np.uint64)
        keys[chosen >= longer, -1] = np.iinfo(np.uint64).max  # there is no such row
        keys.sort(axis=1)
        found = (keys & bits).astype(order.dtype)
        order[:, begin : begin + at_once] = (found * order.dtype.type(width) + chosen[:, None]).T
    return order.reshape(-1)[: dealt.before(dealt.rows, own)]


def _keys(base: int, rows: Array) -> Array:
    """Return a random number for each row: what splitmix64, by Sebastiano Vigna, draws at its turn."""
    with np.errstate(over="ignore"):
        z = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(base)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
