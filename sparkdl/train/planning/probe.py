"""Memory and place of each executor, as its tasks find them in ``/proc``; and a hook that asks them."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdl._spark.errors import tolerated
from sparkdl.access.base import Access, described
from sparkdl.train.hooks.base import Hook
from sparkdl.wire import frame
from sparkdl.wire.frame import Buffer, Parts

if TYPE_CHECKING:
    from sparkdl.train.run import Run

_RESET_PEAK = "5"
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor, as one of its tasks sees it."""

    host: str  # its machine
    cores: int  # that the machine lets its processes use
    jvm: int  # its process; 0 where there is none
    jvm_bytes: int  # memory of that process
    python_bytes: int  # largest memory of its Python processes since the last reset, added up


@dataclass(frozen=True, slots=True)
class Look:
    """The task that looks."""

    reset: bool = False  # whether the largest memory counts from now on

    def __call__(self, _: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        """Yield what :class:`Executor` holds, as a frame."""
        deque(frames, maxlen=0)
        found = look(self.reset)
        yield frame.pack({name: getattr(found, name) for name in Executor.__slots__})


def look(reset: bool = False) -> Executor:
    """Return the executor of this process."""
    jvm = _jvm_above(os.getpid())
    pythons = _below(jvm) if jvm else [os.getpid()]
    if reset:
        for pid in pythons:
            with suppress(OSError):  # of a process that has ended, or where a container forbids it
                (_PROC / str(pid) / "clear_refs").write_text(_RESET_PEAK)
    return Executor(
        socket.gethostname(),
        len(os.sched_getaffinity(0)),
        jvm,
        _bytes_of(jvm, "VmRSS") if jvm else 0,
        sum(_bytes_of(pid, "VmHWM") for pid in pythons),
    )


def executors_of(access: Access, *, reset: bool = False) -> list[Executor]:
    """Return each executor once, by a small job; none if the job fails."""
    answers: list[bytes] = []
    doing = "sparkdl: look at the executors' memory"
    with described(access, doing), tolerated("the executors' memory is not known"):
        answers = access.run_everywhere(Look(reset))
    found = [Executor(**frame.unpack(answer).meta) for answer in answers]
    return list({(each.host, each.jvm): each for each in found}.values())


class MemoryWatch(Hook):
    """Keeps the executors' memory as it was at the end of the last run."""

    def __init__(self, unfreezes: Sequence[str] = ()) -> None:
        self.unfreezes = unfreezes
        self.executors: list[Executor] = []

    def on_train_begin(self, run: Run) -> None:
        """Let the largest memory count from now on."""
        self.executors = []
        executors_of(run.data.access, reset=True)

    def on_boundary(self, run: Run, last: bool) -> None:
        """Look, before the model leaves the executors."""
        if last and run.error is None:
            self.executors = executors_of(run.data.access)


def _jvm_above(pid: int) -> int:
    """Return the process of Java that has started this one, directly or not; 0 if there is none."""
    while pid > 1:
        if _status(pid).get("Name") == "java":
            return pid
        pid = int(_status(pid).get("PPid", "0"))
    return 0


def _below(pid: int) -> list[int]:
    """Return the processes that a process has started, directly or not; those of Java left out."""
    parents: dict[int, list[int]] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdecimal():
            status = _status(int(folder.name))
            if status.get("Name") != "java":
                parents.setdefault(int(status.get("PPid", "0")), []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        waiting += (children := parents.get(waiting.pop(), []))
        found += children
    return found


def _bytes_of(pid: int, name: str) -> int:
    """Return a size of a process; 0 if it has ended, or the system has no such figure."""
    return int(_status(pid).get(name, "0 kB").split()[0]) << 10


def _status(pid: int) -> dict[str, str]:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
