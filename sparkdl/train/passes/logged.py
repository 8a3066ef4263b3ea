"""Scalars that the steps of an evaluation log, as scores: means over the rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

RESERVED = ("kind", "epoch", "iteration", "name")
"""Keys of a validation's row in the history that are no scores."""


class Logged:
    """Means over rows of the scalars that an evaluation's steps log.

    Attributes:
        sums: by name, the sum over rows and their number.
    """

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = {}

    def add(self, extras: Mapping[str, float], rows: float) -> None:
        """Add the means of a batch."""
        for name, value in extras.items():
            total = self.sums.setdefault(name, [0.0, 0.0])
            total[0] += value * rows
            total[1] += rows

    def merge(self, sums: Mapping[str, Sequence[float]]) -> None:
        """Add the sums of another partition."""
        for name, (value, rows) in sums.items():
            total = self.sums.setdefault(name, [0.0, 0.0])
            total[0] += value
            total[1] += rows

    def scores(self, taken: Collection[str]) -> dict[str, float]:
        """Return the means, without names that are taken by others."""
        names = [name for name in self.sums if name not in taken and name not in RESERVED]
        return {name: self.sums[name][0] / self.sums[name][1] for name in names}
