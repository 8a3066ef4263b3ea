"""Adasum: adding gradients without overshooting where they agree (Maleki et al., arXiv 2006.02924).

Of two gradients of one parameter::

    Adasum(a, b) = (1 - a·b / (2 |a|²)) a + (1 - a·b / (2 |b|²)) b

Orthogonal ones are added, parallel ones averaged. More than two are combined pair by pair, then the
results pair by pair, and so on. Everything in between is a linear combination of the gradients, and
its dot products follow from theirs: all coefficients follow from one Gram matrix per parameter, which
is summed over the shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparkdl.allreduce.update.combine import WeightedPart
from sparkdl.optim.segments import segments
from sparkdl.wire.frame import Array
from sparkdl.wire.layout import ParamLayout

Float64 = NDArray[np.float64]

_BLOCK = 1 << 16  # elements of each gradient that are converted to double precision at a time
_ROUNDING = 1e-14  # a squared norm below this share of its summands is what rounding left of zero


def gram_partials(parts: Sequence[WeightedPart], layout: ParamLayout, start: int, stop: int) -> Float64:
    """Return a shard's part of the dot products of all pairs of gradients.

    Of shape (parameters, sources, sources). ``parts`` are gradients of elements [start, stop), in source
    order; weights do not count.
    """
    gram = np.zeros((len(layout.params), len(parts), len(parts)))
    for segment in segments(layout, start, stop):
        for begin in range(segment.start, segment.stop, _BLOCK):
            end = min(begin + _BLOCK, segment.stop)
            rows = np.array([part.array[begin - start : end - start] for part in parts], np.float64)
            gram[segment.param] += rows @ rows.T
    return gram


def coefficients(gram: Float64) -> Float64:
    """Return the factor of each source's gradient, shape (parameters, sources), of the whole dot products."""
    params, sources, _ = gram.shape
    level = [np.tile(row, (params, 1)) for row in np.eye(sources)]
    while len(level) > 1:
        pairs = [_pair(gram, a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]  # an odd one passes up
    return level[0]


def combine(
    parts: Sequence[WeightedPart], factors: Float64, layout: ParamLayout, start: int, stop: int
) -> Array:
    """Return the combined gradient of a shard, by the factors of :func:`coefficients`, as a fresh array."""
    combined = np.zeros_like(parts[0].array)
    own = factors.astype(combined.dtype)
    for segment in segments(layout, start, stop):
        where = slice(segment.start - start, segment.stop - start)
        np.multiply(parts[0].array[where], own[segment.param, 0], out=combined[where])
        for part, factor in zip(parts[1:], own[segment.param, 1:], strict=True):
            combined[where] += part.array[where] * factor
    return combined


def _pair(gram: Float64, a: Float64, b: Float64) -> Float64:
    """Return Adasum of two linear combinations, as one."""
    square_a, square_b = _square(gram, a), _square(gram, b)
    product = np.einsum("pi,pij,pj->p", a, gram, b)
    bound = np.sqrt(square_a) * np.sqrt(square_b)
    product = np.clip(product, -bound, bound)  # Cauchy and Schwarz, also after rounding
    return a * _factor(product, square_a) + b * _factor(product, square_b)


def _square(gram: Float64, a: Float64) -> Float64:
    """Return the squared norm of a linear combination, 0 where only rounding errors are left."""
    square: Float64 = np.einsum("pi,pij,pj->p", a, gram, a)
    summands: Float64 = np.einsum("pi,pij,pj->p", np.abs(a), np.abs(gram), np.abs(a))
    return np.where(square > _ROUNDING * summands, square, 0.0)


def _factor(product: Float64, square: Float64) -> Float64:
    share = np.divide(product, 2 * square, out=np.zeros_like(product), where=square > 0)
    factor: Float64 = 1 - share
    return factor[:, None]
