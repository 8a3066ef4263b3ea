"""One version of a Delta table, whose files the package deltalake lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from sparkdl.data.scan.files import BY_SPARK, listed_files, open_parquet, unseen
from sparkdl.data.scan.listing import Listing
from sparkdl.data.scan.storage import Storage, file_system, of_delta
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.wire.frame import Array

_KNOWN = {"deletionVectors", "columnMapping", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features for readers that deltalake resolves, or that are refused only if the version makes use of them."""

_VALUE = "partition."


@dataclass(frozen=True, slots=True)
class DeltaVersion:
    """A version of a Delta table."""

    path: str  # an absolute path or URL
    version: int | None  # its number; ``None`` for the last one
    storage: Storage = field(default_factory=dict, repr=False)  # options of the file system

    @property
    def where(self) -> str:
        """See :class:`sparkdl.data.scan.listing.ParquetFolders`."""
        return self.path

    def pinned(self, listing: Listing) -> DeltaVersion:
        """See :class:`sparkdl.data.scan.listing.ParquetFolders`."""
        return replace(self, version=listing.version)

    def listed(self) -> Listing:
        """See :class:`sparkdl.data.scan.listing.ParquetFolders`."""
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError, TableNotFoundError
        except ImportError as error:
            raise ConfigError(
                "Dataset.from_delta needs deltalake on the executors: pip install 'sparkdl[delta]'"
            ) from error
        system, root = file_system(self.path, self.storage)
        try:
            table = DeltaTable(self.path, self.version, storage_options=of_delta(self.storage))
            name = f"{self.path}, version {table.version()}"
            _check(table, name)
            actions = pa.table(table.get_add_actions(flatten=True)).sort_by("path").combine_chunks()
        except TableNotFoundError as error:
            raise unseen(self.path, FileNotFoundError(f"there is no Delta table: {error}")) from error
        except DeltaError as error:
            version = "" if self.version is None else f", version {self.version}"
            raise DataError(
                f"{self.path}{version}: deltalake cannot read it: {error}", code="data-source"
            ) from error
        if not actions.num_rows:
            raise DataError(f"{name} has no files: there is nothing to train on", code="data-empty")
        below = [_below(name, path) for path in actions["path"].to_pylist()]
        selected = _selected(table, name, below)
        sizes = actions["size_bytes"].to_pylist()
        listed = [(path, f"{root.rstrip('/')}/{path}", size) for path, size in zip(below, sizes, strict=True)]
        gone = "VACUUM removes the files that the last versions do without. Train on a later version"
        found = listed_files(system, listed, name, "the table's log", gone)
        names = table.metadata().partition_columns
        values = [actions[_VALUE + column].combine_chunks() for column in names]
        with open_parquet(system, found[0]) as first:
            batch = pa.RecordBatch.from_arrays(values, names)
            return Listing(found, first.schema_arrow, batch, table.version(), selected)


def _check(table: Any, name: str) -> None:
    """Check that a version's files have its rows, and no others."""
    features = set(table.protocol().reader_features or ())
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        raise DataError(
            f"{name} maps the names of columns (delta.columnMapping.mode={mapping}), which is not read; "
            f"{BY_SPARK}",
            code="data-source",
        )
    if features - _KNOWN:
        raise DataError(
            f"{name} asks readers for {', '.join(sorted(features - _KNOWN))}, which is not known; {BY_SPARK}",
            code="data-source",
        )


def _selected(table: Any, name: str, below: Sequence[str]) -> dict[int, Array]:
    """Return which rows of files are left by deletion vectors, by number of the file."""
    if "deletionVectors" not in set(table.protocol().reader_features or ()):
        return {}
    selected = {}
    for batch in map(pa.record_batch, table.deletion_vectors()):
        for uri, mask in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
            path = unquote(urlsplit(uri).path)
            files = [number for number, file in enumerate(below) if f"/{path}".endswith(f"/{file}")]
            if len(files) != 1:
                raise DataError(
                    f"{name} has a deletion vector for {path}, which is none of its files: {BY_SPARK}",
                    code="data-source",
                )
            selected[files[0]] = mask.values.to_numpy(zero_copy_only=False)
    return selected


def _below(name: str, path: str) -> str:
    """Return the path of a file below its table, of which the log has one that is quoted."""
    if urlsplit(path).scheme or path.startswith("/"):
        raise DataError(
            f"{name}: its file {path} lies elsewhere, as in a shallow clone, and is not read; copy the table",
            code="data-source",
        )
    return unquote(path)
