"""The schema of files or a table of Spark for training: features, label, classes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from sparkdl.cli.arguments import command_error
from sparkdl.cli.catalog import CatalogTable
from sparkdl.exceptions import DataError

if TYPE_CHECKING:
    from sparkdl.cli.delimited import Csv
    from sparkdl.cli.files import Files

Task = Literal["classification", "regression"]
MAX_CLASSES = 50
"""Whole numbers with more different values than this are taken for a quantity."""

_MOST_CLASSES = 1000


@dataclass(frozen=True, slots=True)
class Table:
    """A table to learn from."""

    path: str  # as Spark will read it: files, or the name of a table
    label: str  # column to predict
    task: Task  # what kind of prediction
    classes: tuple[str, ...]  # values of the label as text, in order; empty for regression
    features: tuple[str, ...]  # columns of numbers, strings, booleans and dates
    left_out: tuple[tuple[str, str], ...]  # other columns, and why each is not a feature
    rows: int  # how many there are
    csv: Csv | None = None  # how CSV files are to be read; ``None`` for Parquet
    note: str = ""  # what may not be meant
    in_place: bool = False  # whether the rows stay in their files
    scale: tuple[float, float] | None = None  # mean and deviation of a number to predict from there
    named: bool = False  # whether ``path`` is a name that Spark knows


def read_table(
    path: str,
    label: str,
    features: Sequence[str] | None = None,
    task: Task | None = None,
    *,
    nulls: bool = False,
    in_place: bool = False,
) -> Table:
    """Look at a file, folder or address of Parquet or CSV.

    By default all other columns of such types are features, and the task is classification where the label is
    text, boolean or a whole number with few values. With ``nulls``, rows with nulls will be left out, so that
    nulls in the label are no error; with ``in_place``, rows stay in their files, where only numbers can be
    learned from: Parquet, and classes are numbers from 0. Raises ConfigError if there is no such file,
    DataError for a bad column or a label with nulls.
    """
    from sparkdl.cli.files import Files  # and pyarrow with it, which no other command needs

    files = Files(path)
    if in_place and files.csv is not None:
        raise command_error(f"--in-place reads Parquet, and {path!r} is CSV")
    found = table_of(files, label, features, task, nulls=nulls, in_place=in_place)
    return replace(found, csv=files.csv, in_place=in_place, scale=_scale(files, found) if in_place else None)


def table_of(
    source: Files | CatalogTable,
    label: str,
    features: Sequence[str] | None = None,
    task: Task | None = None,
    *,
    nulls: bool = False,
    in_place: bool = False,
) -> Table:
    """Look at rows, whoever reads them; arguments and errors are those of :func:`read_table`."""
    kinds = source.kinds
    for name in (label, *(features or ())):
        if name not in kinds:
            close = difflib.get_close_matches(name, kinds, 1, 0.5)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise DataError(
                f"column {name!r} is not in {source.name}{hint} It has {', '.join(kinds)}", code="data-column"
            )
    if features is not None and label in features:
        raise DataError(
            f"label {label!r} is among the features: a model would only copy it", code="data-column"
        )
    unfit = {name: kind.unfit for name, kind in kinds.items()}
    if in_place:
        why = "--in-place learns from numbers alone"
        unfit = {name: "" if kind.is_number else why for name, kind in kinds.items()}
    left_out: list[tuple[str, str]] = []
    if features is None:
        others = [name for name in kinds if name != label]
        left_out = [(name, f"{kinds[name].name}: {unfit[name]}") for name in others if unfit[name]]
        features = [name for name in others if not unfit[name]]
        if not features:
            found = ", ".join(f"{name} ({kinds[name].name})" for name in others)
            raise DataError(
                f"{source.name} has no column to learn from beside {label!r}: it has {found}",
                code="data-type",
            )
    for name in features:
        if unfit[name]:
            raise DataError(f"feature {name!r} is {kinds[name].name}: {unfit[name]}", code="data-type")
    rows = source.count()
    if rows == 0:
        raise DataError(f"{source.name} has no rows", code="data-empty")
    if not nulls:
        _check_nulls(source, [label, *(features if in_place else ())])
    note = _note(source, label) if task is None else ""
    task, classes = _task(source, label, task)
    return Table(source.address, label, task, classes, tuple(features), tuple(left_out), rows, note=note)


def _scale(files: Files, table: Table) -> tuple[float, float] | None:
    """Return mean and deviation of a number to predict from rows in their files; check classes there."""
    label, classes = table.label, table.classes
    if table.task == "classification":
        if list(classes) not in ([str(n) for n in range(len(classes))], ["false", "true"]):
            raise DataError(
                f"label {label!r}: --in-place takes classes that are numbers from 0 on; found "
                f"{', '.join(classes[:5])}. Write them so, or go without --in-place",
                code="data-value",
            )
        return None
    mean, deviation = files.scale(label)
    if mean is None or not isfinite(mean):
        raise DataError(
            f"label {label!r} of {files.name} has a mean of {mean}: expected finite numbers",
            code="data-value",
        )
    return mean, deviation or 1.0


def _check_nulls(source: Files | CatalogTable, names: Sequence[str]) -> None:
    bad = [f"{name} ({count})" for name, count in source.nulls(names).items() if count]
    if bad:
        raise DataError(
            f"{source.name}: nulls in {', '.join(bad)}; fill them first, or leave such rows out with "
            "--drop-nulls",
            code="data-null",
        )


def _task(source: Files | CatalogTable, label: str, task: Task | None) -> tuple[Task, tuple[str, ...]]:
    """Return what to do with a label of this type, and its classes."""
    kind = source.kinds[label]
    if kind.family != "text" and not kind.is_number:
        why = kind.unfit or "make a number or a string of it first"
        raise DataError(f"label {label!r} is {kind.name}: {why}", code="data-type")
    if task == "regression" and kind.family == "text":
        raise DataError(
            f"label {label!r} is {kind.name}, but --task regression predicts a number", code="data-type"
        )
    whole = kind.family in ("text", "boolean", "integer")
    if task == "regression" or (task is None and not whole):
        return "regression", ()
    values = source.distinct(label, _MOST_CLASSES)
    if task is None and kind.family == "integer" and len(values) > MAX_CLASSES:
        return "regression", ()
    if not 2 <= len(values) <= _MOST_CLASSES:
        found = len(values) if len(values) <= _MOST_CLASSES else f"more than {_MOST_CLASSES}"
        raise DataError(
            f"label {label!r} of {source.name} has {found} different values: classification wants 2 to "
            f"{_MOST_CLASSES} (a number may be predicted with --task regression)",
            code="data-value",
        )
    return "classification", tuple(_text(value) for value in sorted(values))


def _note(source: Files | CatalogTable, label: str) -> str:
    """Say that a label of fractions has few whole values, which may be classes; empty if it has not."""
    if source.kinds[label].family != "fraction":
        return ""
    values = source.distinct(label, MAX_CLASSES)
    if not 2 <= len(values) <= MAX_CLASSES or not all(float(value).is_integer() for value in values):
        return ""
    shown = ", ".join(map(str, sorted(values)[:5])) + (", ..." if len(values) > 5 else "")
    return f"{label} has the values {shown} alone; if they are classes, add --task classification"


def _text(value: Any) -> str:
    """Return a value as Spark casts it to a string."""
    return str(value).lower() if isinstance(value, bool) else str(value)
