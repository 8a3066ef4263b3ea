"""Parquet and CSV files that a starter is written for, read by pyarrow without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from sparkdl.cli.arguments import command_error
from sparkdl.cli.delimited import Csv, is_csv, open_csv
from sparkdl.cli.source import UNFIT, Family, Kind
from sparkdl.data.scan.files import why_not_all
from sparkdl.data.scan.storage import is_url

_UNFIT = (
    (pa.types.is_temporal, UNFIT["time"]),
    (pa.types.is_binary, UNFIT["bytes"]),
    (pa.types.is_nested, UNFIT["nested"]),
)


class Files:
    """A file or folder of Parquet or CSV, or an address that pyarrow opens; ConfigError if there is none.

    ``address`` is as Spark will read it, ``csv`` how CSV files are to be read, ``None`` for Parquet.
    """

    def __init__(self, path: str) -> None:
        self._data, self.csv = _open(path)
        self.name = path
        self.address = path if "://" in path else str(Path(path).resolve())
        self.kinds = {field.name: _kind(field.type) for field in self._data.schema}

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._data.count_rows())

    def nulls(self, columns: Sequence[str]) -> dict[str, int]:
        """Return the number of nulls in each of these columns."""
        return {name: int(self._data.count_rows(filter=ds.field(name).is_null())) for name in columns}

    def distinct(self, column: str, most: int) -> list[Any]:
        """Return the different values of a column without null; ``most`` is for tables of Spark."""
        values: list[Any] = pc.unique(self._column(column)).drop_null().to_pylist()
        return values

    def scale(self, column: str) -> tuple[float | None, float | None]:
        """Return mean and deviation of a column; ``None`` if all of it is null."""
        values = pc.cast(self._column(column), pa.float64())
        return pc.mean(values).as_py(), pc.stddev(values).as_py()

    def _column(self, name: str) -> pa.ChunkedArray:
        return self._data.to_table(columns=[name]).column(name)


def _open(path: str) -> tuple[ds.Dataset, Csv | None]:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise command_error(
            f"--data {path!r}: the name is not UTF-8, which readers need: rename it"
        ) from error
    try:
        if is_csv(path):
            return open_csv(path)
        system, folder = fs.FileSystem.from_uri(path) if is_url(path) else (fs.LocalFileSystem(), path)
        if why := why_not_all(system, folder, f"--data {path!r}", set()):
            raise command_error(why)
        return ds.dataset(path, format="parquet"), None
    except FileNotFoundError as error:
        raise command_error(f"--data {path!r} is not there") from error
    except (OSError, pa.ArrowException) as error:
        raise command_error(
            f"--data {path!r} is neither Parquet nor CSV (a file that ends in .csv or .tsv, also .gz), nor a "
            f"folder of such files: {str(error).splitlines()[0]}"
        ) from error


def _kind(type_: pa.DataType) -> Kind:
    family = _family(type_)
    unfit = next((why for check, why in _UNFIT if check(type_)), UNFIT["other"]) if family == "other" else ""
    return Kind(str(type_), family, unfit)


def _family(type_: pa.DataType) -> Family:
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    if pa.types.is_string(value) or pa.types.is_large_string(value):
        return "text"
    if pa.types.is_boolean(type_):
        return "boolean"
    if pa.types.is_integer(type_):
        return "integer"
    if pa.types.is_floating(type_):
        return "fraction"
    if pa.types.is_decimal(type_):
        return "decimal"
    return "date" if pa.types.is_date(type_) or pa.types.is_timestamp(type_) else "other"
