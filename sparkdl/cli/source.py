"""The types of columns that a starter is written for, in files and in tables of Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["text", "boolean", "integer", "fraction", "decimal", "date", "other"]
UNFIT = {
    "time": "make seconds of it first",
    "bytes": "bytes need a Column(shape=, dtype=) that says how to read them",
    "nested": "lists and structs are no single number: select their parts, or feed them as a Column",
    "other": "it is no number, string, boolean or date",
}
"""Why other types are no features."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a column."""

    name: str  # as its reader writes it
    family: Family  # what can be done with it
    unfit: str = ""  # why it is no feature; empty if it is one

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers or booleans."""
        return self.family in ("boolean", "integer", "fraction", "decimal")
