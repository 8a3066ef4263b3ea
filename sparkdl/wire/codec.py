"""Codecs of gradients: in full, or in fewer bytes.

Sums always have the layout's own precision. The source can keep the difference to the full gradient, its
*residual*, and add it to its next gradient (*error feedback*: Karimireddy et al., "Error Feedback Fixes
SignSGD and other Gradient Compression Schemes", ICML 2019, algorithm 2). Then nothing is lost, only delayed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from sparkdl.exceptions import ConfigError, is_integer
from sparkdl.wire import buffers
from sparkdl.wire.frame import Array

Cast = Literal["fp32", "bf16", "fp16"]
_TOP = 14  # the exponent that the largest value of a shard gets in fp16, whose own largest is 15


@dataclass(frozen=True, slots=True)
class Int8:
    """One byte per value: an integer of -127 to 127 times the scale of its block.

    The error of a value is at most half a scale, the largest of its block / 254. Written as ``"int8"``, with
    the defaults below.

    Args:
        block: values with one scale, itself four bytes, or eight where float64 has scales below 2⁻¹²⁶.
        error_feedback: whether each partition adds what is left out to its next gradient.

    Raises:
        ConfigError: if the block is no positive integer.
    """

    block: int = 256
    error_feedback: bool = True

    def __post_init__(self) -> None:
        if not is_integer(self.block, 1):
            raise ConfigError(f"Int8: block={self.block!r}: expected an integer of at least 1")


@dataclass(frozen=True, slots=True)
class TopK:
    """The largest values alone, eight bytes each: these are exact, the others arrive as zero.

    Without error feedback small gradients are never sent. Lin et al., "Deep Gradient Compression", ICLR 2018.

    Args:
        fraction: share of the values of each shard that is sent, at least one value.
        error_feedback: whether each partition adds what is left out to its next gradient.

    Raises:
        ConfigError: if the fraction is not above 0 and at most 1.
    """

    fraction: float = 0.01
    error_feedback: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.fraction, int | float) or not 0 < self.fraction <= 1:
            raise ConfigError(f"TopK: fraction={self.fraction!r}: expected a number above 0 and at most 1")


_FACTOR = 126  # the exponent of fp32's least number of full precision, without its sign
_FAR = 1000  # nearly as large an exponent as that of a factor can be

Codec = Cast | Int8 | TopK
"""``fp32``: as they are. ``bf16``: 8 bits of precision, the range of fp32. ``fp16``: 11 bits; values below
2⁻³⁸ of the shard's largest are lost. Others see :class:`Int8` and :class:`TopK`."""

Short = Literal["int8"]
"""Names that stand for a codec with its defaults."""

CODECS: tuple[str, ...] = (*get_args(Cast), *get_args(Short))
"""Codecs that have a name."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encoded values."""

    meta: Mapping[str, Any]  # how they are written; JSON-compatible
    arrays: Mapping[str, Array]  # what is written, by name


def codec_of(given: object) -> Codec:
    """Return the codec for an option."""
    if isinstance(given, Int8 | TopK):
        return given
    if given == "int8":
        return Int8()
    if isinstance(given, str) and given in CODECS:
        return given  # type: ignore[return-value]
    names = ", ".join(map(repr, CODECS))
    raise ConfigError(f"gradient_codec={given!r}: expected one of {names}, or Int8(...) or TopK(...)")


def cast_of(given: object) -> Cast:
    """Return the codec of weights for an option; it must work value by value."""
    if isinstance(given, str) and given in get_args(Cast):
        return given  # type: ignore[return-value]
    names = ", ".join(map(repr, get_args(Cast)))
    raise ConfigError(f"weights_codec={given!r}: expected one of {names}")


def has_error_feedback(codec: Codec) -> bool:
    """Return whether a source must keep a residual."""
    return isinstance(codec, Int8 | TopK) and codec.error_feedback


