"""A Python worker's memory: freed blocks are reused, long-lived objects exempt from garbage collection."""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_NEVER = 2**31 - 1
_LARGE = 16 << 20
"""Blocks of this size and more are mapped: in holes between others few would fit, and each hole is a loss."""

_MOST_FREE = 32 << 20  # freed memory above this size is returned to the system at the next check


def keep_freed_memory() -> None:
    """Tell the C library to keep freed memory, except large blocks.

    An iteration allocates several times the size of the weights and frees it again: frames, gradients,
    copies. By default the C library maps large blocks anew each time, and the system fills them with zeros
    page by page. This takes 0.7 ms per MB, several times as long as writing them. The process never shrinks,
    except by :func:`trim_memory`; Spark ends it after a minute without a task.

    This works with glibc only; with other libraries nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)


class _Usage(ctypes.Structure):
    """The C library's ``struct mallinfo2``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def trim_memory() -> None:
    """Give freed memory back to the system if there is much of it.

    New blocks fit less and less often into the holes between live blocks, so the kept memory grows: by half a
    MB per iteration of 10 million parameters.

    This works with glibc 2.33 and later only; with other libraries nothing happens.
    """
    try:
        library = ctypes.CDLL(None)
        usage, trim = library.mallinfo2, library.malloc_trim
    except (OSError, AttributeError):
        return
    usage.restype = _Usage
    now = usage()
    if now.fordblks > _MOST_FREE:
        trim(ctypes.c_size_t(0))


def exempt_objects() -> None:
    """Exempt all objects so far from garbage collection.

    PySpark's daemon collects after every task, and walking torch's objects takes 80 ms or more.
    """
    gc.collect()
    gc.freeze()
