"""Files that tasks leave in their executor's local directory for later tasks of the same fit.

Nothing but speed, or a tolerated loss, may depend on them: an executor can be gone at any time, and its files
with it. They appear under their names when they are complete, and are read by mapping, so that all Python
processes of an executor share one copy.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sparkdl import frame
from sparkdl.data.store import local_folders
from sparkdl.frame import Buffer, Parts

_ROOT = "sparkdl-fits"
_DRAFT = "draft-"
_LENGTH = struct.Struct("<q56x")  # as long as an array's alignment in a frame


def fit_folder(fit_id: str) -> Path:
    """Return the folder of a fit's files on this executor."""
    return local_folders()[0] / _ROOT / fit_id


def encode(frames: Sequence[Parts]) -> Parts:
    """Write frames one after the other, each after its length."""
    parts: Parts = []
    for own in frames:
        size = frame.size(own)
        parts += [_LENGTH.pack(size), *own, bytes(-size % _LENGTH.size)]
    return parts


def decode(data: Buffer) -> Iterator[Buffer]:
    """Read frames back as views."""
    view, position = memoryview(data), 0
    while position < len(view):
        (size,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        yield view[position : position + size]
        position += size + -size % _LENGTH.size


def write_file(path: Path, parts: Parts) -> None:
    """Write a file that appears under its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{_DRAFT}{uuid.uuid4().hex}")
    with draft.open("wb", buffering=0) as file:
        for part in parts:
            view = memoryview(part).cast("B")
            while len(view):
                view = view[os.write(file.fileno(), view) :]
    draft.rename(path)


def map_file(path: Path) -> Buffer | None:
    """Return a file's bytes, or ``None`` if it is not there."""
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return b""  # which cannot be mapped
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # type: ignore[return-value]
    except FileNotFoundError:
        return None


def delete_files(folder: Path, outdated: Callable[[str], bool]) -> None:
    """Delete the files of a folder whose names say that they are outdated, while others do the same.

    Who has mapped a file keeps it.
    """
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(_DRAFT) and outdated(entry.name):
                Path(entry.path).unlink(missing_ok=True)


def delete_fit(fit_id: str) -> None:
    """Delete a fit's files from this executor."""
    shutil.rmtree(fit_folder(fit_id), ignore_errors=True)
