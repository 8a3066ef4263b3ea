"""The partition store: one directory per partition, one raw file per column.

The directory lies in the executor's local directory, where Spark deletes it when the executor
stops. All Python workers of an executor map the same files, so a partition is in memory once. A
partition is written as a stream of batches and may be larger than memory. Its *token* (a small
frame) says where it is; tokens are what Spark persists, places and rebuilds.

Files and folders are for their owner alone, and plain: see ``session.check_encryption``.

Beside the columns lies a file with each row's position in the source, which only predictions read.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from sparkdl.data.columns import ColumnPlan
from sparkdl.data.ragged import is_ragged, joined, kind_of, split
from sparkdl.data.store.checksum import RowSums
from sparkdl.exceptions import DataError
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Frame, Parts
from sparkdl.wire.private import local_folders, make_folder, opener, put_in_place

_FOLDER = "sparkdl"
_POSITIONS = "_row"
_ENDS = ".ends"
_VIEW = "_view."

StoreBatch = tuple[Array, Mapping[str, Array]]
"""Some rows on their way into the store: their positions in the source, and the columns by key."""


class PartitionMissingError(Exception):
    """A token points to files that this executor cannot see: the block must be rebuilt."""


class Stretch(NamedTuple):
    """A column of a window: a stretch of stored rows."""

    key: str  # of the column
    stored: str  # key of the stored column
    offset: int  # where it begins, in stored rows after the first one of the window
    length: int  # stored rows; 0 for one row, without a dimension of its own


@dataclass(frozen=True, slots=True)
class Token:
    """The path and content of a partition of the store."""

    store: str  # id of the Dataset's store
    partition: int  # partition index
    rows: int  # number of rows
    folder: str  # absolute path of the partition's directory
    executor: str  # id of the executor that wrote it
    # (key, dtype, row shape) of each column; empty for a partition without rows
    columns: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    error: str = ""  # why the partition could not be written; empty if it was
    positions: int = 0  # checksum of the rows' positions in the source, independent of their order
    content: int = 0  # checksum of the columns' bytes
    values: int = 0  # checksum of the rows' values, independent of their order and of where they stand
    ragged: int = 0  # bytes of the values of ragged columns
    # name of the file that says which of the rows in the files these are, and in which order; empty if they
    # are all of them
    view: str = ""
    stored: int = 0  # rows in the files, if there is a view
    stretches: tuple[Stretch, ...] = ()  # the columns of a view whose rows are windows, see `windows_of`
    seconds: float = 0.0  # that it took to compute columns which were added to those of the source
    # to how many partitions the rows were dealt as :mod:`sparkdl.data.streams` says, these in the order of
    # the source; 0 if the partition has its rows by another rule
    dealt: int = 0
    # whether the folder has the manifest of a scan in place of rows, see :mod:`sparkdl.data.scan`
    scan: bool = False
    first: int = 0  # number of the first row that the partition has of a scan, in the order of the files

    def to_frame(self) -> bytes:
        """Serialize."""
        return frame.join(frame.pack({name: getattr(self, name) for name in self.__slots__}))

    @classmethod
    def from_frame(cls, message: Frame) -> Token:
        """Deserialize."""
        meta: dict[str, Any] = dict(message.meta)
        meta["columns"] = tuple((key, dtype, tuple(shape)) for key, dtype, shape in meta["columns"])
        meta["stretches"] = tuple(Stretch(*item) for item in meta["stretches"])
        return cls(**meta)

    @property
    def stored_columns(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """The columns in the files, where those of the token are stretches of them."""
        pairs = zip(self.columns, self.stretches, strict=False)
        found = {part.stored: (part.stored, d, s[1:] if part.length else s) for (_, d, s), part in pairs}
        return tuple(found.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the partition's files, with the positions of its rows; none of a scan's."""
        if self.scan:
            return 0
        if self.stretches:
            per_row = sum(np.dtype(d).itemsize * math.prod(s) for _, d, s in self.stored_columns)
            return self.stored * (per_row + 8) + self.rows * 8
        fixed = [(d, s) for _, d, s in self.columns if not is_ragged(s)]
        per_row = sum(np.dtype(d).itemsize * int(np.prod(s, dtype=np.int64)) for d, s in fixed)
        ends = len(self.columns) - len(fixed)
        return self.rows * (per_row + (1 + ends) * np.dtype(np.int64).itemsize) + self.ragged


