"""CSV files for training: their separator, and the type that all values of a column have."""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions

from sparkdl.exceptions import DataError

_ENDING = re.compile(r"\.(csv|tsv)(\.(gz|bz2))?$", re.IGNORECASE)
_SEPARATORS = ",;\t|"
_NUMBER = r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?"
_DATE = r"\d{4}-\d\d-\d\d"
_KINDS: dict[str, tuple[str, pa.DataType]] = {
    "boolean": (r"^\s*(true|false|True|False|TRUE|FALSE)\s*$", pa.bool_()),
    "long": (r"^\s*-?(0|[1-9]\d{0,17})\s*$", pa.int64()),
    "double": (rf"^\s*{_NUMBER}\s*$", pa.float64()),
    "date": (rf"^{_DATE}$", pa.date32()),
    "timestamp": (rf"^{_DATE}[ T]\d\d:\d\d:\d\d$", pa.timestamp("s")),
}
"""By Spark's name of a type how its values are written, and pyarrow's type. A column of others is text, and
so is one with codes such as 01067."""


@dataclass(frozen=True, slots=True)
class Csv:
    """How CSV files are to be read."""

    separator: str  # between values
    columns: dict[str, str]  # Spark's type of each column, in the files' order


def is_csv(path: str) -> bool:
    """Return whether a path names a CSV file, or a local folder whose first file is one."""
    folder = Path(path)
    if "://" not in path and folder.is_dir():
        files = sorted(file.name for file in folder.iterdir() if file.name[0] not in "._")
        return bool(files) and is_csv(posixpath.join(path, files[0]))
    return _ENDING.search(posixpath.basename(path)) is not None


def open_csv(path: str) -> tuple[ds.Dataset, Csv]:
    """Open CSV files, and look through all of their values.

    Raises DataError if the first line does not name the columns, OSError if there is no such file,
    pa.ArrowInvalid if a line cannot be read.
    """
    files = ds.dataset(path, format="csv", schema=pa.schema([]))
    with files.filesystem.open_input_stream(files.files[0]) as file:
        first = _first_line(file)
    separator = max(_SEPARATORS, key=first.count)
    names = [name.strip() for name in next(csv.reader([first], delimiter=separator), [])]
    _check_names(path, names)
    texts = _opened(path, separator, dict.fromkeys(names, pa.string()))
    kinds = _kinds_of(texts, names)
    types = {name: _KINDS[kind][1] if kind in _KINDS else pa.string() for name, kind in kinds.items()}
    return _opened(path, separator, types), Csv(separator, kinds)


def _first_line(file: pa.NativeFile) -> str:
    """Return the line with the names, without the mark that some programs begin a file with."""
    found = b""
    while b"\n" not in found and (more := file.read(1 << 16)):
        found += more
    return found.decode("utf-8-sig", "replace").partition("\n")[0].rstrip("\r")


def _check_names(path: str, names: Sequence[str]) -> None:
    for name in names:
        problem = "an empty name" if not name else f"{name!r} twice" if names.count(name) > 1 else ""
        if re.match(_KINDS["double"][0], name):
            problem = f"{name!r}, which is a value"
        if problem:
            raise DataError(
                f"{path}: the first line has {problem}; expected the names of all columns, each once",
                code="data-column",
            )


def _opened(path: str, separator: str, types: dict[str, pa.DataType]) -> ds.Dataset:
    layout = ds.CsvFileFormat(
        parse_options=ParseOptions(delimiter=separator),
        read_options=ReadOptions(column_names=list(types), skip_rows=1),
        convert_options=ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True),
    )
    return ds.dataset(path, format=layout, schema=pa.schema(list(types.items())))


def _kinds_of(texts: ds.Dataset, names: Sequence[str]) -> dict[str, str]:
    """Return for each column the first kind that all of its values are of; text where there is none."""
    left = {name: list(_KINDS) for name in names}
    filled = set()
    for batch in texts.to_batches():
        for name in names:
            values = batch.column(name).drop_null()
            if len(values):
                filled.add(name)
                left[name] = [kind for kind in left[name] if _are(values, kind)]
    return {name: left[name][0] if name in filled and left[name] else "string" for name in names}


def _are(values: pa.Array, kind: str) -> bool:
    """Return whether all values are of a kind."""
    pattern, type_ = _KINDS[kind]
    if not pc.all(pc.match_substring_regex(values, pattern)).as_py():
        return False
    try:
        pc.utf8_trim_whitespace(values).cast(type_)  # there is no 31 February
    except pa.ArrowInvalid:
        return False
    return True
