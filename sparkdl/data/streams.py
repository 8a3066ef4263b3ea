"""The order of an epoch's rows that no number of partitions changes.

Between rows and partitions stand *streams*: row i of a store belongs to stream i % V, and of R partitions
the one of number stream % R has its rows. In an epoch each stream has its own permutation of its rows, and
all have an order q. A round takes one row of each stream, in the order q; one of the rounds, drawn for the
epoch, takes those that N // V rounds leave, of the streams that have one row more. So each row has a *slot*.
Of N rows in T iterations, iteration t takes the slots from floor(t·N/T) up to floor((t+1)·N/T). Without
shuffle slots are rows. An epoch whose number of iterations changes on its way spreads the slots that are left
over those to come.

q is drawn such that neighbouring slots are of different partitions: each partition has its share of a batch,
to a row or two if their number divides V, and nearly otherwise. For each prime power of V the remainders of
the streams are scrambled digit by digit (nested uniform scrambling, Owen 1995), so that each stream is at
each place equally often. The streams of the short round have an order of their own, made of shorter rounds.

A partition computes its part of this alone: its rows lie in the order of the source, V/R of each V, so that
row and number in the partition follow from each other. Fewer than eight rounds would not mix the rows well,
and be short to a good part: so few rows are shuffled as a whole, likewise in shorter rounds, and each
partition takes its own of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sparkdl import seeding
from sparkdl.exceptions import ConfigError
from sparkdl.keyed.mix import GOLDEN, mix
from sparkdl.wire.frame import Array

STREAMS = 20_160
"""V: most numbers of partitions divide it. A store of fewer rows has streams without any."""

_DEPTH = 8  # rounds that an order has at least, but for few rows
_WIDTHS = {width: _DEPTH * width for width in (6720, 960, 240, 120)} | {n: 3 * n for n in (24, 12, 6, 2)}
"""Rows of a round, even for most numbers of partitions, and of how many rows at least."""

_AT_ONCE = 1 << 20  # rows that are sorted at a time


@dataclass(frozen=True, slots=True)
class Dealt:
    """What a partition has of rows that are dealt to streams."""

    rows: int  # N, of all partitions
    partition: int  # number of the partition
    partitions: int  # R
    streams: int = STREAMS  # V

    @property
    def own(self) -> Array:
        """The partition's streams, ascending."""
        return np.arange(self.partition, self.streams, self.partitions)

    @property
    def count(self) -> int:
        """How many rows the partition has."""
        return self.rows // self.streams * len(self.own) + int(
            np.searchsorted(self.own, self.rows % self.streams)
        )

    def numbers(self) -> Array:
        """Return the rows that the partition has, ascending: its row of number n is row ``numbers()[n]``."""
        blocks = np.arange(0, self.rows, self.streams)
        found: Array = (blocks[:, None] + self.own).reshape(-1)
        return found[found < self.rows]


def check_partitions(partitions: int) -> None:
    """Check that rows can be dealt to so many partitions."""
    if partitions > STREAMS:
        raise ConfigError(
            f"num_partitions={partitions}: expected at most {STREAMS}: rows are dealt in as many streams; "
            "num_partitions='input' keeps the partitions of a DataFrame or RDD, however many"
        )


@dataclass(frozen=True, slots=True)
class Epoch:
    """A partition's part of an epoch."""

    in_round: Array  # how many of a round's first slots are the partition's, by their number
    in_short: Array  # likewise of the short round's
    short: int  # number of the short round
    order: Array | None  # numbers of its rows, in the order of their slots; ``None`` for that of the source

    def rows(self, slots: tuple[int, int]) -> Array:
        """Return the numbers of the rows that the partition has in a range of slots."""
        first, end = (self._before(slot) for slot in slots)
        return np.arange(first, end) if self.order is None else self.order[first:end]

    def _before(self, slot: int) -> int:
        """Return how many of the partition's slots come before one."""
        streams, extra = len(self.in_round) - 1, len(self.in_short) - 1
        in_short = min(max(slot - self.short * streams, 0), extra)
        rounds, more = divmod(slot - in_short, streams)
        own = rounds * self.in_round[-1] + self.in_round[more] + self.in_short[in_short]
        return int(own)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory."""
        return (
            self.in_round.nbytes + self.in_short.nbytes + (self.order.nbytes if self.order is not None else 0)
        )


@dataclass(frozen=True, slots=True)
class Since:
    """From where on an epoch has the number of iterations that it has; its beginning by default."""

    step: int = 0  # iterations of the epoch that were completed there
    slot: int = 0  # slots that these have taken

    def slots(self, rows: int, steps: int, step: int) -> tuple[int, int]:
        """Return the range of slots that an iteration takes of an epoch of so many rows and iterations."""
        first, end = (
            self.slot + (t - self.step) * (rows - self.slot) // (steps - self.step) for t in (step, step + 1)
        )
        return first, end


FROM_THE_BEGINNING = Since()


def epoch_of(dealt: Dealt, seed: int, epoch: int, shuffle: bool) -> Epoch:
    """Return a partition's part of an epoch."""
    rounds, extra = divmod(dealt.rows, dealt.streams)
    if not shuffle:
        streams, rest = np.arange(dealt.streams), np.arange(extra)
        return Epoch(_before(dealt, streams), _before(dealt, rest), rounds, None)
    base = seeding.derive(seeding.ORDER, seed, epoch)
    generator = np.random.Generator(np.random.PCG64(base))
    if rounds < _DEPTH:
        rows = _shuffled(dealt.rows, generator)
        before, short, rest = _before(dealt, rows % dealt.streams), rounds, np.arange(0)
        depths, streams = np.divmod(rows[np.diff(before) > 0], dealt.streams)
        order = depths * len(dealt.own) + streams // dealt.partitions
    else:
        streams, short = scrambled(dealt.streams, generator), int(generator.integers(rounds + 1))
        before, rest = _before(dealt, streams), _shuffled(extra, generator)
        order = _order(dealt, base, streams, rest, short)
    order.flags.writeable = False
    return Epoch(before, _before(dealt, rest), short, order)


