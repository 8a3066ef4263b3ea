"""Reading a saved model without Spark: from a folder, or from a folder of published versions."""

from __future__ import annotations

import copy
import hashlib
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow.parquet as pq
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from torch import nn

from sparkdl.exceptions import ConfigError, SparkdlError
from sparkdl.saved import content as saved
from sparkdl.saved.change_file import read_about
from sparkdl.saved.changes import apply_changes, apply_known
from sparkdl.saved.content import Content
from sparkdl.saved.integrity import Chunk, check_digest
from sparkdl.saved.metadata import (
    CODE,
    LONGEST_METADATA,
    METADATA,
    WEIGHTS,
    check,
    check_inside,
    digest_of,
    parse,
    version_of,
)
from sparkdl.saved.published import LONGEST, POINTER, ChangesFile, Current
from sparkdl.saved.trust import Entry, Trust

T = TypeVar("T")

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class SavedVersion:
    """Which version of a model was read."""

    base: str  # tells complete saves apart
    changes: tuple[ChangesFile, ...] = ()  # what was changed in it since

    @property
    def name(self) -> str:
        """A short name, of no two versions the same."""
        return self.changes[-1].sha256[:12] if self.changes else self.base

    def after(self, other: SavedVersion) -> tuple[ChangesFile, ...]:
        """Return the changes that lead from another version to this one; none if changes alone do not."""
        count = len(other.changes)
        leads = self.base == other.base and self.changes[:count] == other.changes
        return self.changes[count:] if leads else ()


def read_model(
    path: str, *, pickle: bool = False, trust: Entry | Iterable[Entry] = ()
) -> tuple[Content, dict[str, Any], SavedVersion]:
    """Read a saved model without Spark; arguments and errors as of :meth:`sparkdl.serve.Predictor.load`."""
    trusted = Trust.of(trust, everything=pickle)
    return _of_current(str(path), lambda folder: _read(folder, path, pickle, trusted))


def _read(
    folder: _Folder, path: str, pickle: bool, trust: Trust
) -> tuple[Content, dict[str, Any], SavedVersion]:
    metadata = folder.metadata()
    stages = _stages(metadata)
    if stages:
        raise ConfigError(
            f"path={path!r} holds a pipeline of {', '.join(stages)}: give the "
            f"folder of the model in {posixpath.join(str(path), 'stages')}",
            code="config-saved",
        )
    info = check(metadata, str(path))
    if info["module"] is None or not metadata["class"].endswith("Model"):
        raise ConfigError(
            f"path={path!r} holds a {metadata['class']:.200}: expected a fitted model",
            code="config-saved",
        )
    saved.check_pickle(info, str(path), pickle, "Predictor.load(path, pickle=True)")
    pieces = folder.pieces(WEIGHTS), folder.pieces(CODE)
    found = saved.build(info, str(path), *pieces, trust)
    assert found.module is not None
    version = folder.version(metadata)
    folder.change(found.module, version.changes)
    return found, metadata, version


def read_version(path: str) -> SavedVersion:
    """Return which version is there now; only the metadata is read, whose checksums are those of all files.

    Raises ConfigError if there is no complete model that this version can read.
    """

    def read(folder: _Folder) -> SavedVersion:
        metadata = folder.metadata()
        check(metadata, str(path))
        return folder.version(metadata)

    return _of_current(str(path), read)


def changed_copy(path: str, module: nn.Module, before: SavedVersion) -> tuple[nn.Module, SavedVersion] | None:
    """Return a copy of a module that was read before, with the changes that were published since.

    It is ``None`` if changes alone do not lead there, or nothing has changed. Raises ConfigError if what is
    there now cannot be read, ModelError if the changes do not fit.
    """

    def read(folder: _Folder) -> tuple[nn.Module, SavedVersion] | None:
        metadata = folder.metadata()
        check(metadata, str(path))
        now = folder.version(metadata)
        changes = now.after(before)
        if not changes:
            return None
        made = copy.deepcopy(module)
        folder.change(made, changes)
        return made, now

    return _of_current(str(path), read)


def _of_current(path: str, read: Callable[[_Folder], T]) -> T:
    """Read a folder; again, a few times at most, where its version was replaced meanwhile.

    A publisher deletes old versions, perhaps the one that is being read.
    """
    for _ in range(_ATTEMPTS - 1):
        before = _pointer(path)
        try:
            return read(_Folder(path))
        except SparkdlError:
            if _pointer(path) == before:
                raise
    return read(_Folder(path))


def _pointer(path: str) -> bytes | None:
    """Return what says which version is the current one; ``None`` if nothing does."""
    try:
        fs, root = url_to_fs(path)
        pointer = posixpath.join(root.rstrip("/"), POINTER)
        if isinstance(fs, LocalFileSystem) and not os.path.isfile(pointer):  # a pipe may never end
            return None
        return bytes(fs.cat_file(pointer, end=LONGEST))
    except Exception:
        return None


