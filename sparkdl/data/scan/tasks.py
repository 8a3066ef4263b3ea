"""Tasks of a scan: list files, read footers and first rows, and put the manifest where ranks are.

All of them run on executors: neither the driver nor a client needs to see the files. What they find wrong
travels as a value, for Spark would run a task that fails three times more, to the same end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.access.base import BytesRef
from sparkdl.data.scan.delta import DeltaVersion
from sparkdl.data.scan.files import BY_SPARK, File, attempted, check_unchanged, open_parquet
from sparkdl.data.scan.filters import ROLE, RowFilter, bits_of
from sparkdl.data.scan.folders import unpacked
from sparkdl.data.scan.iceberg import IcebergSnapshot
from sparkdl.data.scan.listing import ParquetFolders
from sparkdl.data.scan.manifest import ScanManifest
from sparkdl.data.scan.reader import MANIFEST, READING, first_rows
from sparkdl.data.scan.schema import is_nested, leaves
from sparkdl.data.scan.storage import Storage, file_system
from sparkdl.data.store.partition import Token, new_partition
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Frame, Parts
from sparkdl.wire.private import local_folders, opener

_AT_A_TIME = 8  # footers: object stores take long to answer


def checked(frames: Sequence[bytes]) -> list[Frame]:
    """Return what tasks have found; raises DataError or ConfigError if one of them found something wrong."""
    found = [frame.unpack(data) for data in frames]
    for message in found:
        if "error" in message.meta:
            kind = ConfigError if message.meta["code"] == "config" else DataError
            raise kind(message.meta["error"], code=message.meta["code"])
    return found


ScanPlace = ParquetFolders | DeltaVersion | IcebergSnapshot
"""Where the rows of a scan are."""


def _answer(work: Callable[[], Parts]) -> Parts:
    """Return the frame that some work makes, or one that tells what it found wrong."""
    try:
        return work()
    except (DataError, ConfigError) as error:
        return frame.pack({"error": str(error.args[0]), "code": error.code})


def list_files(place: ScanPlace, _: int, frames: Iterator[bytes]) -> Iterator[Parts]:
    """List the files of a scan in one frame: a task, once the place is given."""
    list(frames)
    yield _answer(lambda: attempted(place.listed).pack())


@dataclass(frozen=True, slots=True)
class ReadFooters:
    """Reads footers, and checks what they tell of the columns."""

    where: str  # a path or URL, by which to find the file system
    types: Mapping[str, str]  # type of each column, as the first file has it
    roles: Mapping[str, str]  # what errors call each column
    filter: RowFilter | None = None  # says which rows are left; ``None`` for all
    storage: Storage = field(default_factory=dict, repr=False)  # options of the file system
    # of columns and fields, see :class:`sparkdl.data.scan.listing.Listing`
    numbers: Mapping[str, int] = field(default_factory=dict)
    mapped: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, _: int, frames: Iterator[bytes]) -> Iterator[Parts]:
        """Yield for each frame of files one with their row groups."""
        for data in list(frames):
            found = frame.unpack(data)
            yield _answer(lambda found=found: self._read(found))  # type: ignore[misc]

    def _read(self, found: Frame) -> Parts:
        system, _ = file_system(self.where, self.storage)
        files = [File(*each) for each in found.meta["files"]]
        values = unpacked(found.arrays["values"])
        selected = {int(n): found.arrays[f"selected/{n}"].view(np.bool_) for n in found.meta["selected"]}
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            several = pool.map(
                lambda n: attempted(
                    lambda: self._groups(system, files[n], values.slice(n, 1), selected.get(n))
                ),
                range(len(files)),
            )
            groups = list(several)
        rows = np.array([n for sizes, _ in groups for n in sizes], np.int64)
        masks = [mask for _, some in groups for mask in some]
        arrays: dict[str, Array] = {
            "groups": np.array([len(sizes) for sizes, _ in groups], np.int64),
            "rows": rows,
            "left": rows if self.filter is None else np.array([mask.sum() for mask in masks], np.int64),
            "bits": bits_of(masks),
        }
        return frame.pack({"first": found.meta["first"]}, arrays)

    def _groups(
        self, system: Any, file: File, values: pa.RecordBatch, selected: Array | None
    ) -> tuple[list[int], list[Array]]:
        """Return the rows of each row group, and with a filter which of them are left."""
        with open_parquet(system, file) as opened:
            schema, footer = opened.schema_arrow, opened.metadata
            for name, expected in self.types.items():
                count = schema.names.count(name)
                found = str(schema.field(name).type) if count == 1 else "missing" if not count else "twice"
                if found != expected:
                    raise DataError(
                        f"{self.roles[name]} {name!r} is {found} in {file.path} and {expected} in the first "
                        "file; expected one schema. Read them by Spark, for Dataset.from_dataframe",
                        code="data-type",
                    )
                self._check_numbers(schema.field(name), name, file, self.roles[name])
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        rows, places = [group.num_rows for group in groups], leaves(schema)
        if self.filter is not None:
            nullable = {number: self._nulls(group, places) for number, group in enumerate(groups)}
            masks = self.filter.left(system, file, values, nullable, selected)
            check_unchanged(system, file)
            return rows, masks
        for number, group in enumerate(groups):
            for name, count in self._nulls(group, places).items():
                raise DataError(
                    f"{self.roles[name]} {name!r}: {count} nulls among the {group.num_rows} "
                    f"rows of row group {number} of {file.path}; drop or fill nulls first",
                    code="data-null",
                )
        return rows, []

    def _check_numbers(
        self, column: pa.Field, name: str, file: File, role: str, is_element: bool = False
    ) -> None:
        """Check that a column and its fields are those of the table, by their numbers if it has given some.

        Files of other writers have none: there the table's mapping of names tells.
        """
        own = (column.metadata or {}).get(b"PARQUET:field_id")
        number = self.mapped.get(name) if own is None else int(own)
        if self.numbers and number is None and not is_element:
            raise DataError(
                f"{role} {name!r} has no number of a field in {file.path}, and the table's "
                f"schema.name-mapping.default has none for this name; {BY_SPARK}",
                code="data-source",
            )
        if number is not None and number != self.numbers.get(name, number):
            why = "the column has had another name when the file was written, or another column had this one"
            if own is None:
                why = "so says the table's schema.name-mapping.default"
            raise DataError(
                f"{role} {name!r} is field {number} in {file.path}, and {self.numbers[name]} in the table: "
                f"{why}; {BY_SPARK}",
                code="data-source",
            )
        if pa.types.is_struct(column.type):
            for each in column.type:
                self._check_numbers(each, f"{name}.{each.name}", file, role)
        elif is_nested(column.type):
            self._check_numbers(column.type.value_field, f"{name}.element", file, role, is_element=True)

    def _nulls(self, group: Any, places: Mapping[str, int]) -> dict[str, int]:
        """Return how many nulls columns have in a row group, by name; of arrays their rows tell."""
        found = {}
        for name in self.types:
            if name in places and self.roles[name] != ROLE:
                statistics = group.column(places[name]).statistics
                if statistics is not None and statistics.has_null_count and statistics.null_count:
                    found[name] = statistics.null_count
        return found


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Reads the first rows of a scan."""

    manifest: bytes
    rows: int
    storage: Storage = field(default_factory=dict, repr=False)

    def __call__(self, _: int, frames: Iterator[bytes]) -> Iterator[Parts]:
        """Yield them as one frame; ragged columns row by row."""
        list(frames)
        yield _answer(self._read)

    def _read(self) -> Parts:
        manifest = ScanManifest.unpack(self.manifest)
        found = attempted(lambda: first_rows(manifest, self.rows, self.storage))
        arrays: dict[str, Array] = {}
        for key, values in found.items():
            if values.dtype == object:
                arrays |= {f"{key}/{index}": np.asarray(row) for index, row in enumerate(values)}
            else:
                arrays[key] = values
        return frame.pack({}, arrays)


