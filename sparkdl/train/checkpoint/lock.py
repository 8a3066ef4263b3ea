"""A lock on a file or folder that ends with its process.

The kernel's lock belongs to whoever has the open file, and a forked child has it too: it would go on holding
the lock of a parent that was killed. So children close the file as soon as they begin.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet


class Lock:
    """An open file or folder to be locked; raises OSError if it cannot be opened."""

    def __init__(self, path: str, flags: int = os.O_RDONLY) -> None:
        self._handle = os.open(path, flags, 0o644)
        _open.add(self)

    def take(self, *, wait: bool) -> None:
        """Lock it; BlockingIOError if taken and not waited for, OSError or ImportError without locks."""
        import fcntl

        fcntl.flock(self._handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def fileno(self) -> int:
        """Return the open file's number."""
        return self._handle

    def close(self) -> None:
        """Give it back."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    __del__ = close


_open: WeakSet[Lock] = WeakSet()


def _close_in_child() -> None:
    for lock in list(_open):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


_of_process = threading.RLock()


@contextmanager
def alone_in(folder: str) -> Iterator[None]:
    """Let one program at a time work in a local folder, where its file system has locks."""
    with _of_process:
        lock = Lock(folder)
        try:
            try:
                lock.take(wait=True)
            except (OSError, ImportError):
                pass  # without locks, files still appear at once
            yield
        finally:
            lock.close()