def _before(dealt: Dealt, streams: Array) -> Array:
    """Return how many of the first streams, none up to all of them, are the partition's."""
    return np.concatenate([[0], np.cumsum(streams % dealt.partitions == dealt.partition)])


def _shuffled(count: int, generator: np.random.Generator) -> Array:
    """Return so many numbers in an order of which each stretch has nearly as many of all small remainders.

    They come in rounds as an epoch's rows do, of the remainders by as large a number as leaves each of them
    some numbers to draw from.
    """
    width = next((width for width, least in _WIDTHS.items() if count >= least), 1)
    if width == 1:
        return generator.permutation(count)
    rounds, extra = divmod(count, width)
    streams, short = scrambled(width, generator), int(generator.integers(rounds + 1))
    drawn = generator.random((rounds + 1, width))
    drawn[rounds, extra:] = np.inf  # there is no such number
    numbers = np.argsort(drawn, axis=0) * width + np.arange(width)
    after = numbers[short + 1 :].copy()
    after[:, extra:] = numbers[short:-1, extra:]
    rest = numbers[short, _shuffled(extra, generator)]
    return np.concatenate([numbers[:short, streams].reshape(-1), rest, after[:, streams].reshape(-1)])


def scrambled(count: int, generator: np.random.Generator) -> Array:
    """Return so many streams in an order of which each stretch has nearly as many of all remainders."""
    numbers = np.arange(count)
    found = np.zeros(count, np.int64)
    for prime, power in _prime_powers(count):
        remainders, size = np.zeros(1, np.int64), 1
        while size < power:
            digits = generator.permuted(np.tile(np.arange(prime), (size, 1)), axis=1)
            remainders = (remainders + size * digits.T).reshape(-1)
            size *= prime
        others = count // power
        found += remainders[numbers % power] * (
            others * pow(others, -1, power)
        )  # is 1 modulo this power alone
    return found % count


def _prime_powers(number: int) -> Iterator[tuple[int, int]]:
    """Yield each prime that divides a number, and its power that does."""
    prime = 2
    while number > 1:
        power = 1
        while number % prime == 0:
            number, power = number // prime, power * prime
        if power > 1:
            yield prime, power
        prime += 1


def _order(dealt: Dealt, base: int, streams: Array, rest: Array, short: int) -> Array:
    """Return the partition's rows in the order of their slots, given those of the streams."""
    first, rest = (
        every[every % dealt.partitions == dealt.partition] // dealt.partitions for every in (streams, rest)
    )
    own, width = dealt.own, len(first)
    deep = -(-dealt.rows // dealt.streams)
    if not width or not deep:
        return np.empty(0, np.int32)
    order: Array = np.empty((deep, width), np.int32 if deep * width < 2**31 else np.int64)
    depths, longer = np.arange(deep), first < dealt.count - (deep - 1) * width
    for begin in range(0, width, at_once := max(1, _AT_ONCE // deep)):
        here = slice(begin, begin + at_once)
        drawn = _keys(base, own[first[here]][:, None] + depths * dealt.streams)
        # The depth in the lowest bits: no two keys are equal, and sorting them is all there is to do.
        bits = np.uint64((1 << deep.bit_length()) - 1)
        keys = (drawn & ~bits) | depths.astype(np.uint64)
        keys[~longer[here], -1] = np.iinfo(np.uint64).max  # there is no such row
        keys.sort(axis=1)
        found = (keys & bits).astype(order.dtype)
        order[:, here] = (found * order.dtype.type(width) + first[here][:, None]).T
    if dealt.rows % dealt.streams == 0:  # no round is short
        return order.reshape(-1)
    order[short + 1 :, ~longer] = order[short:-1, ~longer]
    return np.concatenate(
        [
            order[:short].reshape(-1),
            order[short : short + 1, np.argsort(first)[rest]].reshape(-1),
            order[short + 1 :].reshape(-1),
        ]
    )


def _keys(base: int, rows: Array) -> Array:
    """Return a random number for each row: what SplitMix64 draws at its turn."""
    return mix(rows.astype(np.uint64) * GOLDEN + np.uint64(base))


@dataclass(frozen=True, slots=True)
class RowShare:
    """Some of the rows: those between two shares of them in an order drawn from a seed, or all others."""

    begin: float  # share at which it begins, from 0
    end: float  # share at which it ends, up to 1
    others: bool  # whether all other rows are meant
    seed: int  # draws the order

    @property
    def name(self) -> str:
        """What names its view among those of a partition."""
        return f"{self.seed}-{self.begin!r}-{self.end!r}-{'others' if self.others else 'these'}"

    def rows(self, count: int) -> Array:
        """Return its row numbers, ascending, among so many rows."""
        order = np.random.default_rng(seeding.derive(seeding.ORDER, self.seed)).permutation(count)
        inside = np.zeros(count, bool)
        inside[order[self._range(count)]] = True
        return np.flatnonzero(~inside if self.others else inside)

    def count(self, count: int) -> int:
        """Return how many these are among so many rows."""
        inside = len(range(count)[self._range(count)])
        return count - inside if self.others else inside

    def _range(self, count: int) -> slice:
        return slice(round(self.begin * count), round(self.end * count))
