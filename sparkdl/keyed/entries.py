"""Entries of a keyed table as plain arrays: as they travel, and as they are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.frame import Array
from sparkdl.keyed.mix import Ids, owners

_OWN = ("ids", "counts", "last", "admitted")

ROW = "row"
"""Name of the column that has the rows themselves; others are the optimizer's state."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Some entries of a table.

    Attributes:
        ids: the ids, each once.
        counts: how often each was looked up in training.
        last: completed iterations when it was looked up last.
        admitted: whether it has a row.
        columns: by name, the rows, and the optimizer's state of each, of those ids that have one.
        scalars: the optimizer's state of the table as a whole.
    """

    ids: Ids
    counts: NDArray[np.int64]
    last: NDArray[np.int64]
    admitted: NDArray[np.bool_]
    columns: Mapping[str, Array]
    scalars: Mapping[str, Any] = field(default_factory=dict)

    def where(self, chosen: NDArray[np.bool_]) -> Entries:
        """Return the entries that are chosen."""
        rows = chosen[self.admitted]
        return Entries(
            self.ids[chosen],
            self.counts[chosen],
            self.last[chosen],
            self.admitted[chosen],
            {name: values[rows] for name, values in self.columns.items()},
            self.scalars,
        )

    def without_state(self) -> Entries:
        """Return the entries without the optimizer's state, as if they had not been looked up lately."""
        rows = {name: values for name, values in self.columns.items() if name == ROW}
        return Entries(self.ids, self.counts, np.zeros_like(self.last), self.admitted, rows)

    def of_owner(self, rank: int, ranks: int) -> Entries:
        """Return the entries that a rank owns."""
        return self.where(owners(self.ids, ranks) == rank)

    def sorted(self) -> Entries:
        """Return the entries in the order of their ids."""
        order = np.argsort(self.ids)
        places = np.cumsum(self.admitted) - 1
        rows = places[order][self.admitted[order]]
        return Entries(
            self.ids[order],
            self.counts[order],
            self.last[order],
            self.admitted[order],
            {name: values[rows] for name, values in self.columns.items()},
            self.scalars,
        )

    def arrays(self, prefix: str) -> dict[str, Array]:
        """Return the arrays by name, to travel in a frame."""
        named = {f"column.{name}": values for name, values in self.columns.items()}
        own = {"ids": self.ids, "counts": self.counts, "last": self.last, "admitted": self.admitted}
        return {f"{prefix}{name}": values for name, values in (own | named).items()}

    @classmethod
    def read(cls, arrays: Mapping[str, Array], prefix: str, scalars: Mapping[str, Any]) -> Entries:
        """Read what :meth:`arrays` returned."""
        column = f"{prefix}column."
        columns = {name.removeprefix(column): a for name, a in arrays.items() if name.startswith(column)}
        ids, counts, last, admitted = (arrays[f"{prefix}{name}"] for name in _OWN)
        return cls(ids, counts, last, admitted, columns, scalars)


def joined(parts: Sequence[Entries]) -> Entries:
    """Return the entries of several parts of a table, in the order of their ids."""
    names = dict.fromkeys(name for part in parts for name in part.columns)
    ids, counts, last, admitted = (np.concatenate([getattr(part, name) for part in parts]) for name in _OWN)
    columns = {
        name: np.concatenate([part.columns[name] for part in parts if name in part.columns]) for name in names
    }
    return Entries(ids, counts, last, admitted, columns, parts[0].scalars).sorted()
