"""Files and folders that only their owner can read, for any umask.

Rows, gradients, weights and Spark's confs lie in them, and machines have other users. Files and folders get
their mode when they are made: a ``chmod`` afterwards would leave a moment in which they can be opened.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import uuid
from functools import lru_cache
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_LOCAL_DIRS = "SPARK_LOCAL_DIRS"


def opener(path: str, flags: int) -> int:
    """Open a file that only its owner can read, if this makes it; for ``open(..., opener=)``."""
    return os.open(path, flags, FILE_MODE)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder, and those above it that are not there, for the owner alone.

    ``os.makedirs(mode=)`` gives the mode to the last folder only.
    """
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileNotFoundError:
        make_folder(os.path.dirname(os.path.abspath(path)))
        make_folder(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def executor_folder(name: str) -> Path | None:
    """Return a folder of the executor's, made if need be, in which nobody else can have put files.

    It is ``None`` outside of executors, or where another user has made it.
    """
    if not os.environ.get(_LOCAL_DIRS):
        return None
    folder = local_folders()[0] / name
    make_folder(folder)
    found = folder.lstat()
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return folder if own else None


def local_folders() -> list[Path]:
    """Return the executor's local directories, which Spark removes when the executor stops."""
    return list(_folders_named(os.environ.get(_LOCAL_DIRS, "")))


@lru_cache(maxsize=1)
def _folders_named(dirs: str) -> tuple[Path, ...]:
    return tuple(Path(d) for d in dirs.split(",") if d) or (Path(tempfile.gettempdir()),)


def put_in_place(draft: Path, final: Path) -> None:
    """Give a partition its final name, in place of what an earlier attempt has left there.

    That one may be too short: when an executor is lost, the input of a task that reads from it ends as
    if there were no more rows, and the task fails only after it has written them. Readers that have
    mapped the old files keep them.
    """
    while True:
        try:
            draft.rename(final)
            return
        except OSError:
            if not final.is_dir():
                raise
        old = final.with_name(f"{final.name}.{uuid.uuid4().hex}")
        try:
            final.rename(old)
        except FileNotFoundError:
            continue  # yet another attempt did the same
        shutil.rmtree(old, ignore_errors=True)