def _folder(store: str, partition: int) -> Path:
    folders = store_folders(store, f"part-{partition:05d}")
    return folders[partition % len(folders)]


@contextmanager
def new_partition(store: str, partition: int) -> Iterator[tuple[Path, Path]]:
    """Give a folder to write a partition to, and the one that it becomes if the block succeeds."""
    final = _folder(store, partition)
    draft = final.with_name(f"{final.name}.{uuid.uuid4().hex}")
    make_folder(draft)
    try:
        yield draft, final
        put_in_place(draft, final)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def write_partition(
    store: str,
    partition: int,
    executor: str,
    plans: Iterable[ColumnPlan],
    batches: Iterable[StoreBatch],
    dealt: int = 0,
) -> Token:
    """Write a partition as a stream of batches and return its token.

    The files appear under their final name all at once, so that a second attempt of the task can run beside
    the first. A batch is (positions, columns): positions grow in the source's order. ``dealt`` is to how many
    partitions rows were dealt to streams; 0 if they were not. Raises DataError if shapes differ.
    """
    known: dict[str, ColumnPlan] = {plan.key: plan for plan in plans}
    rows, ragged_bytes, sums = 0, 0, RowSums()
    content = dict.fromkeys(known, 0)
    filled: dict[str, int] = {}  # values so far, of ragged columns
    with new_partition(store, partition) as (draft, final), ExitStack() as stack:
        names = [*known, *(f"{key}{_ENDS}" for key, plan in known.items() if plan.ragged)]
        files = {name: stack.enter_context(_create(draft, name)) for name in names}
        positions = stack.enter_context(_create(draft, _POSITIONS))
        for position, batch in batches:
            count = len(next(iter(batch.values())))
            if not count:
                continue
            position = np.ascontiguousarray(position, np.int64)
            positions.write(position.data)
            sums.add(position)
            for key, values in batch.items():
                known[key] = _agree(known[key], values)
                lengths = None
                if known[key].ragged:
                    values, lengths = joined(values)
                    ragged_bytes += values.nbytes
                    ends = filled.get(key, 0) + np.cumsum(lengths)
                    filled[key] = int(ends[-1])
                    files[f"{key}{_ENDS}"].write(ends.data)
                    content[key] = zlib.crc32(ends.data, content[key])
                files[key].write(values.data)
                content[key] = zlib.crc32(values.data, content[key])  # 4 GB/s: a tenth of the conversion
                sums.add_column(key, values, lengths)
            rows += count
    sums.end()
    columns = tuple((p.key, p.dtype or "", p.shape or ()) for p in known.values()) if rows else ()
    whole = zlib.crc32(repr(content).encode())
    token = Token(store, partition, rows, str(final), executor, columns, dealt=dealt)
    return replace(token, positions=sums.positions, content=whole, values=sums.values, ragged=ragged_bytes)


@contextmanager
def _gone_on_errors(drafts: Sequence[Path]) -> Iterator[None]:
    """Delete files that could not be written to their end, for a disk that is full."""
    try:
        yield
    except BaseException:
        for draft in drafts:
            draft.unlink(missing_ok=True)
        raise


def _create(folder: Path, key: str) -> BinaryIO:
    return open(folder / f"{key}.bin", "xb", opener=opener)


def _agree(plan: ColumnPlan, values: Array) -> ColumnPlan:
    dtype, shape = kind_of(values)
    if plan.shape is not None and plan.dtype is not None:
        if shape != plan.shape:
            raise DataError(
                f"column {plan.source!r}: rows of shape {shape} after rows of shape {plan.shape}; "
                "all rows must have one shape (pad or filter them; collate=Pad() of a Dataset or of "
                "Trainer.fit pads each batch)",
                code="data-shape",
            )
        return plan
    return plan.resolved(dtype, shape)


