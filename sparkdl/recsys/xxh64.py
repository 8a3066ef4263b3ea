"""The hash xxHash64 of integers and strings, as ``pyspark.sql.functions.xxhash64`` computes it.

Yann Collet's specification: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md. Integers are
hashed in arrays, strings one after the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

SEED = 42
"""Seed with which Spark begins."""

_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MASK = (1 << 64) - 1
_STRIPE = 32


def of_integers(values: NDArray[np.int64], seeds: Hashes) -> Hashes:
    """Return the hash of each integer, with a seed of its own."""
    word = _rotated(values.view(np.uint64) * np.uint64(_P2), 31) * np.uint64(_P1)
    mixed = (seeds + np.uint64((_P5 + 8) & _MASK)) ^ word
    mixed = _rotated(mixed, 27) * np.uint64(_P1) + np.uint64(_P4)
    mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(_P2)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_P3)
    found: Hashes = mixed ^ (mixed >> np.uint64(32))
    return found


def of_bytes(data: bytes, seed: int) -> int:
    """Return the hash of bytes, from 0 to below 2**64."""
    at, size = 0, len(data)
    if size >= _STRIPE:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        while size - at >= _STRIPE:
            words = np.frombuffer(data, "<u8", 4, at).tolist()
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += _STRIPE
        mixed = sum(_turned(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            mixed = ((mixed ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        mixed = seed + _P5
    mixed = (mixed + size) & _MASK
    while size - at >= 8:
        mixed ^= _round(0, int.from_bytes(data[at : at + 8], "little"))
        mixed = (_turned(mixed, 27) * _P1 + _P4) & _MASK
        at += 8
    if size - at >= 4:
        mixed ^= int.from_bytes(data[at : at + 4], "little") * _P1 & _MASK
        mixed = (_turned(mixed, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        mixed ^= byte * _P5 & _MASK
        mixed = _turned(mixed, 11) * _P1 & _MASK
    mixed = (mixed ^ (mixed >> 33)) * _P2 & _MASK
    mixed = (mixed ^ (mixed >> 29)) * _P3 & _MASK
    return mixed ^ (mixed >> 32)


def _rotated(values: Hashes, by: int) -> Hashes:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))


def _turned(value: int, by: int) -> int:
    value &= _MASK
    return (value << by | value >> (64 - by)) & _MASK


def _round(lane: int, word: int) -> int:
    return _turned(lane + word * _P2, 31) * _P1 & _MASK
