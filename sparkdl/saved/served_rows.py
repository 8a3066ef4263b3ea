"""Rows of tables in memory-mapped files, for look-ups: a table may be larger than memory.

::

    path/tables.json                           tables, their files with checksums, the row of ids without one
         table-00000-part-00000.safetensors    ``ids``, ascending, and ``rows``

The files of a table follow each other in the order of ids. ``tables.json`` is written last.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from sparkdl.exceptions import ConfigError
from sparkdl.keyed.mix import Ids
from sparkdl.saved.integrity import of_json
from sparkdl.wire.frame import Array

MARK = "tables.json"
ROWS_PER_FILE = 1 << 20
_FORMAT = 1
_NAME = re.compile(r"table-[0-9]{5}-part-[0-9]{5,}\.safetensors", re.ASCII)
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_FLOATS = {"float32": np.float32, "float64": np.float64}
_DTYPES = {"I64": np.int64, "F32": np.float32, "F64": np.float64}


@dataclass(frozen=True, slots=True)
class ExportedRows:
    """The rows of a table, to be written."""

    ids: Ids  # ascending
    look_up: Callable[[Ids], Array]  # returns the rows of some of them
    other: Array  # row of ids that are not there


def write_rows(
    folder: str | os.PathLike[str],
    tables: Mapping[str, ExportedRows],
    per_file: int = ROWS_PER_FILE,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write the rows of tables, so many at a time in memory; ConfigError if the folder is not empty."""
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    if any(where.iterdir()):
        raise ConfigError(f"{folder} is not empty: export rows to a folder of their own", code="config-saved")
    tables_meta: dict[str, Any] = {}
    for number, (name, table) in enumerate(tables.items()):
        files = []
        for part, begin in enumerate(range(0, len(table.ids), per_file)):
            ids = np.ascontiguousarray(table.ids[begin : begin + per_file])
            data = save({"ids": ids, "rows": np.ascontiguousarray(table.look_up(ids))})
            file = f"table-{number:05d}-part-{part:05d}.safetensors"
            (where / file).write_bytes(data)
            files.append({"name": file, "first": int(ids[0]), "sha256": hashlib.sha256(data).hexdigest()})
        tables_meta[name] = {"files": files, "other": table.other.tolist(), "dtype": str(table.other.dtype)}
    draft = where / f"{MARK}.draft"
    mark = {"format": _FORMAT, "tables": tables_meta, "about": dict(about or {})}
    draft.write_text(json.dumps({**mark, "seal": of_json(json.loads(json.dumps(mark)))}, indent=1))
    draft.replace(where / MARK)


