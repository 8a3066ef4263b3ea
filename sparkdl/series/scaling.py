"""Each series to a common scale, and back."""

from __future__ import annotations

import numpy as np

from sparkdl.wire.frame import Array

SCALINGS = ("standard", "mean", "none")
_ROUNDING = 1e-12  # deviation of a constant, as a share of it


def scale_of(values: Array, scaling: str) -> tuple[Array, Array]:
    """Return centre and size of each column: ``(value - centre) / size`` is on the common scale.

    ``values`` are (steps,) or (steps, columns); NaN is left out. ``scaling`` is ``standard`` for mean 0 and
    deviation 1, ``mean`` for a mean of absolute values of 1, or ``none``. The size of a column that is
    constant but for rounding is 0 by ``standard``, and its centre is one of its values; by ``mean`` that of a
    column of zeros is 0.
    """
    kept = values.astype(np.float64)
    known = np.isfinite(kept)
    count = np.maximum(known.sum(0), 1)
    zero = np.zeros(values.shape[1:])
    if scaling == "none":
        return zero, zero + 1
    kept = np.where(known, kept, 0.0)
    # A power of two, so no bit changes: squares keep in range.
    _, exponent = np.frexp(np.abs(kept).max(0, initial=0.0))
    kept = np.ldexp(kept, -exponent)
    if scaling == "mean":
        return zero, np.ldexp(np.abs(kept).sum(0) / count, exponent)
    centre = kept.sum(0) / count
    size = np.sqrt((np.where(known, kept - centre, 0.0) ** 2).sum(0) / count)
    constant = size <= _ROUNDING * np.abs(centre)
    value = np.where(known, kept, -np.inf).max(0, initial=-np.inf)
    centre = np.where(constant & known.any(0), value, centre)
    return np.ldexp(centre, exponent), np.ldexp(np.where(constant, 0.0, size), exponent)


def divisor_of(centre: Array, size: Array) -> Array:
    """Return what values less their centre are divided by: of a constant column its value, or 1 if it is 0.

    A forecast is multiplied by the size itself, so that the one of a constant is the constant.
    """
    return np.where(size > 0, size, np.where(centre != 0, np.abs(centre), 1.0))
