"""Hashing of ids: the same on every machine, and independent of the order in which ids come."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""What SplitMix64 adds to its state at each turn."""

_WORDS = 4
_LARGEST = 65_535


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each value: the output function of SplitMix64, a bijection (Steele et al., 2014)."""
    mixed = values + GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def distinct(parts: Iterable[Ids]) -> Ids:
    """Return each id of several arrays once, in order.

    ``np.unique`` hashes integers since numpy 2.3: 5.9 ms for 52,000 ids, most of them different. Sorting them
    takes 0.3 ms.
    """
    ids: Ids = np.sort(np.concatenate([np.empty(0, np.int64), *parts]))
    first = np.ones(len(ids), np.bool_)
    np.not_equal(ids[1:], ids[:-1], out=first[1:])
    return ids[first]


def owners(ids: Ids, ranks: int, pages: int = 0) -> NDArray[np.int64]:
    """Return the rank that owns each id's row; with ``pages``, ids of one of so many have one owner."""
    if pages:
        ids = pages_of(ids, pages)
    # The low bits choose the place in a rank's own table: these are others.
    return (mix(ids.view(np.uint64)) >> np.uint64(33)).astype(np.int64) % ranks


def pages_of(ids: Ids, pages: int) -> Ids:
    """Return the page of each id; there are fewer than 2**32."""
    high = mix(ids.view(np.uint64)) >> np.uint64(32)
    return ((high * np.uint64(pages)) >> np.uint64(32)).astype(np.int64)


def initial_rows(
    seed: int, ids: Ids, width: int, std: float, dtype: np.dtype[np.floating]
) -> NDArray[np.floating]:
    """Return the first row of each id, shape (ids, width): a function of seed and id alone.

    Each value is the sum of four uniform numbers, which is close to a normal distribution. It needs no
    logarithm, whose last digit differs from processor to processor.
    """
    start = mix(ids.view(np.uint64) ^ mix(np.array([seed], np.int64).view(np.uint64)))
    columns = np.arange(1, width + 1, dtype=np.uint64) * GOLDEN
    words = mix(start[:, None] + columns[None, :]).view(np.uint16).reshape(len(ids), width, _WORDS)
    centred = words.sum(-1, dtype=np.int64) - _WORDS * _LARGEST // 2
    unit = np.sqrt(_WORDS * (2.0**32 - 1) / 12)
    rows: NDArray[np.floating] = (centred * (std / unit)).astype(dtype)
    return rows
