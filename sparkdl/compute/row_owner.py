"""The rows of embedding variables that a rank owns, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkdl.keyed.entries import Entries
from sparkdl.keyed.memory import RowMemory
from sparkdl.keyed.table import KeyedTable
from sparkdl.nn.embedding import EmbeddingVariable


@dataclass(slots=True)
class RowOwner:
    """A rank's part of all tables."""

    tables: dict[str, KeyedTable]  # by name of the embedding variable
    at: str  # names what has been done to them; empty while something is being done
    # by table, what the last change has to report
    figures: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # that the last change took, by phase; empty if another process has made it
    seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        variables: Mapping[str, EmbeddingVariable],
        entries: Mapping[str, Entries],
        at: str,
        memory: RowMemory | None = None,
    ) -> RowOwner:
        """Return an owner of given entries; ``memory`` bounds what they take."""
        tables = {name: KeyedTable(variable.store.rule, memory) for name, variable in variables.items()}
        for name, table in tables.items():
            table.put(entries[name])
        return cls(tables, at)

    def apply(
        self,
        entries: Mapping[str, Entries],
        figures: Mapping[str, Mapping[str, int]],
        at: str,
    ) -> None:
        """Make a change that another process has made."""
        self.at = ""
        for name, changed in entries.items():
            self.tables[name].put(changed)
        self.figures, self.seconds, self.at = figures, {}, at
