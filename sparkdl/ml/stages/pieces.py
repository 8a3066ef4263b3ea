"""Scored rows in a folder, as pieces: Parquet files that appear at once, whoever writes them.

::

    path/_sparkdl_score.json                       which model and which rows
         part-00003-00007-10000-<digest>.parquet   piece 7 of partition 3, of 10,000 rows
         _SUCCESS                                  all pieces are there

A piece is named by its place and by a digest of its rows in their order. Each attempt of a task writes the
same file, so that it does not matter how many there are, or which driver they belong to. Rows that come in
another order have another digest, which is an error.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from sparkdl._spark.tasks import partition_id
from sparkdl.access.models import digest_of
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml.stages.forgiving import ForgivingScorer
from sparkdl.ml.stages.scorer import Scorer
from sparkdl.train.checkpoint.store import CheckpointStore, join

MARK = "_sparkdl_score.json"
SUCCESS = "_SUCCESS"
REPORT = "partition int, rows long"
"""Columns of what a task yields."""

_NAME = re.compile(r"part-([0-9]{5,})-([0-9]{5,})-([0-9]+)-([0-9a-f]{32})\.parquet", re.ASCII)
_DRAFT = re.compile(r"\.part-[0-9]{5,}-[0-9]{5,}\.[0-9a-f]{32}", re.ASCII)
_ORDER = (
    "the DataFrame gives other rows than before, or the same in another order. Rows that leave a shuffle "
    "come in any order: sort them with df.sortWithinPartitions(key), or write them to Parquet and score that"
)


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A piece that is there."""

    partition: int  # of the DataFrame
    number: int  # of the piece in its partition
    rows: int  # of the DataFrame that are in it
    digest: str  # of these, in their order

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"part-{self.partition:05d}-{self.number:05d}-{self.rows}-{self.digest}.parquet"


