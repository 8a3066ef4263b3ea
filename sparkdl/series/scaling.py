"""Each series to a common scale, and back."""

from __future__ import annotations

from typing import Literal

import numpy as np

from sparkdl.wire.frame import Array

Scaling = Literal["standard", "mean", "none"]
SCALINGS = ("standard", "mean", "none")


def scale_of(values: Array, scaling: str) -> tuple[Array, Array]:
    """Return centre and size of each column: ``(value - centre) / size`` is on the common scale.

    Args:
        values: shape (steps,) or (steps, columns); NaN is left out.
        scaling: ``standard`` for mean 0 and deviation 1, ``mean`` for a mean of absolute values of 1,
            ``none``.

    Returns:
        Arrays of shape () or (columns,). A size that would be 0 is 1.
    """
    kept = values.astype(np.float64)
    known = np.isfinite(kept)
    count = np.maximum(known.sum(0), 1)
    zero = np.zeros(values.shape[1:])
    if scaling == "none":
        return zero, zero + 1
    kept = np.where(known, kept, 0.0)
    if scaling == "mean":
        centre, size = zero, np.abs(kept).sum(0) / count
    else:
        centre = kept.sum(0) / count
        size = np.sqrt((np.where(known, kept - centre, 0.0) ** 2).sum(0) / count)
    tiny = 1e-12 * np.maximum(np.abs(centre), 1.0)  # rounding of a series that is constant
    return centre, np.where(size > tiny, size, 1.0)
