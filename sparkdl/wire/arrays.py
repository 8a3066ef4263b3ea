"""Arrays that grow, in memory or in files of the executor's local directories; records in such files.

The files have no name from the moment on in which they are made: nobody else can open them, and the system
deletes them with the array or the process, whatever ends it.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.wire.frame import Array

_LEAST = 64
_LEAST_BYTES = 64 << 10

_TRIED, _ASKED = 128, 1024
_SLOW_SECONDS = 6e-6
"""What lies in the system's memory takes less, asked for before or not; what comes from a disk takes more."""

_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_maps_lock = threading.Lock()

LARGE = 16 << 20
"""Who has read or written so many bytes of mapped files lets their pages go: :func:`trim_all`."""

Numbers = NDArray[np.signedinteger[Any]]


class InMemory:
    """An array in memory, which doubles when it grows; new elements are zero."""

    def __init__(self, dtype: Any, *shape: int) -> None:
        self.values: Array = np.zeros((0, *shape), dtype)

    def grow(self, size: int) -> None:
        """Have room for so many elements."""
        before = self.values
        if size > len(before):
            self.values = np.zeros((max(size, 2 * len(before), _LEAST), *before.shape[1:]), before.dtype)
            self.values[: len(before)] = before


class Mapped:
    """An array in a memory-mapped file, which grows by a quarter: nothing is copied."""

    def __init__(self, folder: str, dtype: Any, *shape: int) -> None:
        self._folder = folder
        self._file = _nameless(folder)
        weakref.finalize(self, os.close, self._file)
        self.values: Array = np.zeros((0, *shape), dtype)
        self._row = self.values.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self._map: mmap.mmap | None = None

    def grow(self, size: int) -> None:
        """Have room for so many elements; raises OSError if the disk is full."""
        before = self.values
        if size <= len(before):
            return
        nbytes = max(size * self._row, len(before) * self._row * 5 // 4, _LEAST_BYTES)
        nbytes += -nbytes % mmap.PAGESIZE
        _allocate(self._file, nbytes, self._folder)
        self._map = mmap.mmap(self._file, nbytes)
        self._map.madvise(mmap.MADV_RANDOM)  # one row is wanted, not those around it
        with _maps_lock:
            _maps.add(self._map)
        count = nbytes // self._row
        flat = np.frombuffer(self._map, before.dtype, count * (self._row // before.dtype.itemsize))
        self.values = flat.reshape(count, *before.shape[1:])

    def trim(self) -> None:
        """Take the pages out of this process's memory; the system writes them when it likes."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)


class Records:
    """Records of a file, which are read and written by number.

    They are not mapped: the system may keep them in memory that is its own, but none of it is this process's.
    """

    def __init__(self, folder: str, nbytes: int) -> None:
        self._folder, self.nbytes = folder, nbytes
        self._file = _nameless(folder)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)  # one is wanted, not those around it
        weakref.finalize(self, os.close, self._file)
        self._room = 0
        self._slow = False

    def grow(self, count: int) -> None:
        """Have room for so many records; raises OSError if the disk is full."""
        if count > self._room:
            count = max(count, self._room * 5 // 4, _LEAST_BYTES // self.nbytes)
            _allocate(self._file, count * self.nbytes, self._folder)
            self._room = count

    def read(self, numbers: Numbers, begin: int = 0, stop: int | None = None) -> Array:
        """Return some bytes of records, shape (records, bytes)."""
        width = (self.nbytes if stop is None else stop) - begin
        made = np.empty((len(numbers), width), np.uint8)
        if len(numbers):
            order, runs = self._runs(numbers, begin, width)
            made[order] = np.frombuffer(b"".join(self._parts(runs)), np.uint8).reshape(-1, width)
        return made

    def write(self, numbers: Numbers, values: Array, begin: int = 0) -> None:
        """Write some bytes of records, each given once."""
        if not len(numbers):
            return
        order, runs = self._runs(numbers, begin, values.shape[1])
        ordered: Any = values[order].reshape(-1)
        flat = memoryview(ordered)
        at, file = 0, self._file
        for offset, length in runs:
            os.pwrite(file, flat[at : at + length], offset)
            at += length

    def _runs(self, numbers: Numbers, begin: int, width: int) -> tuple[Numbers, list[tuple[int, int]]]:
        """Return the order of records in the file, and where in it which bytes lie side by side."""
        order = np.argsort(numbers)
        ordered = numbers[order].astype(np.int64)
        first = np.ones(len(ordered), np.bool_)
        if width == self.nbytes:
            first[1:] = np.diff(ordered) != 1
        at = np.flatnonzero(first)
        lengths = np.diff(at, append=len(ordered)) * width
        # Linux reads and writes less than 2 GiB at once; blocks are smaller.
        return order, list(zip((ordered[at] * self.nbytes + begin).tolist(), lengths.tolist(), strict=True))

    def _parts(self, runs: list[tuple[int, int]]) -> Iterator[bytes]:
        """Yield what lies there; if it is on the disk alone, many parts are asked for at once."""
        file, begin = self._file, 0
        while begin < len(runs):
            some = runs[begin : begin + (_ASKED if self._slow else _TRIED)]
            before = time.perf_counter()
            if self._slow:
                for offset, length in some:
                    os.posix_fadvise(file, offset, length, os.POSIX_FADV_WILLNEED)
            yield from [os.pread(file, length, offset) for offset, length in some]
            self._slow = time.perf_counter() - before > _SLOW_SECONDS * len(some)
            begin += len(some)


class Grown:
    """An array in memory that grows without being in memory twice; new elements are zero."""

    def __init__(self, dtype: Any) -> None:
        self._held = Reserved(_LEAST, dtype)
        self.values = self._held.values

    def grow(self, size: int) -> None:
        """Have room for so many elements."""
        before, held = self.values, self._held
        if size <= len(before):
            return
        self._held = Reserved(max(size, len(before) * 5 // 4), before.dtype)
        self.values = self._held.values
        # From the end, for memory is given back from there on.
        step = _LEAST_BYTES << 6
        for stop in range(len(before), 0, -step):
            begin = max(0, stop - step)
            self.values[begin:stop] = before[begin:stop]
            held.free(begin)


class Reserved:
    """Address space for an array; its memory is taken when elements are first used."""

    def __init__(self, most: int, dtype: Any, *shape: int) -> None:
        self._row = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        nbytes = max(mmap.PAGESIZE, most * self._row)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._map = mmap.mmap(-1, nbytes, flags=flags)
        count = most * (self._row // np.dtype(dtype).itemsize)
        self.values: Array = np.frombuffer(self._map, dtype, count).reshape(most, *shape)

    def free(self, first: int) -> None:
        """Give the memory of the elements from a number on back."""
        begin = first * self._row
        begin += -begin % mmap.PAGESIZE
        if begin < len(self._map):
            self._map.madvise(mmap.MADV_DONTNEED, begin, len(self._map) - begin)


def trim_all() -> None:
    """Take the pages of all mapped arrays out of this process's memory, also of those that others view."""
    with _maps_lock:
        maps = list(_maps)
    for one in maps:
        one.madvise(mmap.MADV_DONTNEED)


def _nameless(folder: str) -> int:
    """Return the descriptor of a new file without a name, for its owner alone."""
    file, path = tempfile.mkstemp(dir=folder)
    os.unlink(path)
    return file


def _allocate(file: int, nbytes: int, folder: str) -> None:
    """Have a file of so many bytes."""
    try:
        os.posix_fallocate(file, 0, nbytes)  # a full disk is an error here, not a signal later
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise OSError(
            error.errno,
            f"rows of embedding variables need a file of {nbytes >> 20} MiB in {folder}: "
            f"{error.strerror}; free some space, give Spark other local directories "
            "(spark.local.dir), or leave row_memory out",
        ) from None
