"""Files that tasks leave in their executor's local directory for later tasks of the same fit.

Nothing but speed, or a tolerated loss, may depend on them: an executor can be gone at any time, and its files
with it. They appear under their names when they are complete. Large ones are mapped, so that all Python
processes of an executor share one copy. Where one process runs all tasks of an executor, those that are not
too large, and that need not outlive it, stay in its memory instead, under the same names: their frames as
they were laid out, whose arrays nobody may change from then on.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence

from sparkdl import buffers, frame, private
from sparkdl.data.store import local_folders
from sparkdl.frame import Buffer, Packed, Parts

_ROOT = "sparkdl-fits"
_DRAFT = "draft-"
_LENGTH = struct.Struct("<q56x")  # as long as an array's alignment in a frame
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_MOST_BUFFERS = 1024
"""As many as Linux writes at once."""

_SMALL = 256 << 10
"""Up to so many bytes reading takes less time than mapping."""

_MOST_HELD = 1 << 30
"""Larger files are not held in memory: the system can take a disk's cache back."""

_held: dict[str, Sequence[Parts]] = {}
_lent: set[str] = set()
_holds = False

# Paths are strings in here: for a small model pathlib takes a tenth of a task's time.


def fit_folder(fit_id: str) -> str:
    """Return the folder of a fit's files on this executor."""
    return f"{local_folders()[0]}/{_ROOT}/{fit_id}"


def hold_files(in_memory: bool) -> None:
    """Say whether this process, which runs all tasks of its executor, may hold files from now on."""
    global _holds
    _holds = in_memory


def holds_files() -> bool:
    """Return whether this process, which runs all tasks of its executor, may hold files."""
    return _holds


def encode(frames: Sequence[Packed]) -> Parts:
    """Write frames one after the other, each after its length."""
    encoded: Parts = []
    for own in frames:
        size = frame.size(own)
        encoded += [_LENGTH.pack(size), *frame.parts(own), bytes(-size % _LENGTH.size)]
    return encoded


def decode(data: Buffer) -> Iterator[Buffer]:
    """Read frames back as views."""
    view, position = memoryview(data), 0
    while position < len(view):
        (size,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        yield view[position : position + size]
        position += size + -size % _LENGTH.size


def hold_frames(path: str, frames: Sequence[Packed], *, lent: bool = False) -> None:
    """Leave frames that need not outlive this process, in its memory if that is possible.

    Args:
        path: name of the file.
        frames: the frames.
        lent: whether their memory will be used for something else, as :func:`keep_lent` then says.
    """
    if _holds and sum(map(frame.size, frames)) <= _MOST_HELD:
        _held[path] = [frame.parts(one) for one in frames]
        if lent:
            _lent.add(path)
    else:
        _held.pop(path, None)
        write_file(path, encode(frames))


def keep_lent() -> None:
    """Copy the frames that are still held in memory that is about to be used for something else."""
    for path in _lent & _held.keys():
        _held[path] = [_copy(one) for one in _held[path]]
    _lent.clear()


def _copy(packed: Packed) -> Parts:
    """Copy a frame into one piece of memory."""
    whole, position = buffers.empty(frame.size(packed)).data, 0
    for part in frame.parts(packed):
        view = memoryview(part).cast("B")
        whole[position : position + len(view)] = view
        position += len(view)
    return [whole]


def read_frames(path: str) -> Sequence[Packed] | None:
    """Return the frames that :func:`hold_frames` has left, or ``None`` if they are not there."""
    if path in _held:
        return _held[path]
    data = read_file(path)
    return list(decode(data)) if data is not None else None


def take_frames(path: str) -> Sequence[Packed] | None:
    """Return frames as :func:`read_frames` does, and forget them if they are held."""
    return _held.pop(path, None) or read_frames(path)


def forget_frames(path: str) -> None:
    """Forget frames if they are held."""
    _held.pop(path, None)


def write_file(path: str, parts: Parts) -> None:
    """Write a file that appears under its name when it is complete."""
    folder = os.path.dirname(path)
    draft = f"{folder}/{_DRAFT}{uuid.uuid4().hex}"
    try:
        file = os.open(draft, _WRITE, private.FILE_MODE)
    except FileNotFoundError:
        private.make_folder(folder)
        file = os.open(draft, _WRITE, private.FILE_MODE)
    try:
        _write(file, parts)
    finally:
        os.close(file)
    os.rename(draft, path)


def _write(file: int, parts: Parts) -> None:
    views = [memoryview(part).cast("B") for part in parts]
    while views:
        written = os.writev(file, views[:_MOST_BUFFERS])
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


def delete_files(folder: str, outdated: Callable[[str], bool]) -> None:
    """Delete the files of a folder whose names say that they are outdated, while others do the same.

    Who has mapped a file keeps it.
    """
    forget_outdated(folder, outdated)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        if not name.startswith(_DRAFT) and outdated(name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/{name}")


def forget_outdated(folder: str, outdated: Callable[[str], bool]) -> None:
    """Forget the files of a folder that are held, if their names say that they are outdated."""
    for path in [path for path in _held if os.path.dirname(path) == folder]:
        if outdated(os.path.basename(path)):
            del _held[path]


def delete_fit(fit_id: str) -> None:
    """Delete a fit's files from this executor."""
    for path in [path for path in _held if path.startswith(f"{fit_folder(fit_id)}/")]:
        del _held[path]
    shutil.rmtree(fit_folder(fit_id), ignore_errors=True)
