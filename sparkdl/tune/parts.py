"""Parts of a Dataset's rows: shares and folds, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl import seeding
from sparkdl.wire.frame import Array


@dataclass(frozen=True, slots=True)
class RowShare:
    """Some of the rows: those between two shares of them in an order drawn from a seed, or all others.

    Attributes:
        begin: share at which it begins, from 0.
        end: share at which it ends, up to 1.
        others: whether all other rows are meant.
        seed: draws the order.
    """

    begin: float
    end: float
    others: bool
    seed: int

    @property
    def name(self) -> str:
        """What names its view among those of a partition."""
        return f"{self.seed}-{self.begin!r}-{self.end!r}-{'others' if self.others else 'these'}"

    def rows(self, count: int) -> Array:
        """Return its row numbers, ascending, among so many rows."""
        order = np.random.default_rng(seeding.derive(seeding.ORDER, self.seed)).permutation(count)
        inside = np.zeros(count, bool)
        inside[order[round(self.begin * count) : round(self.end * count)]] = True
        return np.flatnonzero(~inside if self.others else inside)


def share(fraction: float, seed: int) -> tuple[RowShare, RowShare]:
    """Return the rows for training, and the share of them for validation."""
    return RowShare(0.0, fraction, True, seed), RowShare(0.0, fraction, False, seed)


def folds(count: int, seed: int) -> list[tuple[RowShare, RowShare]]:
    """Return the rows for training and those for validation of each fold."""
    bounds = [(fold / count, (fold + 1) / count) for fold in range(count)]
    return [(RowShare(a, b, True, seed), RowShare(a, b, False, seed)) for a, b in bounds]
