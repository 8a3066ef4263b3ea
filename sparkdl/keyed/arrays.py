"""Arrays that grow, in memory or in files of the executor's local directories.

The files have no name from the moment on in which they are made: nobody else can open them, and the system
deletes them with the array or the process, whatever ends it.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from typing import Any

import numpy as np

from sparkdl.frame import Array

_LEAST = 64
_LEAST_BYTES = 64 << 10


class InMemory:
    """An array in memory, which doubles when it grows; new elements are zero.

    Args:
        dtype: of an element.
        shape: of an element.

    Attributes:
        values: the array.
    """

    def __init__(self, dtype: Any, *shape: int) -> None:
        self.values: Array = np.zeros((0, *shape), dtype)

    def grow(self, size: int) -> None:
        """Have room for so many elements."""
        before = self.values
        if size > len(before):
            self.values = np.zeros((max(size, 2 * len(before), _LEAST), *before.shape[1:]), before.dtype)
            self.values[: len(before)] = before


class Mapped:
    """An array in a memory-mapped file, which grows by a quarter: nothing is copied.

    Args:
        folder: where the file lies.
        dtype: of an element.
        shape: of an element.

    Attributes:
        values: the array.
    """

    def __init__(self, folder: str, dtype: Any, *shape: int) -> None:
        self._folder = folder
        self._file, path = tempfile.mkstemp(dir=folder)  # for its owner alone
        weakref.finalize(self, os.close, self._file)
        os.unlink(path)
        self.values: Array = np.zeros((0, *shape), dtype)
        self._row = self.values.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self._map: mmap.mmap | None = None

    def grow(self, size: int) -> None:
        """Have room for so many elements.

        Raises:
            OSError: if the disk is full.
        """
        before = self.values
        if size <= len(before):
            return
        nbytes = max(size * self._row, len(before) * self._row * 5 // 4, _LEAST_BYTES)
        nbytes += -nbytes % mmap.PAGESIZE
        try:
            os.posix_fallocate(self._file, 0, nbytes)  # a full disk is an error here, not a signal later
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise OSError(
                error.errno,
                f"rows of embedding variables need a file of {nbytes >> 20} MiB in {self._folder}: "
                f"{error.strerror}; free some space, give Spark other local directories "
                "(spark.local.dir), or leave row_memory out",
            ) from None
        self._map = mmap.mmap(self._file, nbytes)
        self._map.madvise(mmap.MADV_RANDOM)  # one row is wanted, not those around it
        count = nbytes // self._row
        flat = np.frombuffer(self._map, before.dtype, count * (self._row // before.dtype.itemsize))
        self.values = flat.reshape(count, *before.shape[1:])

    def trim(self) -> None:
        """Take the pages out of this process's memory; the system writes them when it likes."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)


class Reserved:
    """Address space for an array; its memory is taken when elements are first used.

    Args:
        most: elements.
        dtype: of an element.
        shape: of an element.

    Attributes:
        values: the array; all zero at first.
    """

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
