"""Frames that tasks leave on their executor for later tasks of the same fit.

They are hints: nothing but speed, or a tolerated loss, may depend on them, for an executor can be gone at any
time, and its files with it. Files appear under their names when they are complete. Large ones are mapped, so
that all Python processes of an executor share one copy. Where one process runs all tasks of an executor,
frames that are not too large stay in its memory instead, under the same names: as they were laid out, so
that nobody may change their arrays from then on.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence

from sparkdl.wire import buffers, frame, private
from sparkdl.wire.arrays import LARGE, trim_all
from sparkdl.wire.frame import Buffer, Packed, Parts
from sparkdl.wire.private import local_folders

_ROOT = "sparkdl-fits"
_DRAFT = "draft-"
_LENGTH = struct.Struct("<q56x")  # as long as an array's alignment in a frame
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_MOST_BUFFERS = 1024  # as many as Linux writes at once

_SMALL = 256 << 10  # up to so many bytes reading takes less time than mapping

_MOST_HELD = 1 << 30  # larger files are not held in memory: the system can take a disk's cache back

# Paths are strings in here: for a small model pathlib takes a tenth of a task's time.


class LocalStore:
    """The frames that one fit has on one executor, in a folder that is made with the first file.

    ``in_memory`` says whether this process runs all tasks of the executor, and may hold frames in its memory.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.in_memory = False
        self._held: dict[str, Sequence[Parts]] = {}
        self._lent: set[str] = set()
        self._holding = False

    def leave(self, name: str, frames: Sequence[Packed], *, lent: bool = False) -> None:
        """Leave frames, whose arrays must not change afterwards, for a later task that runs on this executor.

        If ``lent``, their memory will be used for something else, as :meth:`keep_lent` then says.
        """
        if (self.in_memory or self._holding) and sum(map(frame.size, frames)) <= _MOST_HELD:
            self._held[name] = [frame.parts(one) for one in frames]
            if lent:
                self._lent.add(name)
        else:
            self._held.pop(name, None)
            self.write(name, frames)

    def write(self, name: str, frames: Sequence[Packed]) -> None:
        """Write frames as a file, with any number of processes: their arrays may change afterwards."""
        write_file(self._path(name), encode(frames))

    def read(self, name: str) -> Sequence[Packed] | None:
        """Return the frames that were left under a name, or ``None``."""
        found = self._held.get(name)
        if found is not None:
            return found
        data = read_file(self._path(name))
        return None if data is None else list(decode(data))

    def take(self, name: str) -> Sequence[Packed] | None:
        """Return frames that the caller may change, removed from memory, or read-only ones of a file."""
        found = self._held.pop(name, None)
        return self.read(name) if found is None else found

    def forget(self, name: str) -> None:
        """Forget frames if they are held in memory."""
        self._held.pop(name, None)
        self._lent.discard(name)

    def keep_lent(self) -> None:
        """Copy the frames that are still held in memory that is about to be used for something else."""
        for name in self._lent & self._held.keys():
            self._held[name] = [_copy(one) for one in self._held[name]]
        self._lent.clear()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Hold frames in memory for a while: no other process wants them before.

        What is held then is written as files, where other processes run this executor's tasks, too.
        """
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
            if not self.in_memory:
                for name in list(self._held):
                    self.write(name, self._held.pop(name))
                self._lent.clear()

    def link(self, name: str, other: str) -> bool:
        """Let a file have another name, too, held frames that alone; return whether there is one."""
        if name in self._held:
            self._held[other] = self._held.pop(name)
            return True
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(other))  # of an earlier attempt
        try:
            os.link(self._path(name), self._path(other))
        except FileNotFoundError:
            return False
        return True

    def discard(self, outdated: Callable[[str], bool]) -> None:
        """Delete files with outdated names, while other processes do the same.

        Who has mapped a file keeps it.
        """
        self.forget_all(outdated)
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return
        for name in names:
            if not name.startswith(_DRAFT) and outdated(name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(name))

    def forget_all(self, outdated: Callable[[str], bool]) -> None:
        """Forget frames in memory with outdated names."""
        for name in [name for name in self._held if outdated(name)]:
            del self._held[name]

    def delete(self) -> None:
        """Delete everything."""
        self._held.clear()
        self._lent.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"


def fit_folder(fit_id: str) -> str:
    """Return the folder of a fit's files on this executor."""
    return f"{local_folders()[0]}/{_ROOT}/{fit_id}"


def encode(frames: Sequence[Packed]) -> Parts:
    """Write frames one after the other, each after its length."""
    encoded: Parts = []
    for one in frames:
        size = frame.size(one)
        encoded += [_LENGTH.pack(size), *frame.parts(one), bytes(-size % _LENGTH.size)]
    return encoded


def decode(data: Buffer) -> Iterator[Buffer]:
    """Read frames back as views."""
    view, position = memoryview(data), 0
    while position < len(view):
        (size,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        yield view[position : position + size]
        position += size + -size % _LENGTH.size


def write_file(path: str, parts: Parts) -> None:
    """Write a private file that appears under its name when it is complete."""
    folder = os.path.dirname(path)
    draft = f"{folder}/{_DRAFT}{uuid.uuid4().hex}"
    try:
        file = os.open(draft, _WRITE, private.FILE_MODE)
    except FileNotFoundError:
        private.make_folder(folder)
        file = os.open(draft, _WRITE, private.FILE_MODE)
    try:
        try:
            _write(file, parts)
        finally:
            os.close(file)
        os.rename(draft, path)
    except OSError:  # a full disk has no room for drafts
        os.unlink(draft)
        raise


def _write(file: int, parts: Parts) -> None:
    whole = [memoryview(part).cast("B") for part in parts]
    views = [view[at : at + LARGE] for view in whole for at in range(0, len(view), LARGE)]
    while views:
        large = len(views[0]) == LARGE
        written = os.writev(file, views[: 1 if large else _MOST_BUFFERS])
        if large:
            trim_all()
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if written:
            views[0] = views[0][written:]


def read_file(path: str) -> Buffer | None:
    """Return a file's bytes, mapped if they are many, or ``None`` if it is not there."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(file).st_size
        if size > _SMALL:
            return mmap.mmap(file, 0, access=mmap.ACCESS_READ)  # type: ignore[return-value]
        return os.read(file, size)
    finally:
        os.close(file)


def _copy(packed: Packed) -> Parts:
    """Copy a frame into one piece of memory."""
    whole, position = buffers.empty(frame.size(packed)).data, 0
    for part in frame.parts(packed):
        view = memoryview(part).cast("B")
        whole[position : position + len(view)] = view
        position += len(view)
    return [whole]
