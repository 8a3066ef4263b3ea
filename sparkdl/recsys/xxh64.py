"""The hash xxHash64 of arrays of integers, as ``pyspark.sql.functions.xxhash64`` computes it.

The package xxhash hashes one value with one seed, too slow for columns of integers, each with its own seed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

SEED = 42
"""Seed with which Spark begins."""

_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def of_integers(values: NDArray[np.int64], seeds: Hashes) -> Hashes:
    """Return the hash of each integer, with a seed of its own."""
    word = _rotated(values.view(np.uint64) * np.uint64(_P2), 31) * np.uint64(_P1)
    mixed = (seeds + np.uint64(_P5 + 8)) ^ word
    mixed = _rotated(mixed, 27) * np.uint64(_P1) + np.uint64(_P4)
    mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(_P2)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_P3)
    found: Hashes = mixed ^ (mixed >> np.uint64(32))
    return found


def _rotated(values: Hashes, by: int) -> Hashes:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))