class ServedRows:
    """Looks up rows in what :func:`write_rows` has written. Several threads may do so at once.

    Args:
        folder: the folder.
        verify: whether to read all files and compare their checksums first.

    Attributes:
        about: of which model they are, as it was written; empty if an earlier release has written them.
    """

    def __init__(self, folder: str | os.PathLike[str], *, verify: bool = True) -> None:
        self._where = Path(folder)
        self._tables: dict[str, _Table] = {}
        self.about: dict[str, Any] = {}
        try:
            mark = json.loads(_regular(self._where / MARK).read_bytes())
            if mark["format"] != _FORMAT:
                raise ConfigError(
                    f"{self._where / MARK} has format {mark['format']!r:.40}; this sparkdl reads {_FORMAT}",
                    code="config-saved",
                )
            self.about = dict(mark.get("about", {}))
            seal = mark.pop("seal", None)  # earlier releases wrote none
            if seal is not None and seal != of_json(mark):
                raise ValueError(f"{MARK} is damaged: it is not what was written")
            for name, table in mark["tables"].items():
                parts = [self._part(file, verify=verify) for file in table["files"]]
                other = np.array(table["other"], _FLOATS[table["dtype"]])
                widths = {other.shape, *(rows.shape[1:] for _, rows in parts)}
                if other.ndim != 1 or len(widths) > 1:
                    raise ValueError(f"table {name!r:.60} has rows of several shapes: {sorted(widths)}")
                first = np.array([ids[0] for ids, _ in parts], np.int64)
                last = np.array([ids[-1] for ids, _ in parts], np.int64)
                if (first[1:] <= last[:-1]).any():
                    raise ValueError(f"table {name!r:.60}: its files are not in the order of ids")
                self._tables[name] = _Table(first, parts, other)
        except _UNREADABLE as error:
            raise ConfigError(
                f"{self._where} has no rows that can be looked up: {error!s:.300}; expected what export_rows "
                "has written",
                code="config-saved",
            ) from error

    @property
    def names(self) -> list[str]:
        """The tables."""
        return list(self._tables)

    def look_up(self, name: str, ids: Ids) -> Array:
        """Return the rows of ids, shape (ids, width); ids without one get the row that they share.

        Raises:
            ConfigError: if there is no such table.
        """
        return self.find(name, ids)[1]

    def find(self, name: str, ids: Ids) -> tuple[NDArray[np.bool_], Array]:
        """Return which ids have a row, and what :meth:`look_up` returns."""
        if name not in self._tables:
            raise ConfigError(f"there is no table {name!r}; there are {', '.join(self._tables) or 'none'}")
        return self._tables[name].find(np.asarray(ids, np.int64).reshape(-1))

    def width(self, name: str) -> int:
        """Return the elements of a table's rows."""
        return len(self._tables[name].other)

    def _part(self, file: Mapping[str, Any], *, verify: bool) -> tuple[Ids, Array]:
        name = file["name"]
        if not _NAME.fullmatch(name):
            raise ValueError(f"a file called {name!r:.60}")
        path = _regular(self._where / name)
        if verify:
            with path.open("rb") as data:
                if hashlib.file_digest(data, "sha256").hexdigest() != file["sha256"]:
                    raise ValueError(f"{path} is damaged: it is not what was written")
        found = dict(_mapped(path))
        ids, rows = found["ids"], found["rows"]
        fits = ids.ndim == 1 and len(ids) and rows.ndim == 2 and len(rows) == len(ids)
        if not fits or ids.dtype != np.int64 or rows.dtype.kind != "f":
            raise ValueError(
                f"{path} has ids of shape {ids.shape}, {ids.dtype}, and rows of shape {rows.shape}, "
                f"{rows.dtype}; expected int64, and as many rows of floats"
            )
        if ids[0] != file["first"] or (verify and (ids[1:] <= ids[:-1]).any()):
            raise ValueError(f"{path}: its ids are not in order")
        return ids, rows


@dataclass(frozen=True, slots=True)
class _Table:
    first: NDArray[np.int64]
    parts: Sequence[tuple[Ids, Array]]
    other: Array

    def find(self, ids: Ids) -> tuple[NDArray[np.bool_], Array]:
        found, has = np.tile(self.other, (len(ids), 1)), np.zeros(len(ids), np.bool_)
        places = np.searchsorted(self.first, ids, side="right") - 1
        for number in np.unique(places[places >= 0]):
            own, rows = self.parts[number]
            asked = np.flatnonzero(places == number)
            at = np.minimum(np.searchsorted(own, ids[asked]), len(own) - 1)
            there = own[at] == ids[asked]
            found[asked[there]], has[asked[there]] = rows[at[there]], True
        return has, found


def _regular(path: Path) -> Path:
    """Return the path of a file; a pipe may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is not a regular file")
    return path


def _mapped(path: Path) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a safetensors file without reading them."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"{path} is no safetensors file")
        header = json.loads(file.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            shape, dtype = tuple(entry["shape"]), np.dtype(_DTYPES[entry["dtype"]])
            if begin < 0 or end - begin != prod(shape) * dtype.itemsize:
                raise ValueError(f"{path}: {name} has {end - begin} bytes for shape {shape}")
            yield name, np.memmap(path, dtype, "r", 8 + length + begin, shape)
