"""The schema of Parquet or CSV files for training: features, label, classes; read without Spark."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from sparkdl.cli.delimited import Csv, is_csv, open_csv
from sparkdl.data.scan.files import is_delta
from sparkdl.data.scan.storage import is_url
from sparkdl.exceptions import ConfigError, DataError

Task = Literal["classification", "regression"]
MAX_CLASSES = 50
"""Whole numbers with more different values than this are taken for a quantity."""

_REMEDIES = (
    (pa.types.is_temporal, "make seconds of it first"),
    (pa.types.is_binary, "bytes need a Column(shape=, dtype=) that says how to read them"),
    (
        pa.types.is_nested,
        "lists and structs are no single number: select their parts, or feed them as a Column",
    ),
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table to learn from.

    Attributes:
        path: as Spark will read it.
        label: column to predict.
        task: what kind of prediction.
        classes: values of the label as text, in order; empty for regression.
        features: columns of numbers, strings, booleans and dates.
        left_out: other columns, and why each is not a feature.
        rows: how many there are.
        csv: how CSV files are to be read; ``None`` for Parquet.
        note: what may not be meant.
        in_place: whether the rows stay in their files.
        scale: mean and deviation of a number to predict from there.
    """

    path: str
    label: str
    task: Task
    classes: tuple[str, ...]
    features: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    rows: int
    csv: Csv | None = None
    note: str = ""
    in_place: bool = False
    scale: tuple[float, float] | None = None


def read_table(
    path: str,
    label: str,
    features: Sequence[str] | None = None,
    task: Task | None = None,
    *,
    nulls: bool = False,
    in_place: bool = False,
) -> Table:
    """Look at a file or folder of Parquet or CSV.

    Args:
        path: file, folder, or an address that pyarrow opens.
        label: column to predict.
        features: columns to learn from; by default all others of such types.
        task: by default classification where the label is text, boolean or a whole number with few values.
        nulls: whether rows with nulls will be left out, so that nulls in the label are no error.
        in_place: whether rows stay in their files, where only numbers can be learned from: Parquet, and
            classes are numbers from 0.

    Raises:
        ConfigError: if the path holds no such file.
        DataError: naming the column that is missing or cannot be used, or a label with nulls.
    """
    data, csv = _open(path)
    if in_place and csv is not None:
        raise ConfigError(f"--in-place reads Parquet, and {path!r} is CSV", code="config-command")
    unfit = _unfit_in_place if in_place else _unfit
    types = {field.name: field.type for field in data.schema}
    for name in (label, *(features or ())):
        if name not in types:
            close = difflib.get_close_matches(name, types, 1, 0.5)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise DataError(
                f"column {name!r} is not in {path}{hint} It has {', '.join(types)}", code="data-column"
            )
    if features is not None and label in features:
        raise DataError(
            f"label {label!r} is among the features: a model would only copy it", code="data-column"
        )
    left_out = []
    if features is None:
        others = [name for name in types if name != label]
        left_out = [(name, f"{types[name]}: {why}") for name in others if (why := unfit(types[name]))]
        features = [name for name in others if not unfit(types[name])]
        if not features:
            found = ", ".join(f"{name} ({types[name]})" for name in others)
            raise DataError(
                f"{path} has no column to learn from beside {label!r}: it has {found}", code="data-type"
            )
    for name in features:
        if why := unfit(types[name]):
            raise DataError(f"feature {name!r} is {types[name]}: {why}", code="data-type")
    rows = data.count_rows()
    if rows == 0:
        raise DataError(f"{path} has no rows", code="data-empty")
    if not nulls:
        _check_nulls(data, path, [label, *(features if in_place else ())])
    note = _note(data, label, types[label]) if task is None else ""
    task, classes = _task(data, path, label, types[label], task)
    columns = tuple(features), tuple(left_out)
    scale = None
    if in_place and task == "classification":
        if list(classes) not in ([str(n) for n in range(len(classes))], ["false", "true"]):
            raise DataError(
                f"label {label!r}: --in-place takes classes that are numbers from 0 on; found "
                f"{', '.join(classes[:5])}. Write them so, or go without --in-place",
                code="data-value",
            )
    elif in_place:
        values = pc.cast(data.to_table(columns=[label]).column(label), pa.float64())
        mean = pc.mean(values).as_py()
        if mean is None or not isfinite(mean):
            raise DataError(
                f"label {label!r} of {path} has a mean of {mean}: expected finite numbers", code="data-value"
            )
        scale = mean, pc.stddev(values).as_py() or 1.0
    return Table(_address(path), label, task, classes, *columns, rows, csv, note, in_place, scale)


