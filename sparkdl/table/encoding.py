"""The encoding of a table's columns: standardised numbers and numbered categories.

A :class:`TableEncoding` is fitted by :mod:`sparkdl.ml.stages.tabular`. It is plain data: it is saved as JSON,
and encodes Arrow columns in the tasks of a Spark job and, without Spark, for a model that is served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl import html
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.table.calendar import PARTS, Part, part_of
from sparkdl.table.values import Kind, doubles, texts
from sparkdl.table.zones import UTC
from sparkdl.wire.frame import Array

OTHER = 0
"""Number of the category for rare and unseen values."""

MISSING = 1
"""Number of the category for null."""

FIRST = 2
"""Number of the first value; the others follow."""

CATEGORIES, NUMBERS = "categories", "numbers"

_FORMAT = 2  # 1 had no zone


@dataclass(frozen=True, slots=True)
class Number:
    """A column that becomes a number of mean 0 and deviation 1; null becomes 0."""

    column: str  # its name
    kind: Kind  # of its values
    mean: float  # of the values that were there in the fit
    deviation: float  # of these
    # whether a second number follows, 1 for null and 0 for others: the fit has seen null
    missing: bool = False
    # increasing, standardised values at which a model may bend; none for two values
    knots: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Category:
    """A column whose values are numbered: 0 for rare and unseen ones, 1 for null, then ``values``."""

    column: str  # its name
    kind: Kind  # of its values
    values: tuple[str, ...]  # by number, most frequent first
    # of a date or timestamp, the part that is meant; its values are in the order of the calendar
    part: Part | None = None

    @property
    def cardinality(self) -> int:
        """Number of different numbers."""
        return FIRST + len(self.values)


@dataclass(frozen=True)
class TableEncoding:
    """Turns columns of a table into two arrays: categories (int32) and numbers (float32)."""

    numbers: tuple[Number, ...]  # columns that become numbers
    categories: tuple[Category, ...]  # columns, and parts of dates, that become categories
    left_out: Mapping[str, str]  # reason by column, for columns that tell rows in no way apart
    rows: int  # how many it was fitted on
    # of the clock that times without a zone follow, and in which an instant has its date: the session's in
    # the fit
    zone: str = UTC
    # timestamps that had no zone in the fit: what their clocks show is taken as it is
    clocks: tuple[str, ...] = ()

    def zone_of(self, column: str) -> str:
        """Return the zone that a column's times without one are taken to be in."""
        return UTC if column in self.clocks else self.zone

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(self.kinds)

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        """Kind of values by column."""
        of_numbers = {number.column: number.kind for number in self.numbers}
        return of_numbers | {category.column: category.kind for category in self.categories}

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """How many numbers each category has, as the models of :mod:`sparkdl.nn` take it."""
        return tuple(category.cardinality for category in self.categories)

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return len(self.numbers) + sum(number.missing for number in self.numbers)

    @property
    def knots(self) -> tuple[tuple[float, ...], ...]:
        """The knots of each number, none for indicators of null."""
        found: list[tuple[float, ...]] = []
        for number in self.numbers:
            found += [number.knots, ()] if number.missing else [number.knots]
        return tuple(found)

    @property
    def names(self) -> tuple[str, ...]:
        """What each number is called."""
        found: list[str] = []
        for number in self.numbers:
            found += [number.column, f"{number.column} is null"] if number.missing else [number.column]
        return tuple(found)

    @property
    def outputs(self) -> dict[str, tuple[int, str]]:
        """Width and dtype by name of the arrays that there are, in order."""
        found = {CATEGORIES: (len(self.categories), "int32"), NUMBERS: (self.width, "float32")}
        return {name: output for name, output in found.items() if output[0]}

    def __repr__(self) -> str:
        columns = {"numbers": self.numbers, "categories": self.categories, "left out": self.left_out}
        counts = ", ".join(f"{name}: {len(found)}" for name, found in columns.items())
        return f"TableEncoding({counts}; fitted on {self.rows:,} rows)"

    def _repr_html_(self) -> str:
        facts = {"rows": f"{self.rows:,}", "numbers": self.width, "categories": len(self.categories)}
        lines = [line.split(": ", 1) for line in self.describe().split("\n") if line]
        return html.block("TableEncoding", facts, html.table(["column", "becomes"], lines))

    def describe(self) -> str:
        """Return what becomes of each column, one a line."""
        lines = []
        for number in self.numbers:
            null = ", and whether it is null" if number.missing else ""
            lines.append(
                f"{number.column}: number, mean {number.mean:.6g}, deviation {number.deviation:.6g}{null}"
            )
        for category in self.categories:
            of = f"{category.part} of a {category.kind}, " if category.part else ""
            lines.append(f"{category.column}: {of}category of {len(category.values)} values")
        lines += [f"{column}: left out, {why}" for column, why in self.left_out.items()]
        return "\n".join(lines)

    def encode(self, table: Mapping[str, pa.Array]) -> dict[str, Array]:
        """Encode columns, into :attr:`outputs`, shape (rows, width); those that are not read may be missing.

        Raises DataError naming the column that is missing, or holds values of another kind.
        """
        plain = {name: self.plain(name, table) for name in self.columns}
        rows = len(next(iter(plain.values())))
        found: dict[str, Array] = {}
        if self.categories:
            found[CATEGORIES] = np.empty((rows, len(self.categories)), np.int32)
            for at, category in enumerate(self.categories):
                found[CATEGORIES][:, at] = self._numbered(at, category, plain[category.column])
        if self.numbers:
            found[NUMBERS] = np.empty((rows, self.width), np.float32)
            at = 0
            for number in self.numbers:
                values = plain[number.column]
                null = np.isnan(values)
                with np.errstate(over="ignore"):
                    scaled = ((values - number.mean) / number.deviation).astype(np.float32)
                found[NUMBERS][:, at] = np.nan_to_num(np.where(null, np.float32(0), scaled))
                at += 1
                if number.missing:
                    found[NUMBERS][:, at] = null
                    at += 1
        return found

    def plain(self, name: str, table: Mapping[str, pa.Array]) -> Any:
        """Return a column as strings, or as doubles; errors as of :meth:`encode`."""
        if name not in table:
            raise DataError(
                f"column {name!r} is missing; the table's encoding reads {', '.join(self.columns)}",
                code="data-column",
            )
        column, kind = table[name], self.kinds[name]
        return texts(name, column) if kind == "string" else doubles(name, column, kind, self.zone_of(name))

    def _numbered(self, at: int, category: Category, values: Any) -> Array:
        """Return the number of each value."""
        if category.part is None:
            known = pc.index_in(values, value_set=self._value_sets[at])
            numbers: Array = known.fill_null(OTHER - FIRST).to_numpy(zero_copy_only=False) + FIRST
            null = values.is_null().to_numpy(zero_copy_only=False)
        else:
            null = np.isnan(values)
            numbers = FIRST + part_of(np.where(null, 0.0, values), category.part, category.kind == "date")
        return np.where(null, MISSING, numbers)

    @cached_property
    def _value_sets(self) -> tuple[pa.Array, ...]:
        return tuple(pa.array(category.values, pa.string()) for category in self.categories)

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` reads."""
        zoned: dict[str, Any] = {} if self.zone == UTC else {"zone": self.zone}
        if zoned or self.clocks:
            zoned["clocks"] = list(self.clocks)
        return {
            "format": 1 if self.zone == UTC else _FORMAT,  # earlier releases take all times for UTC
            "numbers": [asdict(number) for number in self.numbers],
            "categories": [asdict(category) for category in self.categories],
            "leftOut": dict(self.left_out),
            "rows": self.rows,
            **zoned,
        }

    @classmethod
    def from_json(cls, value: Any) -> TableEncoding:
        """Read what :meth:`to_json` gave, also after a way through JSON."""
        try:
            if value["format"] > _FORMAT:
                raise ConfigError(
                    f"the table's encoding has format {value['format']!r:.50}, this sparkdl reads up to "
                    f"{_FORMAT}: install a newer one",
                    code="config-saved",
                )
            numbers = tuple(_number(item) for item in value["numbers"])
            categories = tuple(_category(item) for item in value["categories"])
            left_out = {str(name): str(why) for name, why in value["leftOut"].items()}
            if not numbers and not categories:
                raise ValueError("no columns")
            clocks = tuple(str(name) for name in value.get("clocks", ()))
            zone = str(value.get("zone", UTC))
            return cls(numbers, categories, left_out, int(value["rows"]), zone, clocks)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"the table's encoding cannot be read: {error!r:.200}", code="config-saved"
            ) from error


def _number(item: Mapping[str, Any]) -> Number:
    mean, deviation = float(item["mean"]), float(item["deviation"])
    knots = tuple(float(knot) for knot in item["knots"])
    if not np.isfinite([mean, deviation, *knots]).all() or deviation <= 0 or item["kind"] == "string":
        raise ValueError(f"{item!r:.200} describes no number")
    return Number(str(item["column"]), _kind(item), mean, deviation, bool(item["missing"]), knots)


def _category(item: Mapping[str, Any]) -> Category:
    values, part = item["values"], item["part"]
    if not isinstance(values, list | tuple) or not all(isinstance(text, str) for text in values):
        raise ValueError(f"{item!r:.200} has no list of values")
    kind = _kind(item)
    if part not in (None, *PARTS) or (part is None) != (kind == "string"):
        raise ValueError(f"{item!r:.200} describes no category")
    return Category(str(item["column"]), kind, tuple(values), part)


def _kind(item: Mapping[str, Any]) -> Kind:
    if item["kind"] not in get_args(Kind):
        raise ValueError(f"{item['kind']!r:.50} is no kind of values")
    kind: Kind = item["kind"]
    return kind


def table_of(encoding: TableEncoding | None, labels: Sequence[str]) -> dict[str, Any] | None:
    """Return what a saved model has of its encoding and labels, as JSON; ``None`` if it has neither."""
    if encoding is None and not labels:
        return None
    return {"encoding": None if encoding is None else encoding.to_json(), "labels": list(labels)}


def read_table(table: Mapping[str, Any] | None) -> tuple[TableEncoding | None, tuple[str, ...]]:
    """Read what :func:`table_of` gave."""
    if table is None:
        return None, ()
    labels, encoding = table.get("labels"), table.get("encoding")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ConfigError(f"labels={labels!r:.100}: expected a list of strings", code="config-saved")
    return (None if encoding is None else TableEncoding.from_json(encoding)), tuple(labels)
