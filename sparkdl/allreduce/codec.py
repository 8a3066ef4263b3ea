"""How gradients are written for the shuffle: in full, or in half as many bytes.

Sums are taken in the layout's own precision, whatever the gradients travel in.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch

from sparkdl.frame import Array

Codec = Literal["fp32", "bf16", "fp16"]
"""``fp32``: as they are. ``bf16``: 8 bits of precision, the range of fp32. ``fp16``: 11 bits; values below
2⁻³⁸ of the shard's largest are lost."""

CODECS: tuple[str, ...] = get_args(Codec)
_TOP = 14  # the exponent that the largest value of a shard gets in fp16, whose own largest is 15


def encode(codec: Codec, values: Array) -> tuple[Array, float]:
    """Write values for their way, rounded to nearest, ties to even.

    Args:
        codec: how.
        values: gradient of a slice, float32 or float64.

    Returns:
        What travels, and the factor that :func:`decode` needs.
    """
    if codec == "fp32" or not values.size:
        return values, 1.0
    tensor = torch.from_numpy(values)
    if codec == "bf16":
        return tensor.to(torch.bfloat16).view(torch.uint16).numpy(), 1.0
    largest = float(np.max(np.abs(values)))
    if not np.isfinite(largest) or largest == 0.0:
        return tensor.to(torch.float16).numpy(), 1.0
    # A power of two: scaling by it is exact. Its own exponent must stay one of fp32.
    exponent = int(np.clip(np.frexp(largest)[1] - 1 - _TOP, -100, 126))
    return (tensor * 2.0**-exponent).to(torch.float16).numpy(), 2.0**exponent


def decode(codec: Codec, encoded: Array, factor: float, dtype: np.dtype[np.floating]) -> Array:
    """Read what :func:`encode` has written, as an array that may be read-only.

    Args:
        codec: how it was written.
        encoded: what has arrived.
        factor: as returned beside it.
        dtype: of the result.
    """
    if codec == "fp32" or not encoded.size:
        return encoded.astype(dtype, copy=False)
    if codec == "bf16":
        bits = encoded.astype(np.uint32) << 16
        return bits.view(np.float32).astype(dtype, copy=False)
    return np.multiply(encoded, dtype.type(factor), dtype=dtype)