def _open(path: str) -> tuple[ds.Dataset, Csv | None]:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"--data {path!r}: the name is not UTF-8, which readers need: rename it",
            code="config-command",
        ) from error
    try:
        if is_csv(path):
            return open_csv(path)
        system, folder = fs.FileSystem.from_uri(path) if is_url(path) else (fs.LocalFileSystem(), path)
        if is_delta(system, folder):
            raise ConfigError(
                f"--data {path!r} is a Delta table, whose folder has files of other versions, too: train on "
                "one version by Dataset.from_delta, or read it by Spark",
                code="config-command",
            )
        return ds.dataset(path, format="parquet"), None
    except FileNotFoundError as error:
        raise ConfigError(f"--data {path!r} is not there", code="config-command") from error
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(
            f"--data {path!r} is neither Parquet nor CSV (a file that ends in .csv or .tsv, also .gz), nor a "
            f"folder of such files: {str(error).splitlines()[0]}",
            code="config-command",
        ) from error


def _address(path: str) -> str:
    return path if "://" in path else str(Path(path).resolve())


def _is_number(kind: pa.DataType) -> bool:
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(check(kind) for check in checks)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _unfit(kind: pa.DataType) -> str:
    """Return why a type is no feature, empty if it is one."""
    if _is_number(kind) or _is_text(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return ""
    remedy = "it is no number, string, boolean or date"
    return next((remedy for check, remedy in _REMEDIES if check(kind)), remedy)


def _unfit_in_place(kind: pa.DataType) -> str:
    return "" if _is_number(kind) else "--in-place learns from numbers alone"


def _check_nulls(data: ds.Dataset, path: str, names: Sequence[str]) -> None:
    found = {name: _nulls(data, name) for name in names}
    bad = [f"{name} ({count})" for name, count in found.items() if count]
    if bad:
        raise DataError(
            f"{path}: nulls in {', '.join(bad)}; fill them first, or leave such rows out with --drop-nulls",
            code="data-null",
        )


def _nulls(data: ds.Dataset, name: str) -> int:
    """Return the number of nulls in a column: from the files' statistics, or by a look at the column."""
    count = 0
    for fragment in data.get_fragments():
        if not isinstance(fragment, ds.ParquetFileFragment):
            return int(data.count_rows(filter=ds.field(name).is_null()))
        metadata = fragment.metadata
        index = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}.get(name)
        for group in range(metadata.num_row_groups):
            statistics = None if index is None else metadata.row_group(group).column(index).statistics
            if statistics is None or not statistics.has_null_count:
                return int(data.count_rows(filter=ds.field(name).is_null()))
            count += statistics.null_count
    return count


def _task(
    data: ds.Dataset, path: str, label: str, kind: pa.DataType, task: Task | None
) -> tuple[Task, tuple[str, ...]]:
    """Return what to do with a label of this type, and its classes."""
    textual = _is_text(kind)
    if not textual and not _is_number(kind):
        why = _unfit(kind) or "make a number or a string of it first"
        raise DataError(f"label {label!r} is {kind}: {why}", code="data-type")
    if task == "regression" and textual:
        raise DataError(
            f"label {label!r} is {kind}, but --task regression predicts a number", code="data-type"
        )
    whole = textual or pa.types.is_boolean(kind) or pa.types.is_integer(kind)
    if task == "regression" or (task is None and not whole):
        return "regression", ()
    values: Any = pc.unique(data.to_table(columns=[label]).column(label)).drop_null()
    if task is None and pa.types.is_integer(kind) and len(values) > MAX_CLASSES:
        return "regression", ()
    if not 2 <= len(values) <= 1000:
        raise DataError(
            f"label {label!r} of {path} has {len(values)} different values: classification wants 2 to 1000 "
            "(a number may be predicted with --task regression)",
            code="data-value",
        )
    return "classification", tuple(_text(value) for value in sorted(values.to_pylist()))


def _note(data: ds.Dataset, label: str, kind: pa.DataType) -> str:
    """Say that a label of fractions has few whole values, which may be classes; empty if it has not."""
    if not pa.types.is_floating(kind):
        return ""
    values: list[float] = pc.unique(data.to_table(columns=[label]).column(label)).drop_null().to_pylist()
    if not 2 <= len(values) <= MAX_CLASSES or not all(float(value).is_integer() for value in values):
        return ""
    shown = ", ".join(map(str, sorted(values)[:5])) + (", ..." if len(values) > 5 else "")
    return f"{label} has the values {shown} alone; if they are classes, add --task classification"


def _text(value: Any) -> str:
    """Return a value as Spark casts it to a string."""
    return str(value).lower() if isinstance(value, bool) else str(value)
