"""Messages about rows of embedding variables: who wants which, what they are, their gradients, what stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sparkdl.compute.lookup import Asked, Found, RowGradient
from sparkdl.keyed.entries import Entries
from sparkdl.wire.frame import Array, Frame


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Ids that a rank's next batch asks an owner for."""

    kind: ClassVar[str] = "wanted"
    source: int
    tables: Mapping[str, Asked]

    def frame(self) -> Frame:
        """Return the message as a frame."""
        parts = {name: {"ids": asked.ids, "counts": asked.counts} for name, asked in self.tables.items()}
        return Frame({"kind": self.kind, "source": self.source, "tables": list(parts)}, _flat(parts))

    @classmethod
    def read(cls, message: Frame, mine: bool) -> WantedRows:
        """Read what :meth:`frame` returned."""
        return cls(message.meta["source"], {name: Asked(**arrays) for name, arrays in _by_table(message)})


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows that a rank has asked an owner for."""

    kind: ClassVar[str] = "found"
    tables: Mapping[str, Found]  # by table
    # by table, what its owner reports: figures that add up over the owners
    figures: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)  # that its owner took, by phase

    def frame(self) -> Frame:
        """Return the message as a frame."""
        parts = {
            name: {"ids": found.ids, "admitted": found.admitted, "rows": found.rows}
            for name, found in self.tables.items()
        }
        meta = {"kind": self.kind, "tables": list(parts), "figures": self.figures, "seconds": self.seconds}
        return Frame(meta, _flat(parts))

    @classmethod
    def read(cls, message: Frame, mine: bool) -> FoundRows:
        """Read what :meth:`frame` returned."""
        tables = {name: Found(**arrays) for name, arrays in _by_table(message)}
        return cls(tables, message.meta["figures"], message.meta["seconds"])


@dataclass(frozen=True, slots=True)
class RowGradients:
    """A rank's gradients of the rows of an owner."""

    kind: ClassVar[str] = "row-gradients"
    source: int  # the rank
    weight: float  # number of its samples, or sum of their weights
    # of all tables that have a gradient, also where no row is of this owner
    tables: Mapping[str, RowGradient]

    def frame(self) -> Frame:
        """Return the message as a frame."""
        parts = {name: {"ids": own.ids, "values": own.values} for name, own in self.tables.items()}
        meta = {"kind": self.kind, "source": self.source, "weight": self.weight, "tables": list(parts)}
        return Frame(meta, _flat(parts))

    @classmethod
    def read(cls, message: Frame, mine: bool) -> RowGradients:
        """Read what :meth:`frame` returned."""
        tables = {name: RowGradient(**arrays) for name, arrays in _by_table(message)}
        return cls(message.meta["source"], message.meta["weight"], tables)


@dataclass(frozen=True, slots=True)
class OwnedRows:
    """Entries of an owner, with the optimizer's state: all of them, or those that have changed."""

    kind: ClassVar[str] = "rows"
    tables: Mapping[str, Entries]
    figures: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def frame(self) -> Frame:
        """Return the message as a frame."""
        names = list(self.tables)
        arrays: dict[str, Array] = {}
        for number, entries in enumerate(self.tables.values()):
            arrays |= entries.arrays(f"{number}.")
        values = [entries.values for entries in self.tables.values()]
        meta = {"kind": self.kind, "tables": names, "values": values, "figures": self.figures}
        return Frame(meta, arrays)

    @classmethod
    def read(cls, message: Frame, mine: bool) -> OwnedRows:
        """Read what :meth:`frame` returned."""
        meta, arrays = message.meta, message.arrays
        # Checkpoints of earlier releases have scalars alone.
        values = meta["values"] if "values" in meta else [{"scalars": own} for own in meta["scalars"]]
        named = enumerate(zip(meta["tables"], values, strict=True))
        tables = {name: Entries.read(arrays, f"{n}.", own) for n, (name, own) in named}
        return cls(tables, meta["figures"])


@dataclass(frozen=True, slots=True)
class Together:
    """Several messages for one rank, which travel as one: a rank sends another one two in a phase at most."""

    kind: ClassVar[str] = "together"
    frames: Sequence[Frame]  # the messages
    mine: bool = False  # whether the receiver may overwrite their arrays

    def frame(self) -> Frame:
        """Return the message as a frame."""
        arrays = _flat({str(n): dict(one.arrays) for n, one in enumerate(self.frames)})
        return Frame({"kind": self.kind, "parts": [dict(one.meta) for one in self.frames]}, arrays)

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Together:
        """Read what :meth:`frame` returned."""
        parts: list[dict[str, Array]] = [{} for _ in message.meta["parts"]]
        for name, array in message.arrays.items():
            number, _, own = name.partition(".")
            parts[int(number)][own] = array
        return cls([Frame(meta, own) for meta, own in zip(message.meta["parts"], parts, strict=True)], mine)


def _flat(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Array]:
    """Name the arrays of parts by the part's number."""
    return {f"{n}.{name}": a for n, arrays in enumerate(parts.values()) for name, a in arrays.items()}


def _by_table(message: Frame) -> list[tuple[str, dict[str, Array]]]:
    """Return the arrays of each table."""
    found: list[tuple[str, dict[str, Array]]] = [(name, {}) for name in message.meta["tables"]]
    for name, array in message.arrays.items():
        number, _, own = name.partition(".")
        found[int(number)][1][own] = array
    return found
