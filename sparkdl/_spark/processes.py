"""Python processes that wait for an executor's tasks: how many there are, and the end of surplus ones.

A task of two Python stages, say of a Python function over a DataFrame and of what reads its rows, takes two
processes. Both stay, and tasks of one stage take turns on them from then on.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl.wire.private import local_folders, opener

LINGER_SECONDS = 0.1
"""Where an executor has several task slots, a task stays so long that each gets a process of its own."""

_POLL_SECONDS = 0.002
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class TaskMeeting:
    """The tasks of a job on an executor wait for each other, so that each gets a process of its own."""

    tasks: int  # how many run there at a time; with one there is nothing to wait for
    name: str = field(default_factory=lambda: f"meeting-{uuid.uuid4().hex}")  # of the file in which they sign

    def wait(self) -> None:
        """Wait until all have come, for ``LINGER_SECONDS`` at most: other jobs may have their slots."""
        if self.tasks == 1:
            return
        file, end = local_folders()[0] / self.name, time.monotonic() + LINGER_SECONDS
        try:
            with open(file, "ab", opener=opener) as signed:
                signed.write(b"x")
        except OSError:  # the disk is full, perhaps
            time.sleep(LINGER_SECONDS)
            return
        with suppress(FileNotFoundError):  # who saw all of them, or waited for too long, has removed it
            while file.stat().st_size < self.tasks and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
            file.unlink()


@dataclass(frozen=True, slots=True)
class EndSurplus:
    """The task that says how many processes take turns, and ends this one if slots have others.

    The oldest ones stay. Spark ends a process that leaves input of its task unread.
    """

    slots: int  # tasks that an executor runs at a time
    linger: float = 0.0  # seconds to stay

    def __call__(self, _: int, frames: Iterator[Any]) -> Iterator[bytes]:
        """Yield the number of processes."""
        global _ends
        time.sleep(self.linger)
        found = siblings()
        _ends = os.getpid() in found[self.slots :]
        if not _ends:
            deque(frames, maxlen=0)
        yield str(len(found)).encode()


def siblings() -> list[int]:
    """Return the ids of the processes that take turns on this executor's tasks, oldest first.

    Those are the ones that the same daemon has forked. Without one, and where the system does not tell, this
    process is alone.
    """
    own, parent = os.getpid(), os.getppid()
    try:
        children = (_PROC / str(parent) / "task" / str(parent) / "children").read_text()
        name = _command(parent)
    except OSError:
        return [own]
    # What the daemon has forked has its command line; of one that has ended nothing is left.
    found = sorted(pid for pid in map(int, children.split()) if _command(pid) == name)
    return found if own in found else [own]


def is_ending() -> bool:
    """Return whether this process gets no other task, and so must not read its input to the end."""
    return _ends


def _command(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


_ends = False