class Pieces:
    """The folder, as a driver or a task sees it; raises ConfigError if the path cannot be opened."""

    def __init__(self, path: str) -> None:
        self._store = CheckpointStore(path)
        self._path = path

    def mark(self) -> bytes | None:
        """Return what was begun here; ``None`` if nothing was."""
        entries = self._store.entries(self._store.root)
        if MARK in entries:
            return self._store.read(join(self._store.root, MARK))
        if entries:
            raise ConfigError(
                f"path={self._path!r} holds {min(entries)!r}, and no job of score(): choose another folder",
                code="config-saved",
            )
        return None

    def begin(self, mark: bytes) -> None:
        """Note what the folder is for."""
        self._store.make(self._store.root)
        self._store.write_whole(join(self._store.root, MARK), [mark])

    def check(self, mark: str) -> None:
        """Check in a task that this is the folder that the driver means."""
        place = join(self._store.root, MARK)
        found = self._store.read(place) if self._store.exists(place) else None
        if found is None:
            raise ConfigError(
                f"path={self._path!r}: an executor does not see the folder; take one that all machines "
                "share, or a URL that fsspec opens"
            )
        if digest_of(found) != mark:
            raise ConfigError(
                f"path={self._path!r}: another job has begun in this folder", code="config-resume"
            )

    def present(self) -> list[StoredPiece]:
        """Return the pieces that are there."""
        found = map(_NAME.fullmatch, self._store.entries(self._store.root))
        return [StoredPiece(int(m[1]), int(m[2]), int(m[3]), m[4]) for m in found if m is not None]

    def by_partition(self) -> dict[int, dict[int, StoredPiece]]:
        """Return them by partition and number; raises DataError if there are two of one number."""
        found: dict[int, dict[int, StoredPiece]] = {}
        for piece in self.present():
            if found.setdefault(piece.partition, {}).setdefault(piece.number, piece) != piece:
                raise DataError(
                    f"partition {piece.partition}, piece {piece.number}: {_ORDER}", code="data-changed"
                )
        return found

    def finish(self) -> None:
        """Delete what attempts that were killed have left, and say that all pieces are there."""
        for name in self._store.entries(self._store.root):
            if _DRAFT.fullmatch(name):
                with suppress(OSError):
                    self._store.delete(join(self._store.root, name))
        self._store.write_whole(join(self._store.root, SUCCESS), [b""])

    @contextmanager
    def writing(
        self, partition: int, number: int, schema: pa.Schema
    ) -> Iterator[tuple[parquet.ParquetWriter, Callable[[StoredPiece], None]]]:
        """Give a writer, and what is called at the end with the piece, upon which the file appears."""
        draft = join(self._store.root, f".part-{partition:05d}-{number:05d}.{uuid.uuid4().hex}")
        pieces: list[StoredPiece] = []
        with tempfile.TemporaryDirectory() as folder:
            local = draft if self._store.local else os.path.join(folder, "piece")
            try:
                with parquet.ParquetWriter(local, schema) as writer:
                    yield writer, pieces.append
                target = join(self._store.root, pieces[0].name)
                if self._store.local:
                    with open(local, "rb") as file:
                        os.fsync(file.fileno())
                    os.replace(local, target)
                    self._store.sync(self._store.root)
                else:
                    self._store.fs.put_file(local, draft)
                    self._store.fs.mv(draft, target)
            except BaseException:
                if os.path.exists(local):
                    os.remove(local)
                raise


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceTask:
    """Scores the rows of a partition and writes them, but for the pieces that are there already.

    It is a function for ``mapInArrow``. The last of its columns is a hash of each row.
    """

    path: str  # the folder
    mark: str  # digest of what it is for
    size: int  # rows of a piece
    scorer: Scorer | ForgivingScorer  # scores some of the columns
    arguments: tuple[int, ...]  # places of these columns
    width: int  # so many columns come first, and are written
    names: tuple[str, ...]  # of the columns that are added
    metadata: Mapping[str, str]  # of the files
    empty: bytes  # columns of a file without rows, as Arrow has them
    writes: bool = True  # whether to write; else rows are compared with the pieces that are there

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a report, one row, when all pieces are written.

        Raises DataError for other rows than before, or one that cannot be scored, or ModelError.
        """
        partition = partition_id()
        folder, rest = Pieces(self.path), _Rest(batches)
        folder.check(self.mark)
        there = folder.by_partition().get(partition, {})
        last = max(there, default=-1)
        rows = 0
        for number in count():
            if number > last and not self.writes:
                break
            digest = hashlib.blake2b(digest_size=16)
            taken = rest.take(self.size, digest)
            if number in there or not self.writes:
                found = sum(batch.num_rows for batch in taken)
                if number in there and (found, digest.hexdigest()) != (
                    there[number].rows,
                    there[number].digest,
                ):
                    raise DataError(
                        f"partition {partition}, rows {rows} to {rows + self.size - 1}: {_ORDER}",
                        code="data-changed",
                    )
            else:
                first = next(taken, None)
                if first is None:
                    break
                found = self._write(folder, partition, number, chain([first], taken), rows, digest)
            rows += found
        yield pa.RecordBatch.from_arrays(
            [pa.array([partition], pa.int32()), pa.array([rows], pa.int64())], ["partition", "rows"]
        )

    def _write(
        self,
        folder: Pieces,
        partition: int,
        number: int,
        batches: Iterator[pa.RecordBatch],
        at: int,
        digest: Any,
    ) -> int:
        """Write a piece, and return its rows."""
        waiting: list[pa.RecordBatch] = []
        rows = 0

        def arguments() -> Iterator[tuple[pa.Array, ...]]:
            for batch in batches:
                waiting.append(batch)
                yield tuple(batch.column(place) for place in self.arguments)

        results = self.scorer.score(arguments(), at)
        first = next(results)
        given = waiting[0].schema
        schema = self._schema(given, first.type)
        with folder.writing(partition, number, schema) as (writer, keep):
            for found in chain([first], results):
                rows += len(found)
                table = pa.Table.from_batches(waiting, given)
                waiting[:] = table.slice(len(found)).to_batches()
                columns = [*table.slice(0, len(found)).columns[: self.width], *found.flatten()]
                writer.write_table(pa.Table.from_arrays(columns, schema=writer.schema))
            keep(StoredPiece(partition, number, rows, digest.hexdigest()))
        return rows

    def _schema(self, given: pa.Schema, added: pa.StructType) -> pa.Schema:
        """Return the columns of a file."""
        fields = [given.field(n) for n in range(self.width)]
        fields += [pa.field(name, added.field(n).type) for n, name in enumerate(self.names)]
        return pa.schema(fields, metadata=dict(self.metadata))

    def finish(self, rows: Mapping[int, int], expected: int) -> None:
        """Check that all pieces are there, once each, and say so in the folder."""
        folder = Pieces(self.path)
        there = folder.by_partition()
        for partition in {*rows, *there}:
            found, total = there.get(partition, {}), rows.get(partition, 0)
            sizes = [min(self.size, total - begin) for begin in range(0, total, self.size)]
            if [found[n].rows for n in sorted(found)] != sizes:
                raise DataError(f"partition {partition}: {_ORDER}", code="data-changed")
        if sum(rows.values()) != expected:
            raise DataError(
                f"{sum(rows.values())} rows came, and {expected} when they were counted: {_ORDER}",
                code="data-changed",
            )
        if not expected:
            schema = pa.ipc.read_schema(pa.py_buffer(self.empty)).with_metadata(dict(self.metadata))
            with folder.writing(0, 0, schema) as (_, keep):
                keep(StoredPiece(0, 0, 0, "0" * 32))
        folder.finish()


class _Rest:
    """The rows of a task that are still to come."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._left: pa.RecordBatch | None = None
        self.taken = 0

    def take(self, rows: int, digest: Any) -> Iterator[pa.RecordBatch]:
        """Yield the next rows, at most so many; their hashes, the last column, go into a digest."""
        self.taken = 0
        while self.taken < rows:
            batch = self._left if self._left is not None else next(self._batches, None)
            self._left = None
            if batch is None:
                return
            if batch.num_rows > rows - self.taken:
                self._left = batch.slice(rows - self.taken)
                batch = batch.slice(0, rows - self.taken)
            if batch.num_rows:
                self.taken += batch.num_rows
                hashes = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False)
                digest.update(hashes.tobytes())
                yield batch
