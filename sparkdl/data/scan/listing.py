"""Files of a scan, and what is known of their columns before they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sparkdl.data.scan.files import File, list_files, open_parquet
from sparkdl.data.scan.folders import folder_columns, packed, unpacked
from sparkdl.data.scan.storage import Storage, file_system
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Frame, Parts


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of a scan."""

    files: list[File]
    schema: pa.Schema  # of the first one
    values: pa.RecordBatch  # columns that are not in the files, with one row for each file
    version: int | None = None  # of the table, if it has versions
    # by number of the file, which of its rows the version still has, if not all
    selected: Mapping[int, Array] = field(default_factory=dict)
    where: str = ""  # the root of the file system, where only the listing tells it
    # by name, those of columns and the fields in them, where the table has given numbers
    numbers: Mapping[str, int] = field(default_factory=dict)
    mapped: Mapping[str, int] = field(default_factory=dict)  # the same by names in files without numbers

    def pack(self) -> Parts:
        """Lay it out as a frame."""
        arrays: dict[str, Array] = {
            "schema": np.frombuffer(self.schema.serialize().to_pybytes(), np.uint8),
            "values": packed(self.values),
        }
        meta = {
            "files": self.files,
            "version": self.version,
            "where": self.where,
            "numbers": dict(self.numbers),
            "mapped": dict(self.mapped),
            "selected": {str(file): len(mask) for file, mask in self.selected.items()},
        }
        return frame.pack(
            meta, arrays | {f"selected/{n}": np.packbits(mask) for n, mask in self.selected.items()}
        )

    @classmethod
    def of(cls, found: Frame) -> Listing:
        """Read what :meth:`pack` has laid out."""
        meta, arrays = found.meta, found.arrays
        schema = pa.ipc.read_schema(pa.py_buffer(arrays["schema"].tobytes()))
        selected = {
            int(n): np.unpackbits(arrays[f"selected/{n}"], count=rows).view(np.bool_)
            for n, rows in meta["selected"].items()
        }
        files = [File(*each) for each in meta["files"]]
        values, version = unpacked(arrays["values"]), meta["version"]
        where, numbers, mapped = (meta[name] for name in ("where", "numbers", "mapped"))
        return cls(files, schema, values, version, selected, where, numbers, mapped)


@dataclass(frozen=True, slots=True)
class ParquetFolders:
    """Files and folders of Parquet files."""

    paths: tuple[str, ...]  # absolute paths or URLs
    storage: Storage = field(default_factory=dict, repr=False)  # options of their file system

    @property
    def where(self) -> str:
        """A path or URL, by which tasks find the file system, with ``storage``."""
        return self.paths[0]

    def listed(self) -> Listing:
        """List the files; called in a task."""
        listed = list_files(self.paths, self.storage)
        files, below = [file for file, _ in listed], [path for _, path in listed]
        system, _ = file_system(self.where, self.storage)
        with open_parquet(system, files[0]) as first:
            return Listing(files, first.schema_arrow, folder_columns(below))

    def pinned(self, _: Listing) -> ParquetFolders:
        """Return the place of the files of a listing, also if others come later."""
        return self
