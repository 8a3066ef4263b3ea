"""One snapshot of an Iceberg table, whose files and deletes the package pyiceberg lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl import redaction
from sparkdl.data.scan.files import BY_SPARK, file_at, listed_files, open_parquet, unseen
from sparkdl.data.scan.folders import NO_COLUMNS
from sparkdl.data.scan.listing import Listing
from sparkdl.data.scan.storage import S3, Storage, file_system, of_iceberg
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.wire.frame import Array

_BUCKETS = (*S3, "gs")


@dataclass(frozen=True, slots=True)
class IcebergSnapshot:
    """A snapshot of an Iceberg table."""

    table: str  # its name in a catalog, or without one the path or URL of its metadata
    snapshot: int | None  # its number; ``None`` for the current one
    # properties of the catalog, as ``pyiceberg.catalog.load_catalog`` takes them
    catalog: Mapping[str, str] | None = field(repr=False)
    storage: Storage = field(repr=False)  # options of the file system
    where: str = ""  # the root of the file system, once the files were listed

    def pinned(self, listing: Listing) -> IcebergSnapshot:
        """See :class:`sparkdl.data.scan.listing.ParquetFolders`."""
        return replace(self, snapshot=listing.version, where=listing.where)

    def listed(self) -> Listing:
        """See :class:`sparkdl.data.scan.listing.ParquetFolders`; raises ConfigError if pyiceberg is missing.

        DataError names a table that cannot be read, what it has that cannot be, or a file that is gone.
        """
        table = self._table()
        found = table.current_snapshot() if self.snapshot is None else table.snapshot_by_id(self.snapshot)
        name = f"{self.table}, snapshot {found.snapshot_id if found else self.snapshot}"
        if found is None and self.snapshot is not None:
            raise DataError(f"{name}: there is none; it has {_numbers(table)}", code="data-source")
        if found is None:
            raise DataError(f"{self.table} has no snapshot: there is nothing to train on", code="data-empty")
        # The current snapshot has the columns of now, which may be fewer than when it was written.
        numbers = _check_names(table, found.schema_id if self.snapshot is not None else None, name)
        try:
            tasks = list(table.scan(snapshot_id=found.snapshot_id).plan_files())
        except (ValueError, NotImplementedError) as error:  # as for equality deletes
            raise _unreadable(name, error) from error
        if not tasks:
            raise DataError(f"{name} has no files: there is nothing to train on", code="data-empty")
        tasks.sort(key=lambda task: task.file.file_path)
        places = [_place(name, task.file.file_path) for task in tasks]
        where = places[0][0]
        if any(root != where for root, _ in places):
            raise DataError(f"{name} has files on several file systems; {BY_SPARK}", code="data-source")
        system, _ = file_system(where, self.storage)
        for task in tasks:
            if task.file.file_format.value != "PARQUET":
                raise DataError(
                    f"{name}: its file {task.file.file_path} is no Parquet file; {BY_SPARK}",
                    code="data-source",
                )
        listed = [
            (task.file.file_path, path, task.file.file_size_in_bytes)
            for task, (_, path) in zip(tasks, places, strict=True)
        ]
        gone = "snapshots that expire lose their files. Train on a later one"
        files = listed_files(system, listed, name, "the table", gone)
        with open_parquet(system, files[0]) as first:  # which may have columns that the table has dropped
            schema = pa.schema([each for each in first.schema_arrow if each.name in numbers])
            schema = schema.with_metadata(first.schema_arrow.metadata)
        selected = _selected(system, name, tasks)
        mapped = _mapped(table.name_mapping() or ())
        return Listing(files, schema, NO_COLUMNS, found.snapshot_id, selected, where, numbers, mapped)

    def _table(self) -> Any:
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.table import StaticTable
        except ImportError as error:
            raise ConfigError(
                "Dataset.from_iceberg needs pyiceberg on the executors: pip install 'sparkdl[iceberg]'"
            ) from error
        options = of_iceberg(self.storage)
        try:
            if self.catalog is None:
                return StaticTable.from_metadata(self.table, options)
            return load_catalog(None, **{**options, **self.catalog}).load_table(self.table)
        except FileNotFoundError as error:
            raise unseen(self.table, error) from error
        except Exception as error:  # of any catalog
            raise _unreadable(self.table, error) from error


def _unreadable(name: str, error: Exception) -> DataError:
    return DataError(
        f"{name}: pyiceberg cannot read it: {redaction.text(str(error)):.500}; {BY_SPARK}", code="data-source"
    )


def _numbers(table: Any) -> str:
    return ", ".join(str(each.snapshot_id) for each in table.snapshots()) or "none"


def _check_names(table: Any, schema: int | None, name: str) -> dict[str, int]:
    """Check that columns have had their names all the time, for files have those of their day.

    Schemas that no snapshot has any more may be gone from the table's metadata, though there are files of
    them: the numbers of fields in the files tell of these. The names' numbers are returned, fields' as well.
    """
    schemas = table.schemas()
    now = _numbered(table.schema() if schema is None else schemas[schema])
    for before in map(_numbered, schemas.values()):
        names = {number: column for column, number in before.items()}
        for column, number in now.items():
            if before.get(column, number) != number or names.get(number, column) != column:
                raise DataError(
                    f"{name}: its column {column!r} has had another name, or another column had "
                    f"this one; files keep the names of their day, so {BY_SPARK}",
                    code="data-source",
                )
    return now


def _numbered(schema: Any) -> dict[str, int]:
    """Return the numbers of columns, and of the fields in them as ``column.field``: those above first."""
    names = {number: schema.find_column_name(number) for number in sorted(schema.field_ids)}
    return {name: number for number, name in sorted(names.items(), key=lambda each: each[1].count("."))}


def _mapped(fields: Any, above: str = "") -> dict[str, int]:
    """Return the numbers that a table's mapping gives to names in files without numbers, like `_numbered`."""
    found = {}
    for each in fields:
        for name in each.names:
            if each.field_id is not None:
                found[above + name] = int(each.field_id)
            found |= _mapped(each.fields or (), f"{above}{name}.")
    return found


