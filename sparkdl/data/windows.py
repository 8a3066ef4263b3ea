"""Views of a partition whose rows are windows: stretches of stored rows, which may overlap.

The steps of series lie in the files once. A row of the view is the number of its first stored row; each of
its columns is a stretch of stored rows at an offset from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparkdl.data.store.partition import Token, view_of
from sparkdl.wire.frame import Array


@dataclass(frozen=True, slots=True)
class Stretch:
    """A column of a window."""

    key: str  # of the column
    stored: str  # key of the stored column
    offset: int = 0  # where it begins, in stored rows after the first one of the window
    length: int = 0  # stored rows; 0 for one row, without a dimension of its own


def windows_of(token: Token, name: str, starts: Array, stretches: Sequence[Stretch]) -> Token:
    """Return the token of windows over a partition's rows, sharing its files; or PartitionMissingError."""
    stored = {key: (dtype, shape) for key, dtype, shape in token.columns}
    columns = []
    for part in stretches if stored and len(starts) else ():
        dtype, shape = stored[part.stored]
        columns.append((part.key, dtype, (part.length, *shape) if part.length else shape))
    view = view_of(token, name, starts)
    return replace(
        view,
        columns=tuple(columns),
        stretches=tuple((part.key, part.stored, part.offset, part.length) for part in stretches),
    )
