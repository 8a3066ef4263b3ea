"""Counters of ids that have no entry yet: a counting Bloom filter, cut into pages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkdl.exceptions import ConfigError, is_integer, is_number
from sparkdl.keyed.entries import ROW
from sparkdl.keyed.mix import Ids, mix, pages_of
from sparkdl.keyed.store import MemoryStore
from sparkdl.keyed.tiers import TieredStore
from sparkdl.wire.frame import Array

CELLS = 256
"""Counters of a page: a byte of a hash chooses one."""
_MOST_HASHES = 16
_MOST_IDS = 1 << 36
_SALT = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True, slots=True)
class CountingBloom:
    """Counts look-ups of ids that have no row in few bytes for each id; some counts are too high.

    It is a counting Bloom filter. An id has several counters, which other ids share; the smallest one is its
    count, and only counters below the new count are raised (*conservative update*). All counters of an id are
    in one *page*. An owner has whole pages, and the ids of these: so counts do not depend on the number of
    owners. A page takes memory when the first of its ids is met.

    Args:
        max_ids: distinct ids that are expected, with those that get a row.
        error: share of new ids that are counted too high when so many ids have been counted. With more ids
            the share is larger.

    Attributes:
        max_ids: as given.
        error: as given.

    Raises:
        ConfigError: if an argument cannot work.
    """

    max_ids: int
    error: float = 0.01

    def __post_init__(self) -> None:
        found = self.max_ids
        if not is_integer(found, 1) or found > _MOST_IDS:
            raise ConfigError(f"max_ids={found!r}: expected an integer from 1 to 2**36")
        share = self.error
        if not is_number(share) or not 1e-6 <= share <= 0.5:
            raise ConfigError(f"error={share!r}: expected a number from 0.000001 to 0.5")

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return -(-self.max_ids // _best(self.error)[0])

    @property
    def hashes(self) -> int:
        """How many counters an id has."""
        return _best(self.error)[1]

    def cells(self, ids: Ids) -> NDArray[np.uint8]:
        """Return the counters of each id in its page, shape (ids, hashes)."""
        words = np.arange(1, -(-self.hashes // 8) + 1, dtype=np.uint64) * _SALT
        mixed = mix(mix(ids.view(np.uint64))[:, None] ^ words)
        return mixed.astype("<u8", copy=False).view(np.uint8)[:, : self.hashes]


class LookupCounts(NamedTuple):
    """What look-ups of ids without an entry have led to."""

    total: NDArray[np.int64]  # how often each id was looked up, or more
    more: int  # by how much the number of ids that wait for a row has grown


def count(
    bloom: CountingBloom,
    store: MemoryStore | TieredStore,
    ids: Ids,
    counts: NDArray[np.int64],
    iteration: int,
    *,
    least: int,
    max_age: int | None,
) -> LookupCounts:
    """Count look-ups of ids, each once, that have no entry.

    A page is an entry of ``store``: its count is how many of its ids wait for a row. The result does not
    depend on the order of ids. An id with ``least`` look-ups gets a row, and counters go no further; counts
    begin anew every ``max_age`` iterations, or never.
    """
    own, at = np.unique(pages_of(ids, bloom.pages), return_inverse=True)
    numbers = store.number(own)
    heads = store.heads(numbers)
    old, waiting = heads.admitted, heads.counts
    before = int(waiting.sum())
    values: Array = np.zeros((len(own), CELLS), dtype_for(least))
    values[old] = store.read(numbers[old], [ROW])[ROW]
    if max_age is not None:
        # All ids of an iteration see the same: the first look-up in a page clears it.
        late = heads.last // max_age != iteration // max_age
        values[late], waiting[late] = 0, 0
    cells = at[:, None] * CELLS + bloom.cells(ids)
    flat = values.reshape(-1)
    total = flat[cells].min(1).astype(np.int64)
    new = total == 0
    total += counts
    np.maximum.at(flat, cells, np.minimum(total, least).astype(flat.dtype)[:, None])
    waiting = waiting + np.bincount(at[new], minlength=len(own))
    waiting = np.maximum(0, waiting - np.bincount(at[total >= least], minlength=len(own)))
    store.admit(numbers[~old], {ROW: values[~old]})
    store.write(numbers[old], {ROW: values[old]})
    store.note(numbers, waiting, iteration)
    return LookupCounts(total, int(waiting.sum()) - before)


def dtype_for(least: int) -> np.dtype[np.unsignedinteger]:
    """Return the type of counters that go up to a number."""
    return np.min_scalar_type(least)


@lru_cache
def _best(error: float) -> tuple[int, int]:
    """Return how many ids a page may have on average, and how many counters each."""
    load, fewer = max((_load(error, hashes), -hashes) for hashes in range(1, _MOST_HASHES + 1))
    return load, -fewer


def _load(error: float, hashes: int) -> int:
    """Return how many ids a page may have on average, with so many counters each; at least 1."""
    load = 1
    while _share(load + 1, hashes) <= error:
        load += 1
    return load


def _share(load: int, hashes: int) -> float:
    """Return the share of new ids that are counted too high; pages have more ids or fewer, by chance."""
    found = 0.0
    for ids in range(4 * load + 40):
        chance = math.exp(ids * math.log(load) - load - math.lgamma(ids + 1))
        found += chance * (1 - (1 - 1 / CELLS) ** (hashes * ids)) ** hashes
    return found
