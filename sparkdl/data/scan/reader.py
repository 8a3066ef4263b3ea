"""The reader of a scan in a worker process: decoded chunks, and a thread that reads the next ones.

All that a reader keeps are hints: chunks in memory, row groups that are read half, the order of an epoch.
Another process, or this one when it needs rows again, reads them again.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl._spark.frames import Task
from sparkdl.data.columns import ColumnPlan, TablePlan
from sparkdl.data.convert import from_arrow
from sparkdl.data.scan.cache import FOLDER, Draft, RowGroupCache
from sparkdl.data.scan.files import File, attempted, check_unchanged, open_file
from sparkdl.data.scan.manifest import ScanManifest
from sparkdl.data.scan.order import Order, Part, in_files, order_of
from sparkdl.data.scan.storage import NO_STORAGE, Storage, file_system
from sparkdl.data.store.partition import PartitionMissingError, Token, locate, store_folders
from sparkdl.exceptions import DataError
from sparkdl.wire.frame import Array, Parts

MANIFEST = "scan.bin"
"""Name of the manifest's file, in the folder of a partition."""

READING = "reading.json"
"""Name of the file beside it with what is no part of it: options of the file system, bytes of the cache."""

_BATCH_BYTES = 2 << 20  # that are decoded at a time
_BUFFER_BYTES = 256 << 10  # of each column that is read half
_FILTERED = 1024  # rows that are decoded at a time for the first ones that a filter leaves
_AHEAD = 2  # chunks
_ORDERS = 2
_FOOTERS = 64
_READERS = 4
_READ_AHEAD = "sparkdl-read-ahead"

_Key = tuple[int | None, int, int]  # a chunk: the seed of its order, its stream, its number


class _StoppedError(Exception):
    """The task has ended for which something is read ahead."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows of a chunk, in the order of the files."""

    rows: int
    columns: Mapping[str, Array]  # by column key
    turn: Array | None  # their order in the epoch; ``None`` for that of the files


@dataclass(frozen=True)
class ScanRows:
    """Some rows of a scan; see :class:`sparkdl.data.sampler.Rows`."""

    reader: Reader
    order: Order
    parts: list[Part]

    def __len__(self) -> int:
        return sum(part.end - part.first for part in self.parts)

    @cached_property
    def numbers(self) -> Array:
        """See :class:`sparkdl.data.sampler.Rows`."""
        return self.order.numbers(self.parts)

    def read(self, keys: Collection[str] | None = None) -> dict[str, Array]:
        """See :class:`sparkdl.data.sampler.Rows`."""
        return self.reader.read(self.order, self.parts, keys)

    def positions(self) -> Array:
        """See :class:`sparkdl.data.sampler.Rows`."""
        return self.numbers

    def name(self, plan: TablePlan, index: int) -> str:
        """See :class:`sparkdl.data.sampler.Rows`."""
        return self.reader.manifest.name_row(int(self.numbers[index]))

    def file_bytes(self) -> int:
        """See :class:`sparkdl.data.sampler.Rows`."""
        return self.reader.bytes_since()