@dataclass(frozen=True, slots=True)
class PlaceManifest:
    """Writes the manifest into the folder of a partition, and yields the partition's token."""

    store: str  # id of the Dataset's store
    manifest: BytesRef  # the packed manifest
    partitions: int  # how many there are
    storage: Storage = field(default_factory=dict, repr=False)  # options of the file system
    cache_bytes: int = 0  # of row groups that an executor keeps

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the token."""
        list(frames)
        data = self.manifest.read(once=True)
        manifest = ScanManifest.unpack(data)
        with new_partition(self.store, partition) as (draft, final):
            reading = json.dumps({"storage": dict(self.storage), "cache_bytes": self.cache_bytes}).encode()
            for name, content in ((MANIFEST, data), (READING, reading)):
                with open(draft / name, "xb", opener=opener) as written:
                    written.write(content)
        rows = manifest.layout.rows
        first, end = (rows * n // self.partitions for n in (partition, partition + 1))
        columns = tuple((c.key, c.dtype or "", c.shape or ()) for c in manifest.columns)
        yield Token(
            self.store,
            partition,
            end - first,
            str(final),
            str(local_folders()[0]),
            columns if end > first else (),
            positions=0 if partition else manifest.positions,
            content=manifest.content,
            dealt=self.partitions,
            scan=True,
            first=first,
        ).to_frame()
