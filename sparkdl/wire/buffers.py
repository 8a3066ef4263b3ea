"""Large arrays whose memory is reused after their last reference is gone.

Every iteration needs the same number of arrays of the size of a shard. By default the C library gets new
pages from the system each time, and the system fills them with zeros, at 0.5 ms per MB. If the C library
keeps freed memory, the holes between live arrays fit less and less often, and the process grows with each
iteration.
"""

from __future__ import annotations

import weakref
from collections import defaultdict

import numpy as np

from sparkdl.wire.frame import Array

_SMALL = 256 << 10  # arrays of up to this size are not worth the bookkeeping

_GRAIN = 1 << 16  # sizes are rounded up, so that frames whose headers differ a little can follow each other

_free: defaultdict[int, list[Array]] = defaultdict(list)


def empty(nbytes: int) -> Array:
    """Return so many bytes of memory with any content, as an array of dtype uint8."""
    if nbytes <= _SMALL:
        return np.empty(nbytes, np.uint8)
    size = -(-nbytes // _GRAIN) * _GRAIN
    owner = _free[size].pop() if _free[size] else np.empty(size, np.uint8)
    # All views refer to this array: numpy does not look behind a memoryview for the memory's owner.
    array: Array = np.frombuffer(owner.data, np.uint8, nbytes)
    weakref.finalize(array, _free[size].append, owner).atexit = False
    return array


def empty_like(array: Array) -> Array:
    """Return an array like a contiguous one, with any content."""
    return empty(array.nbytes).view(array.dtype).reshape(array.shape)


def copy(array: Array) -> Array:
    """Return a copy of a contiguous array."""
    copied = empty_like(array)
    np.copyto(copied, array)
    return copied


def release() -> None:
    """Free all memory that has no references."""
    _free.clear()