class Reader:
    """Reads rows of a scan.

    Without ``cache`` (row groups on this executor's disk) the files are read each time. ``decoded`` counts
    rows of files decoded so far, also those only read past; ``file_bytes`` the bytes of columns in row groups
    begun so far, as they lie in files.
    """

    def __init__(
        self,
        manifest: ScanManifest,
        folder: Path | None = None,
        storage: Storage = NO_STORAGE,
        cache: RowGroupCache | None = None,
    ) -> None:
        self.manifest = manifest
        self._storage = storage
        self._cache = cache
        self.folder = folder
        self.decoded = 0
        self.file_bytes = 0
        self._counted = 0
        self._orders: OrderedDict[tuple[int, int], Order] = OrderedDict()
        self._chunks: OrderedDict[_Key, _Chunk] = OrderedDict()
        self._at: dict[tuple[int | None, int], int] = {}  # by seed and stream: the chunk that was read last
        self._cursors: OrderedDict[int, _Cursor] = OrderedDict()  # by the number of the row that comes next
        self._footers: OrderedDict[int, Any] = OrderedDict()
        self._system: Any = None
        self._keeping = threading.Lock()  # of what is kept
        self._reading = threading.RLock()  # of files
        self._thread: threading.Thread | None = None
        self._asked: SimpleQueue[tuple[Order, Sequence[tuple[int, int]]] | None] = SimpleQueue()
        self._stop = threading.Event()

    # -- which rows -----------------------------------------------------------------------------

    def in_epoch(
        self, slots: tuple[int, int], seed: int, epoch: int, shuffle: bool, rank: int, ranks: int
    ) -> ScanRows:
        """Return the rows that a partition has in a range of an epoch's slots."""
        order = self._order(seed, epoch) if shuffle else in_files(self.manifest.layout)
        return ScanRows(self, order, order.parts(slots, rank, ranks))

    def in_order(self, first: int, end: int) -> ScanRows:
        """Return a range of rows in the order of the files."""
        order = in_files(self.manifest.layout)
        return ScanRows(self, order, list(order.in_stream(0, first, end)))

    def _order(self, seed: int, epoch: int) -> Order:
        found = self._orders.get((seed, epoch))
        if found is None:
            found = self._orders[seed, epoch] = order_of(self.manifest.layout, seed, epoch)
            while len(self._orders) > _ORDERS:
                self._orders.popitem(last=False)
        return found

    # -- reading --------------------------------------------------------------------------------

    def read(
        self, order: Order, parts: Sequence[Part], keys: Collection[str] | None = None
    ) -> dict[str, Array]:
        """Return rows as fresh arrays by column key, and have the next chunks read.

        DataError names a file that changed or cannot be read, or a row that cannot become a tensor.
        """
        columns = [c for c in self.manifest.columns if keys is None or c.key in keys]
        rows, place = sum(part.end - part.first for part in parts), 0
        taken = {column.key: _room(column, rows) for column in columns}
        for stream, number, first, end in parts:
            self._at[order.seed, stream] = number
            chunk = self._chunk(order, stream, number)
            after, turn = place + end - first, chunk.turn
            if turn is None:
                for key, found in taken.items():
                    found[place:after] = chunk.columns[key][first:end]
            else:
                own = turn[first:end]
                for key, found in taken.items():  # with mode="raise" numpy would copy them twice
                    chunk.columns[key].take(own, 0, found[place:after], "clip")
            place = after
        self._drop(order, parts)
        self._read_ahead(order, parts)
        return taken

    def _chunk(self, order: Order, stream: int, number: int) -> _Chunk:
        """Return a chunk, which is read if it is not in memory."""
        key = (order.seed, stream, number)
        found = self._known(key)
        if found is None:
            with self._reading:
                found = self._known(key)  # read ahead meanwhile
                if found is None:
                    found = attempted(lambda: self._read_chunk(order, stream, number))
                    self._keep(key, found)
        return found

    def _known(self, key: _Key) -> _Chunk | None:
        with self._keeping:
            if key in self._chunks:
                self._chunks.move_to_end(key)
            return self._chunks.get(key)

    def _keep(self, key: _Key, chunk: _Chunk) -> None:
        with self._keeping:
            self._chunks[key] = chunk
            while len(self._chunks) > 1 and self._rows() > self._most_rows:
                # Those that are used up go first: before the others, row groups would have to be read again.
                used_up = (k for k in self._chunks if k[2] < self._at.get(k[:2], 0))
                del self._chunks[next(used_up, next(iter(self._chunks)))]

    @property
    def _most_rows(self) -> int:
        return (self.manifest.streams + _AHEAD) * self.manifest.window

    def _rows(self) -> int:
        return sum(chunk.rows for chunk in self._chunks.values())

    def _drop(self, order: Order, parts: Sequence[Part]) -> None:
        """Forget chunks that are used up; the one before stays for a batch more, which may be asked again."""
        with self._keeping:
            for part in parts:
                if part.first:
                    self._chunks.pop((order.seed, part.stream, part.chunk - 1), None)
            for key in [key for key in self._chunks if key[0] != order.seed]:
                del self._chunks[key]
            self._at = {key: number for key, number in self._at.items() if key[0] == order.seed}

    def _read_chunk(self, order: Order, stream: int, number: int) -> _Chunk:
        rows = order.rows(stream, number)
        columns = {column.key: _room(column, rows) for column in self.manifest.columns}
        place = 0
        for span in order.spans(stream, number):
            for first, batch in self._batches(span.first, span.rows):
                self._convert(first, batch, columns, place)
                place += batch.num_rows
        return _Chunk(rows, columns, order.permutation(stream, number))

    def _convert(self, first: int, batch: Any, into: Mapping[str, Array], place: int) -> None:
        """Convert a record batch that begins with a row of some number."""
        manifest, group = self.manifest, self.manifest.group_of(first)
        name = lambda index: manifest.name_row(first + index)  # noqa: E731
        for plan in manifest.columns:
            values = from_arrow(plan, manifest.column(group, batch, plan.source), name)
            into[plan.key][place : place + len(values)] = values

    def _batches(self, first: int, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield rows of one row group, each batch after the number of its first row."""
        cursor = self._cursors.pop(first, None) or self._open(first)
        try:
            while rows:
                if threading.current_thread().name == _READ_AHEAD and self._stop.is_set():
                    raise _StoppedError
                at, batch = cursor.take(rows)
                yield at, batch
                rows -= batch.num_rows
            if cursor.file is not None:
                check_unchanged(self._system, cursor.file)  # while it was read
        except BaseException:
            cursor.close()
            raise
        if cursor.next >= cursor.end:
            cursor.close(is_whole=True)
            return
        if cursor.next in self._cursors:  # of a chunk that made room before its turn, and was read again
            cursor.close()
            return
        self._cursors[cursor.next] = cursor
        while len(self._cursors) > self.manifest.open_groups:
            self._cursors.popitem(last=False)[1].close()

    def _open(self, first: int) -> _Cursor:
        """Open a row group to read it from a row on."""
        manifest, cache = self.manifest, self._cache
        group = manifest.group_of(first)
        begin, end = (int(manifest.begins[group + n]) for n in (0, 1))
        there = None if cache is None else cache.batches(group)
        if there is not None:
            cursor = _Cursor(there, begin, end)
        else:
            file = manifest.files[manifest.file[group]]
            draft = None if cache is None else cache.draft(group)
            cursor = _Cursor(self._decoded(group), begin, end, file, draft)
        try:
            while cursor.next < first:  # in a row group there is no other way
                cursor.take(first - cursor.next)
        except BaseException:
            cursor.close()
            raise
        return cursor

    def _decoded(self, group: int) -> Generator[pa.RecordBatch]:
        """Decode a row group batch by batch: those of its rows that are read."""
        from pyarrow import parquet

        manifest = self.manifest
        number, place = int(manifest.number[group]), int(manifest.file[group])
        file = manifest.files[place]
        if self._system is None:
            self._system, _ = file_system(manifest.where, self._storage)
        row_bytes = sum(column.row_bytes for column in manifest.columns)
        size = max(1024, min(1 << 16, _BATCH_BYTES // max(1, row_bytes)))
        mask, at = manifest.mask(group), 0
        # From an object store several requests at once bring a whole row group, which takes as much memory.
        is_far = self._system.type_name != "local"
        with (
            open_file(self._system, file) as source,
            _explained(f"row group {number} of {file.path}"),
            parquet.ParquetFile(
                source,
                metadata=self._footers.get(place),
                buffer_size=_BUFFER_BYTES,
                pre_buffer=is_far,
            ) as opened,
        ):
            self._footers[place] = footer = opened.metadata
            while len(self._footers) > _FOOTERS:
                self._footers.popitem(last=False)
            self.file_bytes += _column_bytes(footer.row_group(number), manifest.read_columns)
            decoding = opened.iter_batches(size, [number], columns=manifest.read_columns, use_threads=False)
            with closing(decoding):
                for batch in decoding:
                    self.decoded += batch.num_rows
                    left = _left(batch, mask, at)
                    at += batch.num_rows
                    if left.num_rows:
                        yield left
            raise pa.ArrowInvalid("fewer rows than its footer says")

    # -- reading ahead --------------------------------------------------------------------------

    def _read_ahead(self, order: Order, parts: Sequence[Part]) -> None:
        """Let the thread read the chunks that are needed next."""
        last = {part.stream: part for part in parts}
        coming: list[tuple[float, int, int]] = []
        for stream, part in last.items():
            if part.chunk + 1 < order.chunks(stream):
                left = order.rows(stream, part.chunk) - part.end
                coming.append((left / max(1, int(order.lengths[stream])), stream, part.chunk + 1))
        with self._keeping:
            wanted = [
                (stream, number)
                for _, stream, number in sorted(coming)[:_AHEAD]
                if (order.seed, stream, number) not in self._chunks
            ]
        if wanted and self._asked.empty():
            self._asked.put((order, wanted))
            if self._thread is None:
                self._stop.clear()
                self._thread = threading.Thread(target=self._serve, name=_READ_AHEAD, daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        """Read chunks that are asked for, until the task ends."""
        while (asked := self._asked.get()) is not None:
            order, wanted = asked
            for stream, number in wanted:
                # The task that needs these rows will find what is wrong with them.
                with self._reading, suppress(Exception):
                    if self._is_wanted(order, stream, number):
                        self._chunk(order, stream, number)

    def _is_wanted(self, order: Order, stream: int, number: int) -> bool:
        """Tell whether a chunk that was to be read ahead still is, and has room."""
        if self._stop.is_set() or self._at.get((order.seed, stream), number) >= number:
            return False
        with self._keeping:
            return self._rows() + self.manifest.window <= self._most_rows

    def stop(self) -> None:
        """End the thread that reads ahead."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            self._asked.put(None)
            thread.join()
            self._asked = SimpleQueue()

    def bytes_since(self) -> int:
        """Return how much ``file_bytes`` has grown since the last call."""
        before, self._counted = self._counted, self.file_bytes
        return self._counted - before

    def close(self) -> None:
        """Close files, and forget all that is kept."""
        self.stop()
        while self._cursors:
            self._cursors.popitem()[1].close()
        self._chunks.clear()


def _room(plan: ColumnPlan, rows: int) -> Array:
    """Return room for so many rows of a column, whose dtype and shape are known."""
    if plan.ragged:
        return np.empty(rows, object)
    return np.empty((rows, *(plan.shape or ())), plan.dtype)


def first_rows(manifest: ScanManifest, rows: int, storage: Storage = NO_STORAGE) -> dict[str, Array]:
    """Return the first rows by column key, dtypes and shapes maybe open; DataError names a bad row."""
    from pyarrow import parquet

    system, _ = file_system(manifest.where, storage)
    found: dict[str, list[Any]] = {plan.source: [] for plan in manifest.columns}
    left = rows
    for group in np.flatnonzero(manifest.rows).tolist():
        if left <= 0:
            break
        with (
            open_file(system, manifest.files[manifest.file[group]]) as source,
            parquet.ParquetFile(source) as file,
        ):
            number = int(manifest.number[group])
            names, mask, at = manifest.read_columns, manifest.mask(group), 0
            size = left if mask is None else max(left, _FILTERED)
            for batch in file.iter_batches(size, [number], columns=names, use_threads=False):
                some = _left(batch, mask, at).slice(0, left)
                at += batch.num_rows
                for name, columns in found.items():
                    columns.append(manifest.column(group, some, name))
                left -= some.num_rows
                if left <= 0:
                    break
    whole = {name: pa.concat_arrays(columns) for name, columns in found.items()}
    return {plan.key: from_arrow(plan, whole[plan.source], manifest.name_row) for plan in manifest.columns}


def _left(batch: pa.RecordBatch, mask: Array | None, at: int) -> pa.RecordBatch:
    """Return the rows of a batch that a filter leaves; it begins at a row of its row group."""
    if mask is None:
        return batch
    some = mask[at : at + batch.num_rows]
    batch = batch.slice(0, len(some))  # of the first rows of a Dataset the mask may end before the row group
    return batch if some.all() else batch.filter(pa.array(some))


class _Cursor:
    """A row group read from one end to the other, and written to ``draft`` on the way.

    ``file`` is ``None`` if the rows come from the cache; ``end`` is the number after the last row; ``next``
    that of the one that comes next.
    """

    def __init__(
        self,
        batches: Generator[pa.RecordBatch],
        begin: int,
        end: int,
        file: File | None = None,
        draft: Draft | None = None,
    ) -> None:
        self._batches, self._draft = batches, draft
        self.next, self.end = begin, end
        self.file = file
        self._left: pa.RecordBatch | None = None  # of the last batch

    def take(self, most: int) -> tuple[int, pa.RecordBatch]:
        """Return the next rows, up to so many, after the number of their first row."""
        if self._left is None:
            self._left = next(self._batches)
            if self._draft is not None:
                self._draft.write(self._left)
            if self.next + self._left.num_rows >= self.end:
                self._batches.close()  # the file, and what was decoded: these rows are the last ones
        found = self._left.slice(0, most)
        self._left = self._left.slice(most) if self._left.num_rows > most else None
        at, self.next = self.next, self.next + found.num_rows
        return at, found

    def close(self, *, is_whole: bool = False) -> None:
        """Close the file; rows of a whole group, which is checked, stay in the cache."""
        self._batches.close()
        if self._draft is not None:
            self._draft.close(is_whole=is_whole)


def _column_bytes(group: Any, names: Sequence[str]) -> int:
    """Return the compressed bytes of some columns, which may be nested."""
    columns = (group.column(n) for n in range(group.num_columns))
    wanted = tuple(f"{name}." for name in names)
    return sum(c.total_compressed_size for c in columns if f"{c.path_in_schema}.".startswith(wanted))


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Say of errors of Arrow which file they come from."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{where} cannot be read: {' '.join(str(error).split())}") from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, StopIteration) as error:
        raise DataError(f"{where} cannot be read: {error!r}", code="data-source") from error


