"""The manifest of a scan: its files and row groups, as they were when their footers were read."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl import seeding
from sparkdl.data.columns import ColumnPlan
from sparkdl.data.scan.files import File
from sparkdl.data.scan.filters import SelectedRows, bits_of
from sparkdl.data.scan.folders import NO_COLUMNS, packed, unpacked
from sparkdl.data.scan.order import ScanLayout
from sparkdl.data.scan.schema import as_lists
from sparkdl.data.streams import RowShare
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Buffer, Parts

_ORDER = 2  # what the numbers in positions mean: 1 cut chunks at the ends of row groups
_SELECTED = ("rows", "begins", "bits")


@dataclass(frozen=True, eq=False)
class ScanManifest:
    """Everything that tasks need to find the rows of a scan."""

    where: str  # a path or URL, by which tasks find the file system
    files: tuple[File, ...]
    file: Array  # for each row group its file
    number: Array  # its number in the file
    rows: Array  # its rows
    # columns that are not in the files: one row for each file
    values: pa.RecordBatch = field(default_factory=lambda: NO_COLUMNS)
    columns: tuple[ColumnPlan, ...] = ()  # what is read
    streams: int = 1  # V, see :mod:`sparkdl.data.scan.order`
    window: int = 1  # W
    window_bytes: int = 0  # bytes that the chunks of all streams have, about
    selected: SelectedRows | None = None  # which rows of the files these are; ``None`` for all

    def first(self, rows: int) -> ScanManifest:
        """Return the manifest of the first rows."""
        ends = np.minimum(self.begins, rows)
        return replace(self, rows=np.diff(ends))

    def part(self, share: RowShare) -> ScanManifest:
        """Return the manifest of a share of the rows, each of which is in it by chance.

        A row's place between 0 and 1 is drawn from the seed, whatever the share: shares that do not overlap
        have no row in common.
        """
        masks = []
        for group, rows in enumerate(self.rows.tolist()):
            generator = np.random.Generator(
                np.random.PCG64(seeding.derive(seeding.SHARES, share.seed, group))
            )
            places = generator.random(rows)
            inside = (places >= share.begin) & (places < share.end)
            known = self.mask(group)
            mask = np.ones(rows, np.bool_) if known is None else known.copy()
            before = np.flatnonzero(mask)
            mask[before] = False
            mask[before[:rows]] = ~inside if share.others else inside
            masks.append(mask)
        left = np.array([mask.sum() for mask in masks], np.int64)
        sizes = np.array([len(mask) for mask in masks], np.int64)
        return replace(self, rows=left, selected=SelectedRows.of(sizes, left, bits_of(masks)))

    def resolved(self, columns: tuple[ColumnPlan, ...], window_bytes: int, streams: int) -> ScanManifest:
        """Return the manifest with what follows from the size of a row."""
        row_bytes = max(1, sum(column.row_bytes for column in columns))
        # Of each stream one chunk is in memory, and two are read ahead.
        window = max(1, window_bytes // (row_bytes * (streams + 2)))
        return replace(self, columns=columns, streams=streams, window=window, window_bytes=window_bytes)

    @cached_property
    def layout(self) -> ScanLayout:
        """The rows as their order depends on them."""
        return ScanLayout(self.rows, self.streams, self.window)

    @cached_property
    def begins(self) -> Array:
        """Number of the first row of each row group, and of all rows."""
        return np.concatenate([[0], np.cumsum(self.rows)])

    @cached_property
    def read_columns(self) -> list[str]:
        """Names of the columns that are read from the files."""
        known = self.values.schema.names
        return list(dict.fromkeys(c.source for c in self.columns if c.source not in known))

    def column(self, group: int, batch: pa.RecordBatch, name: str) -> pa.Array:
        """Return a column of some rows of a row group, of which a batch has what was read."""
        if name in self.values.schema.names:
            return pa.repeat(self.values.column(name)[int(self.file[group])], batch.num_rows)
        found = batch.column(name)
        plain = as_lists(found.type)
        return found if plain == found.type else found.cast(plain)

    def mask(self, group: int) -> Array | None:
        """Tell which rows of a row group are read; ``None`` for all."""
        return None if self.selected is None else self.selected.mask(group)

    def group_of(self, row: int) -> int:
        """Return the row group that a row is in."""
        return int(np.searchsorted(self.begins, row, side="right")) - 1

    def name_row(self, number: int) -> str:
        """Name a row by its file, row group and place there."""
        group = self.group_of(number)
        row = number - int(self.begins[group])
        if self.selected is not None:
            row = self.selected.place(group, row)
        return f"row {row} of row group {self.number[group]} of {self.files[self.file[group]].path}"

    @cached_property
    def open_groups(self) -> int:
        """How many row groups may be read half: see :func:`streams_for`."""
        row_bytes = sum(column.row_bytes for column in self.columns)
        return _open_groups(self.rows, row_bytes, self.window_bytes, len(self.read_columns))

    @cached_property
    def positions(self) -> int:
        """Checksum of what the order of rows depends on, beside seeds."""
        meta = [_ORDER, self.streams, self.window, [[f.path.rpartition("/")[2], f.size] for f in self.files]]
        return _digest(repr(meta).encode(), self.file, self.number, self.rows)

    @cached_property
    def content(self) -> int:
        """Checksum of that, of what is read, and of what shows that a file has changed."""
        meta = [self.positions, self.columns, [[file.size, file.time] for file in self.files]]
        if self.selected is not None:
            meta.append(hashlib.blake2b(self.selected.bits.tobytes(), digest_size=8).hexdigest())
        return _digest(repr(meta).encode(), packed(self.values)) >> 32

    def pack(self) -> Parts:
        """Lay it out as a frame."""
        meta = {
            "where": self.where,
            "files": self.files,
            "columns": [asdict(column) for column in self.columns],
            "streams": self.streams,
            "window": self.window,
            "window_bytes": self.window_bytes,
        }
        arrays: dict[str, Array] = {
            "file": self.file,
            "number": self.number,
            "rows": self.rows,
            "values": packed(self.values),
        }
        if self.selected is not None:
            arrays |= {f"selected/{name}": getattr(self.selected, name) for name in _SELECTED}
        return frame.pack(meta, arrays)

    @classmethod
    def unpack(cls, data: Buffer) -> ScanManifest:
        """Read what :meth:`pack` has laid out."""
        found = frame.unpack(data)
        meta, arrays = found.meta, found.arrays
        selected = (
            SelectedRows(*(arrays[f"selected/{n}"] for n in _SELECTED)) if "selected/rows" in arrays else None
        )
        return cls(
            meta["where"],
            tuple(File(*each) for each in meta["files"]),
            arrays["file"],
            arrays["number"],
            arrays["rows"],
            unpacked(arrays["values"]),
            tuple(_column(values) for values in meta["columns"]),
            meta["streams"],
            meta["window"],
            meta["window_bytes"],
            selected,
        )


def _column(values: dict[str, Any]) -> ColumnPlan:
    shape = values["shape"]
    return ColumnPlan(**{**values, "shape": None if shape is None else tuple(shape)})


def _digest(meta: bytes, *arrays: Array) -> int:
    digest = hashlib.blake2b(meta, digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array, "<i8").data)
    return int.from_bytes(digest.digest(), "little")


EVEN = (1, 2, 4, 6, 12, 24, 60, 120, 240, 420, 840)
"""Numbers that most smaller numbers of partitions divide."""


_COLUMN_BYTES = 5 << 18
"""What a column of a row group that is read half takes: pages, a dictionary; less, if it has fewer bytes."""

_LEAST_OPEN_BYTES = 32 << 20  # what row groups that are read half may take with any window


def streams_for(groups: Array, row_bytes: int, window_bytes: int, columns: int = 1) -> int:
    """Return how many streams a scan has by default.

    Each has four row groups or more, so that none needs to be cut, and chunks of two, where the window has
    room for them. Twelve of them are worth cut chunks, if as many row groups can stay open: a row group that
    was closed is decoded from its first row again.
    """
    room = int(window_bytes / (2 * _group_bytes(groups, row_bytes))) - 2
    room = max(room, min(12, _open_groups(groups, row_bytes, window_bytes, columns)))
    most = max(1, min(int(np.count_nonzero(groups)) // 4, room))
    return max(number for number in EVEN if number <= most)


def _open_groups(groups: Array, row_bytes: int, window_bytes: int, columns: int) -> int:
    """Return how many row groups take half a window of memory while they are read half; four at least."""
    half_read = min(_COLUMN_BYTES * max(1, columns), _group_bytes(groups, row_bytes))
    return max(4, int(max(_LEAST_OPEN_BYTES, window_bytes / 2) / half_read))


def _group_bytes(groups: Array, row_bytes: int) -> float:
    groups = groups[groups > 0]
    return max(1.0, float(groups.mean()) * row_bytes)
