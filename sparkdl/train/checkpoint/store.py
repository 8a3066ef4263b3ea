"""The file operations that checkpoints need, alike on local folders, fsspec's stores and Hadoop's.

Paths are taken literally: no function here, and none of fsspec that it calls, expands ``*``, ``[`` or
``{``, so that nothing but the named file is touched.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from sparkdl._spark.hadoop import HadoopFileSystem
from sparkdl.allreduce import shard_files
from sparkdl.exceptions import ConfigError
from sparkdl.wire.frame import Buffer

Path = str | os.PathLike[str]

join = posixpath.join


class CheckpointStore:
    """A file system that holds checkpoints, ``root`` as it has that path; ConfigError if it cannot be opened.

    ``local`` tells whether it is the driver's own, ``renames`` whether it renames a folder at once.
    """

    def __init__(self, path: Path) -> None:
        self.fs, self.root = _open(path)
        self.local = isinstance(self.fs, LocalFileSystem)
        self.renames = self.local or isinstance(self.fs, HadoopFileSystem)

    def make(self, folder: str) -> None:
        """Make a folder and those above it."""
        self.fs.makedirs(folder, exist_ok=True)

    def entries(self, folder: str) -> dict[str, bool]:
        """Return the names in a folder, and whether each is a file; empty if there is no such folder."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        base = folder.rstrip("/")
        names = {e["name"].rstrip("/"): e["type"] == "file" for e in found}
        # Some stores list the folder itself.
        return {posixpath.basename(n): file for n, file in names.items() if n != base}

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or folder."""
        return bool(self.fs.exists(path))

    def read(self, path: str) -> bytes:
        """Return the bytes of a file."""
        self._check_kind(path)
        data: bytes = self.fs.cat_file(path)
        return data

    def write(self, path: str, data: bytes) -> None:
        """Write a file, and see it to the disk if that is the driver's own."""
        if self.local:
            shard_files.write_parts(path, [data])
        else:
            self.fs.pipe_file(path, data)

    def write_whole(self, path: str, parts: Iterable[Buffer]) -> str:
        """Write a file that appears at once, or takes another one's place; return its sha256."""
        return shard_files.put_whole(self.fs, path, parts)

    def digest(self, path: str) -> str:
        """Return the sha256 of a file."""
        self._check_kind(path)
        with self.fs.open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @contextmanager
    def on_disk(self, path: str) -> Iterator[str]:
        """Give a local path of a file: its own, or that of a copy which lasts as long as the context."""
        if self.local:
            self._check_kind(path)
            yield path
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "file")
            self.fs.get_file(path, copy)
            yield copy

    def _check_kind(self, path: str) -> None:
        """Refuse what has no end, such as a link to ``/dev/zero``."""
        if self.local and not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(f"{path} is not a regular file")

    def is_link(self, path: str) -> bool:
        """Return whether a path leads elsewhere, to what may be another's."""
        return self.local and os.path.islink(path)

    def delete(self, path: str) -> None:
        """Delete a file."""
        self.fs.rm_file(path)

    def delete_files(self, folder: str, names: Iterable[str]) -> None:
        """Delete files of a folder, and then the folder if nothing else is in it."""
        for name in names:
            self.delete(join(folder, name))
        if not self.entries(folder):
            with suppress(OSError):  # stores without folders have none to delete
                self.fs.rmdir(folder)

    def rename(self, source: str, target: str, first: str = "") -> None:
        """Rename a folder, all its files at once where the store can do so.

        Raises FileExistsError, and changes nothing, if the target is there; OSError if it fails.
        """
        if self.exists(target) and (not self.local or self.entries(target)):
            raise FileExistsError(f"{target} is there already")
        if self.local:
            os.rename(source, target)  # which fails if another has been faster
        elif self.renames:
            self.fs.mv(source, target)
            self._undo_if_inside(source, target)
        else:
            files = self.fs.find(source)
            for file in files:
                self.fs.cp_file(file, join(target, posixpath.relpath(file, source)))
            for file in sorted(files, key=lambda file: posixpath.basename(file) != first):
                self.delete(file)
            with suppress(OSError):
                self.fs.rmdir(source)

    def _undo_if_inside(self, source: str, target: str) -> None:
        """Hadoop moves a folder into one that has just taken its place."""
        inside = join(target, posixpath.basename(source))
        if self.exists(inside):
            self.fs.mv(inside, source)
            raise FileExistsError(f"{target} is there already")

    def sync(self, folder: str) -> None:
        """See the names in a folder to the disk if that is the driver's own."""
        if not self.local:
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def outside(self, path: str) -> str:
        """Return a path as other programs take it."""
        return path if self.local else str(self.fs.unstrip_protocol(path))

    def inside(self, path: str) -> str:
        """Return a path as the file system has it."""
        return str(self.fs._strip_protocol(path))


def _open(path: Path) -> tuple[Any, str]:
    """Open with fsspec, else with the Hadoop that Spark brings."""
    text = os.fspath(path)
    try:
        fs, root = url_to_fs(text)
    except (ImportError, ValueError, OSError) as error:
        if "://" not in text:
            raise ConfigError(f"cannot open {text}: {error}") from error
        try:
            fs, root = HadoopFileSystem(text), text
        except ConfigError as other:
            raise ConfigError(f"cannot open {text}: {error}; nor with Hadoop: {other}") from error
    return fs, root.rstrip("/") or "/"