# -- of this process ----------------------------------------------------------------------------

_readers: OrderedDict[tuple[str, int], Reader] = OrderedDict()
"""By store and checksum: a Dataset that was released has other files, perhaps, under the same name."""


def reader_of(token: Token) -> Reader:
    """Return this process's reader of a scan, made at first use."""
    key = token.store, token.content
    reader = _readers.get(key)
    if reader is None:
        folder = locate(token)
        try:
            manifest = ScanManifest.unpack((folder / MANIFEST).read_bytes())
            reading = json.loads((folder / READING).read_bytes())
        except FileNotFoundError:
            raise PartitionMissingError(str(folder)) from None
        _close_gone()
        for name in list(_readers)[: max(0, len(_readers) + 1 - _READERS)]:
            _readers.pop(name).close()
        cache = None
        if reading["cache_bytes"]:
            # By the files' checksum: a Dataset that is released leaves what is on an executor that is busy.
            folders = store_folders(token.store, f"{FOLDER}-{token.content:x}")
            cache = RowGroupCache(folders, reading["cache_bytes"])
        reader = _readers[key] = Reader(manifest, folder, reading["storage"], cache)
    _readers.move_to_end(key)
    return reader


def stop_reading() -> None:
    """End all threads of this process that read ahead, at the end of a task."""
    for reader in _readers.values():
        reader.stop()
    _close_gone()


def _close_gone() -> None:
    """Forget what is in memory of Datasets that were released, and close their files."""
    gone = [name for name, r in _readers.items() if r.folder is not None and not r.folder.exists()]
    for name in gone:
        _readers.pop(name).close()


@dataclass(frozen=True, slots=True)
class Reading:
    """Task that runs another one, and leaves no thread that reads ahead."""

    task: Task

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterator[bytes | Parts]:
        """Yield what the task yields."""
        try:
            yield from self.task(partition, frames)
        finally:
            stop_reading()