def read_rows(token: Token, rows: Array, keys: Collection[str] | None = None) -> dict[str, Array]:
    """Gather rows of a partition, by number, into fresh arrays; PartitionMissingError if it is not here."""
    folder = locate(token)
    count, rows = _in_files(folder, token, rows)
    wanted = [column for column in token.columns if keys is None or column[0] in keys]
    if token.stretches:
        parts = {part.key: part for part in token.stretches}
        return {k: _gather_stretch(folder, parts[k], d, shape, count, rows) for k, d, shape in wanted}
    return {
        key: _gather_ragged(folder, key, dtype, shape, count, rows)
        if is_ragged(shape)
        else _gather(folder, key, dtype, (count, *shape), rows)
        for key, dtype, shape in wanted
    }


def with_columns(
    token: Token, plans: Iterable[ColumnPlan], batches: Iterable[StoreBatch], keys: Collection[str]
) -> Token:
    """Return the token of a partition with further columns, whose files are written beside the others.

    The token is all of the rows and nobody else's. Tasks that write the same columns at a time write the same
    files. ``batches`` are in order, with ignored numbers; the new columns are not ragged. Files of columns
    that are not in ``keys`` are deleted. Raises PartitionMissingError if the files are not here, DataError if
    shapes are not the plan's.
    """
    folder = locate(token)
    known = {plan.key: plan for plan in plans}
    content = dict.fromkeys(known, token.content)
    draft = f".{uuid.uuid4().hex}"
    with _gone_on_errors([folder / f"{key}{draft}.bin" for key in known]), ExitStack() as stack:
        files = {key: stack.enter_context(_create(folder, f"{key}{draft}")) for key in known}
        for _, batch in batches:
            for key, values in batch.items():
                known[key] = _agree(known[key], values)
                data = np.ascontiguousarray(values).data
                files[key].write(data)
                content[key] = zlib.crc32(data, content[key])
    for key in known:
        (folder / f"{key}{draft}.bin").rename(folder / f"{key}.bin")
    columns = (*token.columns, *((p.key, p.dtype or "", p.shape or ()) for p in known.values()))
    for key, _, _ in columns:
        if key not in keys:
            for name in (key, f"{key}{_ENDS}"):
                (folder / f"{name}.bin").unlink(missing_ok=True)
    whole = zlib.crc32(repr(content).encode())
    return replace(token, columns=tuple(c for c in columns if c[0] in keys), content=whole)


def view_of(token: Token, name: str, rows: Array) -> Token:
    """Return the token of some rows of a partition, in an order of their own, which shares its files.

    Beside the columns lies a file with the numbers of the rows: 8 bytes for each. Tasks that make the same
    view at a time write the same file. If the partition's files are not on this executor, whoever reads the
    view finds that out, and has both made again.
    """
    stored = token.stored if token.view else token.rows
    with suppress(PartitionMissingError):
        folder = locate(token)
        _, numbers = _in_files(folder, token, np.ascontiguousarray(rows, np.int64))
        file = folder / f"{_VIEW}{name}.bin"
        if not file.exists():
            draft = f"{_VIEW}{name}.{uuid.uuid4().hex}"
            with _gone_on_errors([folder / f"{draft}.bin"]), _create(folder, draft) as written:
                written.write(np.ascontiguousarray(numbers, np.int64).data)
            (folder / f"{draft}.bin").rename(file)
    return replace(token, rows=len(rows), view=name, stored=stored, dealt=0)


