"""The rows that a starter is written for: the same questions to files and to tables of Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

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


class ColumnSource(Protocol):
    """Rows in columns of one type each."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def address(self) -> str:
        """Name by which the script finds them."""

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """The type of each column, in their order."""

    def count(self) -> int:
        """Return the number of rows."""

    def nulls(self, columns: Sequence[str]) -> dict[str, int]:
        """Return the number of nulls in each of these columns."""

    def distinct(self, column: str, most: int) -> list[Any]:
        """Return the different values of a column without null; if more than ``most``, at least one more."""