def _place(name: str, uri: str) -> tuple[str, str]:
    """Return the root of a file's file system, and its path there; nothing is quoted in Iceberg's paths."""
    scheme, sign, rest = uri.partition("://")
    if not sign or scheme == "file":
        return "/", rest if sign else uri.removeprefix("file:")
    if scheme not in _BUCKETS:
        raise DataError(
            f"{name}: its file {uri} is on {scheme}://, which is not read; {BY_SPARK}", code="data-source"
        )
    return f"{scheme}://{rest.partition('/')[0]}", rest


def _selected(system: Any, name: str, tasks: Sequence[Any]) -> dict[int, Array]:
    """Return which rows of files are left by positional deletes, by number of the file."""
    read: dict[str, pa.Table] = {}
    selected = {}
    for number, task in enumerate(tasks):
        mask = np.ones(task.file.record_count, np.bool_)
        for deletes in task.delete_files:
            path = deletes.file_path
            if path not in read:
                read[path] = _deletes(system, name, deletes)
            chosen = read[path].filter(pc.field("file_path") == task.file.file_path)
            mask[chosen["pos"].to_numpy()] = False
        if not mask.all():
            selected[number] = mask
    return selected


def _deletes(system: Any, name: str, file: Any) -> pa.Table:
    """Read a file of positional deletes."""
    path, kind = file.file_path, file.file_format.value
    if kind != "PARQUET":
        raise DataError(
            f"{name} has deletes in {path}, a {kind} file, which is not read; {BY_SPARK}", code="data-source"
        )
    there = file_at(system, _place(name, path)[1])
    if there is None:
        raise unseen(path, FileNotFoundError("there is no such file"))
    with open_parquet(system, there) as opened:
        found: pa.Table = opened.read(["file_path", "pos"])
    return found
