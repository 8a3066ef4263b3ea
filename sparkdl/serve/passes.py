"""Forward passes: rows of a request that share one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparkdl.exceptions import ModelError
from sparkdl.wire.frame import Array

_VALUES = 1 << 22  # most values of a padded tensor: one long row among many short ones must not fill memory


@dataclass(frozen=True, slots=True)
class Passes:
    """Forward passes over some rows."""

    rows: Sequence[slice | Array]  # of each pass: a slice, or the numbers of its rows
    order: Array | None = None  # the rows in the order of the passes; ``None`` if that is their own

    def joined(self, parts: Sequence[Array]) -> Array:
        """Return the outputs of the passes in the order of the rows."""
        shapes = [part.shape[1:] for part in parts]
        if any(shape != shapes[0] for shape in shapes):
            other = next(shape for shape in shapes if shape != shapes[0])
            raise ModelError(
                f"the module's output differs between batches: rows of shape {other} after {shapes[0]}. "
                "Where it follows the length of rows, send rows of one length",
                code="model-output",
            )
        found = np.concatenate(parts)
        if self.order is None:
            return found
        placed = np.empty_like(found)
        placed[self.order] = found
        return placed


def cut(columns: Sequence[Array], size: int, *, padded: bool) -> Passes:
    """Cut rows, those of arrays of objects differing in length, into passes of at most ``size`` rows.

    With ``padded``, rows that differ in length may share a pass, for the module passes over what fills
    shorter ones up. Then neighbours are of similar length, else of the same.
    """
    count = len(columns[0])
    lengths = [np.array([len(row) for row in a]) for a in columns if a.dtype == object]
    if not lengths or all(len(set(of_column.tolist())) == 1 for of_column in lengths):
        longest = max((int(of_column[0]) for of_column in lengths), default=0)
        step = max(1, min(size, _VALUES // max(1, longest)))
        return Passes([slice(start, start + step) for start in range(0, count, step)])
    order = np.lexsort(lengths)
    sorted_lengths = np.stack(lengths, 1)[order]
    found, start = [], 0
    for end in range(1, count + 1):
        if end == count or not _fits(sorted_lengths[start : end + 1], size, padded):
            found.append(order[start:end])
            start = end
    return Passes(found, order)


def _fits(lengths: Array, size: int, padded: bool) -> bool:
    """Return whether rows of these lengths, one row of numbers for each, may share a pass."""
    if len(lengths) > size or len(lengths) * int(lengths.max()) > _VALUES:
        return False
    return padded or bool((lengths == lengths[0]).all())
