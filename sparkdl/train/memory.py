"""A Python worker's memory: what is freed is kept for the next iteration, what stays is not searched."""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Tell the C library not to give freed memory back to the system.

    An iteration allocates several times the size of the weights and frees it again: frames, gradients,
    copies. By default large blocks are mapped afresh each time, and the system fills them with zeros page by
    page, for 0.7 ms per MB, several times what it takes to write them. The process stays as large as it has
    once been; Spark ends it after a minute without a task.

    Only glibc can be told; with others nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)


def exempt_objects() -> None:
    """Exempt all objects so far from garbage collection.

    PySpark's daemon collects after every task, and walking torch's objects takes 80 ms or more.
    """
    gc.collect()
    gc.freeze()
