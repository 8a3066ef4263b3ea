"""Messages about rows of embedding variables: who wants which, what they are, their gradients, what stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from sparkdl.compute.lookup import Asked, Found, RowGradient
from sparkdl.keyed.entries import Entries
from sparkdl.wire.frame import Array, Frame

Part = TypeVar("Part", Asked, Found, RowGradient)


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Ids that a rank's next batch asks an owner for."""

    kind: ClassVar[str] = "wanted"
    source: int
    tables: Mapping[str, Asked]

    def frame(self) -> Frame:
        """Return the message as a frame."""
        meta = {"kind": self.kind, "source": self.source, "tables": list(self.tables)}
        return Frame(meta, _flat(self.tables))

    @classmethod
    def read(cls, message: Frame, mine: bool) -> WantedRows:
        """Read what :meth:`frame` returned."""
        return cls(message.meta["source"], _by_table(message, Asked))


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
        meta = {"kind": self.kind, "tables": list(self.tables)}
        return Frame({**meta, "figures": self.figures, "seconds": self.seconds}, _flat(self.tables))

    @classmethod
    def read(cls, message: Frame, mine: bool) -> FoundRows:
        """Read what :meth:`frame` returned."""
        return cls(_by_table(message, Found), message.meta["figures"], message.meta["seconds"])


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
        meta = {"kind": self.kind, "source": self.source, "weight": self.weight, "tables": list(self.tables)}
        return Frame(meta, _flat(self.tables))

    @classmethod
    def read(cls, message: Frame, mine: bool) -> RowGradients:
        """Read what :meth:`frame` returned."""
        return cls(message.meta["source"], message.meta["weight"], _by_table(message, RowGradient))


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
        arrays = {f"{n}.{name}": a for n, one in enumerate(self.frames) for name, a in one.arrays.items()}
        return Frame({"kind": self.kind, "parts": [dict(one.meta) for one in self.frames]}, arrays)

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Together:
        """Read what :meth:`frame` returned."""
        parts = message.meta["parts"]
        return cls(list(map(Frame, parts, _numbered(message.arrays, len(parts)))), mine)


def _flat(tables: Mapping[str, Part]) -> dict[str, Array]:
    """Name the arrays of each table's part by the table's number."""
    return {
        f"{n}.{name}": getattr(part, name)
        for n, part in enumerate(tables.values())
        for name in type(part).__slots__
    }


def _by_table(message: Frame, part: type[Part]) -> dict[str, Part]:
    """Read what :func:`_flat` has named."""
    names = message.meta["tables"]
    found = _numbered(message.arrays, len(names))
    return {name: part(**arrays) for name, arrays in zip(names, found, strict=True)}


def _numbered(arrays: Mapping[str, Array], count: int) -> list[dict[str, Array]]:
    """Return arrays by the numbers before their names."""
    found: list[dict[str, Array]] = [{} for _ in range(count)]
    for name, array in arrays.items():
        number, _, own = name.partition(".")
        found[int(number)][own] = array
    return found
