"""Decoded row groups on an executor's disk, which its tasks read in place of the files from then on.

They are hints: a group that is not there is read from its file again. All Python processes of an executor
share them, and they go with the Dataset's other files.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkdl.wire.private import FILE_MODE, make_folder, opener

FOLDER = "row-groups"
"""Begins the name of the folder, beside those of partitions; a checksum of the scan ends it."""

_TOTAL = "bytes"


class RowGroupCache:
    """Row groups that an executor keeps, a folder on each disk; none is written beyond ``most`` bytes."""

    def __init__(self, folders: Sequence[Path], most: int) -> None:
        self._folders = folders
        self._most = most
        self._is_full = False

    def batches(self, group: int) -> Generator[pa.RecordBatch] | None:
        """Return the rows of a group; ``None`` if it is not there.

        A file that cannot be read is removed, and ``OSError`` raised: who tries again reads the table's file.
        """
        path = self._path(group)
        try:
            mapped = pa.memory_map(str(path))
        except OSError:
            return None
        return _read(mapped, path)

    def draft(self, group: int) -> Draft | None:
        """Return what a group is written to; ``None`` if there is no room."""
        return None if self._is_full else Draft(self, self._path(group))

    def keep(self, draft: Path, final: Path) -> None:
        """Give a whole group its name, if there is room for it."""
        size = draft.stat().st_size
        make_folder(self._folders[0])
        with open(self._folders[0] / _TOTAL, "a+", encoding="ascii", opener=opener) as total:
            fcntl.flock(total, fcntl.LOCK_EX)  # other processes of the executor write, too
            total.seek(0)
            before = int(total.read() or 0)
            self._is_full = self._is_full or before + size > self._most
            if self._is_full or final.exists():
                draft.unlink()
                return
            draft.rename(final)
            total.truncate(0)
            total.write(str(before + size))

    def stop(self) -> None:
        """Write nothing any more: the disk is full, perhaps."""
        self._is_full = True

    def _path(self, group: int) -> Path:
        return self._folders[group % len(self._folders)] / str(group)


class Draft:
    """A row group that is being written, one batch after the other. What fails here fails nothing else."""

    def __init__(self, cache: RowGroupCache, final: Path) -> None:
        self._cache, self._final = cache, final
        self._path = final.with_name(f"{final.name}.{uuid.uuid4().hex}")
        self._file: Any = None
        self._writer: Any = None
        self._has_failed = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Write some rows."""
        if self._has_failed:
            return
        try:
            if self._writer is None:
                make_folder(self._final.parent)
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, FILE_MODE))
                self._file = pa.OSFile(str(self._path), "wb")
                self._writer = pa.ipc.new_stream(self._file, batch.schema)
            self._writer.write_batch(batch)
        except (OSError, pa.ArrowException):
            self._give_up()

    def close(self, *, is_whole: bool) -> None:
        """End it: a whole group is kept."""
        if self._writer is None:
            return
        try:
            self._writer.close()
            self._file.close()
            if is_whole:
                self._cache.keep(self._path, self._final)
            else:
                self._path.unlink()
        except (OSError, pa.ArrowException):
            self._give_up()
        self._writer = None

    def _give_up(self) -> None:
        self._cache.stop()
        self._has_failed = True
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)
        self._file = self._writer = None


def _read(mapped: Any, path: Path) -> Generator[pa.RecordBatch]:
    try:
        with mapped, pa.ipc.open_stream(mapped) as batches:
            yield from batches
        raise OSError("it ends too early")
    except (OSError, pa.ArrowException) as error:
        path.unlink(missing_ok=True)
        raise OSError(f"{path} cannot be read: {error}") from error