def _stages(metadata: Mapping[str, Any]) -> list[str]:
    """Return the stages of a pipeline's metadata; none if it is another's."""
    params = metadata.get("paramMap")
    found = params.get("stageUids") if isinstance(params, dict) else None
    return list(map(str, found)) if isinstance(found, list) else []


def _is_hidden(file: str) -> bool:
    return posixpath.basename(file).startswith(("_", "."))


class _Folder:
    """A saved model in a local or remote folder."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._current: Current | None = None
        try:
            self._fs, root = url_to_fs(path)
            root = root.rstrip("/")
            # a save that was cut off between two renames has left the previous one beside it
            previous = posixpath.join(posixpath.dirname(root), f".{posixpath.basename(root)}.previous")
            self._root = next(filter(self._holds, (root, previous)), None) or self._published(root)
        except (ImportError, ValueError, OSError) as error:
            raise ConfigError(f"path={path!r} cannot be opened: {error}", code="config-saved") from error
        if isinstance(self._fs, LocalFileSystem):
            changes: tuple[ChangesFile, ...] = self._current.changes if self._current is not None else ()
            check_inside(self._root, path, [change.name for change in changes])

    def _holds(self, root: str) -> bool:
        """Return whether there is metadata; a save on Spark Connect may have emptied it for the moment."""
        folder = posixpath.join(root, METADATA)
        if not self._fs.exists(folder):
            return False
        try:
            found = self._fs.ls(folder, detail=True)
            return any(file["size"] != 0 for file in found if not _is_hidden(file["name"]))
        except NotADirectoryError:
            return True

    def _published(self, root: str) -> str:
        """Return the current version of a folder of versions; other folders as they are."""
        pointer = posixpath.join(root, POINTER)
        if isinstance(self._fs, LocalFileSystem) and os.path.exists(pointer) and not os.path.isfile(pointer):
            raise OSError(f"{pointer} is not a regular file")  # a pipe may never end
        try:
            text = self._fs.cat_file(pointer, end=LONGEST)
        except (FileNotFoundError, NotADirectoryError):
            return root
        self._current = Current.parse(text, self._path)
        return posixpath.join(root, self._current.name)

    def version(self, metadata: Mapping[str, Any]) -> SavedVersion:
        """Return which version it is."""
        if self._current is not None and self._current.digest:
            what = f"path={self._path!r}: {self._current.name}, which {POINTER} names, is"
            check_digest(what, digest_of(metadata), self._current.digest, "config-saved")
        return SavedVersion(version_of(metadata), self._current.changes if self._current is not None else ())

    def change(self, module: nn.Module, changes: Iterable[ChangesFile]) -> None:
        """Make changes in a module, one after the other."""
        for change in changes:
            with self._explained():
                data = self._fs.cat_file(posixpath.join(posixpath.dirname(self._root), change.name))
            if hashlib.sha256(data).hexdigest() != change.sha256:
                raise ConfigError(
                    f"path={self._path!r}: {change.name} is damaged: it is not what was written",
                    code="config-saved",
                )
            about = read_about(data, f"path={self._path!r}: {change.name}")
            if self._current is None or not self._current.digest:  # of an earlier release: names alone
                apply_known(module, data, about)
                continue
            if about.base != self._current.before(change):
                raise ConfigError(
                    f"path={self._path!r}: {change.name} does not belong to the version before it: it was "
                    f"made of {about.base:.16}, and that is {self._current.before(change):.16}",
                    code="config-saved",
                )
            apply_changes(module, data, at=change.since)

    def metadata(self) -> dict[str, Any]:
        """Read the metadata."""
        with self._explained():
            files = self._files(METADATA)
        if not files:
            raise ConfigError(f"path={self._path!r}: nothing complete was saved there", code="config-saved")
        with self._explained():
            text = b"".join(self._fs.cat_file(file, end=LONGEST_METADATA + 1) for file in files)
        return parse(text, self._path)

    def pieces(self, name: str) -> Iterator[Chunk]:
        """Read pieces in order, one at a time."""
        with self._explained():
            for file in sorted(self._files(name), key=self._first_offset):
                with self._fs.open(file, "rb") as handle, pq.ParquetFile(handle) as table:
                    for batch in table.iter_batches(batch_size=1, columns=["offset", "data"]):
                        for row in batch.to_pylist():
                            yield Chunk(row["offset"], row["data"])

    def _first_offset(self, file: str) -> int:
        with self._fs.open(file, "rb") as handle, pq.ParquetFile(handle) as table:
            offsets = table.read(columns=["offset"])["offset"].to_pylist()
        return min(offsets, default=0)

    def _files(self, name: str) -> list[str]:
        folder = posixpath.join(self._root, name)
        try:
            found = self._fs.ls(folder, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(file for file in found if not _is_hidden(file))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of file readers into an error that names the model."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"path={self._path!r} cannot be read, a file is damaged, missing or out of reach: "
                f"{error!r:.300}",
                code="config-saved",
            ) from error