def encode(codec: Codec, values: Array) -> Encoded:
    """Encode a shard's gradient, float32 or float64, shape (n,); casts round to nearest, ties to even.

    Values that are not finite are written so that they are not finite when they arrive.
    """
    if codec == "fp32" or not values.size:
        return _as_they_are(values)
    # Torch warns of memory that it must not write to, which here it does not.
    tensor = torch.from_numpy(values if values.flags.writeable else buffers.copy(values))
    if codec == "bf16":
        return Encoded({"codec": codec}, {"gradient": tensor.to(torch.bfloat16).view(torch.uint16).numpy()})
    if isinstance(codec, TopK):
        return _encode_largest(codec, tensor)
    if isinstance(codec, Int8):
        return _encode_int8(codec, tensor)
    largest = float(tensor.abs().max())
    if not math.isfinite(largest) or largest == 0.0:
        return Encoded({"codec": codec, "factor": 1.0}, {"gradient": tensor.to(torch.float16).numpy()})
    # A power of two: scaling by it is exact. fp32 cannot hold the least ones: then in two steps.
    exponent = int(np.clip(np.frexp(largest)[1] - 1 - _TOP, -_FAR, _FAR))
    first = max(exponent, -_FACTOR)
    scaled = tensor * 2.0**-first
    if first != exponent:
        scaled = scaled * 2.0 ** (first - exponent)
    return Encoded({"codec": codec, "factor": 2.0**exponent}, {"gradient": scaled.to(torch.float16).numpy()})


def _as_they_are(values: Array) -> Encoded:
    return Encoded({"codec": "fp32"}, {"gradient": values})


def _encode_largest(codec: TopK, values: torch.Tensor) -> Encoded:
    count = max(1, math.ceil(codec.fraction * len(values)))
    largest, indices = torch.topk(values.abs(), count, sorted=False)
    if not torch.isfinite(largest).all():  # they are the largest there are; NaN is larger than all to torch
        return _as_they_are(values.numpy())
    indices = indices.sort().values
    small = len(values) <= np.iinfo(np.uint32).max
    arrays = {
        "gradient": values[indices].numpy(),
        "indices": indices.numpy().astype(np.uint32 if small else np.int64),
    }
    return Encoded({"codec": "topk", "count": len(values)}, arrays)


def _encode_int8(codec: Int8, values: torch.Tensor) -> Encoded:
    blocks = _blocks(values, codec.block)
    exact = blocks.abs().amax(1) / 127
    scales = exact.to(torch.float32)
    if not torch.isfinite(scales).all():
        return _as_they_are(values.numpy())
    small = (exact > 0) & (exact < 2.0**-_FACTOR)
    if exact.dtype == torch.float64 and small.any():  # which fp32 cannot hold, or with few digits
        scales = torch.where(small, exact, scales.double())
    divisors = scales.to(values.dtype).masked_fill(scales == 0, 1)[:, None]
    integers = (blocks / divisors).round_().clamp_(-127, 127).to(torch.int8)
    arrays = {"gradient": integers.view(-1)[: len(values)].numpy(), "scales": scales.numpy()}
    return Encoded({"codec": "int8", "block": codec.block}, arrays)


def rounded(codec: Cast, values: Array) -> Array:
    """Return values as they arrive after a codec."""
    if codec == "fp32":
        return values
    encoded = encode(codec, values)
    return decode(encoded.meta, encoded.arrays, values.dtype)


def _blocks(values: torch.Tensor, block: int) -> torch.Tensor:
    """Return values as rows of one block each, the last filled up with zeros."""
    missing = -len(values) % block
    padded = torch.nn.functional.pad(values, (0, missing)) if missing else values
    return padded.view(-1, block)


def decode(meta: Mapping[str, Any], arrays: Mapping[str, Array], dtype: np.dtype[np.floating]) -> Array:
    """Read what :func:`encode` has written, as an array that may be read-only."""
    codec, encoded = meta["codec"], arrays["gradient"]
    if codec == "fp32":
        return encoded.astype(dtype, copy=False)
    if codec == "bf16":
        bits = encoded.astype(np.uint32) << 16
        return bits.view(np.float32).astype(dtype, copy=False)
    if codec == "fp16":
        exponent = int(np.frexp(meta["factor"])[1]) - 1
        if exponent >= -_FACTOR:
            return np.multiply(encoded, dtype.type(meta["factor"]), dtype=dtype)
        smaller: Array = np.ldexp(encoded.astype(dtype), exponent)
        return smaller
    if codec == "topk":
        whole = np.zeros(meta["count"], dtype)
        whole[arrays["indices"]] = encoded
        return whole
    # int8
    scales = np.repeat(arrays["scales"].astype(dtype, copy=False), meta["block"])[: len(encoded)]
    values: Array = np.multiply(encoded, scales, dtype=dtype)
    return values