def windows_of(token: Token, name: str, starts: Array, stretches: Sequence[Stretch]) -> Token:
    """Return the token of a view whose rows are windows: stretches of stored rows, which may overlap.

    The steps of series lie in the files once: a row of the view is the number of its first stored row, and
    each of its columns is a stretch of stored rows at an offset from there.
    """
    stored = {key: (dtype, shape) for key, dtype, shape in token.columns}
    columns = []
    for part in stretches if stored and len(starts) else ():
        dtype, shape = stored[part.stored]
        columns.append((part.key, dtype, (part.length, *shape) if part.length else shape))
    return replace(view_of(token, name, starts), columns=tuple(columns), stretches=tuple(stretches))


def _in_files(folder: Path, token: Token, rows: Array) -> tuple[int, Array]:
    """Return how many rows lie in a partition's files, and the numbers there of rows of a token."""
    if not token.view:
        return token.rows, rows
    return token.stored, _gather(folder, f"{_VIEW}{token.view}", "int64", (token.rows,), rows)


def read_positions(token: Token, rows: Array) -> Array:
    """Return where rows of a partition stand in the source; PartitionMissingError if it is not here.

    int64 numbers grow in its order: a DataFrame's rows have Spark's ``monotonically_increasing_id``, an RDD's
    the same number made of partition and row, arrays' the row number.
    """
    if not token.rows:
        return np.empty(0, np.int64)
    folder = locate(token)
    count, rows = _in_files(folder, token, rows)
    return _gather(folder, _POSITIONS, "int64", (count,), rows)


def _gather_ragged(
    folder: Path, key: str, dtype: str, shape: tuple[int, ...], count: int, rows: Array
) -> Array:
    """Gather rows that differ in length: one array per row."""
    every = _gather(folder, f"{key}{_ENDS}", "int64", (count,), np.append(rows, count - 1))
    ends, total = every[:-1], int(every[-1])
    before = _gather(folder, f"{key}{_ENDS}", "int64", (count,), np.maximum(rows - 1, 0))
    starts = np.where(rows == 0, 0, before)
    lengths = ends - starts
    # The number of each value: where its row starts, and its place in the row.
    first = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    values = _gather(folder, key, dtype, (total, *shape[1:]), first + np.arange(len(first)))
    return split(values, np.cumsum(lengths))


def _gather_stretch(
    folder: Path, part: Stretch, dtype: str, shape: tuple[int, ...], count: int, rows: Array
) -> Array:
    """Gather a stretch of stored rows for each row."""
    first = rows + part.offset
    if not part.length:
        return _gather(folder, part.stored, dtype, (count, *shape), first)
    return _gather(folder, part.stored, dtype, (count, *shape[1:]), first[:, None] + np.arange(part.length))


def _gather(folder: Path, key: str, dtype: str, shape: tuple[int, ...], rows: Array) -> Array:
    if 0 in shape:  # an empty file cannot be mapped
        return np.empty((len(rows), *shape[1:]), dtype)
    try:
        with (folder / f"{key}.bin").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != math.prod(shape) * np.dtype(dtype).itemsize:
                raise PartitionMissingError(f"{folder}: {key}.bin has {size} bytes")  # see put_in_place
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise PartitionMissingError(str(folder)) from None
    # The mapping is closed with the last array that views it: np.take copies, so right here.
    return np.take(np.frombuffer(mapped, dtype).reshape(shape), rows, axis=0)


def locate(token: Token) -> Path:
    """Find the partition: where the token says, or where this executor itself once built it."""
    folder = Path(token.folder)
    if folder.is_dir():
        return folder
    own = _folder(token.store, token.partition)
    if own.is_dir():
        return own
    raise PartitionMissingError(token.folder)


def missing(partition: int) -> Parts:
    """Return the frame by which a task says that it does not find its partition's files."""
    return frame.pack({"kind": "missing", "partition": partition})


def store_folders(store: str, name: str = "") -> list[Path]:
    """Return the folders of a store on this executor, or those of some name in them: one on each disk."""
    return [folder / _FOLDER / store / name for folder in local_folders()]


def delete_store(store: str) -> None:
    """Remove a store's files from this executor, also of partitions that were rebuilt elsewhere."""
    for folder in store_folders(store):
        shutil.rmtree(folder, ignore_errors=True)
