"""Files of a scan: where they are, whether they are still those of the manifest."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pyarrow import ArrowInvalid, ArrowNotImplementedError

from sparkdl.data.scan.folders import is_hidden
from sparkdl.data.scan.storage import Storage, file_system, is_url
from sparkdl.exceptions import ConfigError, DataError

T = TypeVar("T")

BY_SPARK = "read the table by Spark, for Dataset.from_dataframe"
"""What to do about a table that cannot be read where it lies."""

ATTEMPTS = 3
_WAIT = 0.3  # seconds, longer after each attempt

_TABLES = {
    "_delta_log": (
        "is a Delta table",
        "its folder has files of several versions, too. Train on one version by Dataset.from_delta",
    ),
    "metadata": (
        "is an Iceberg table",
        "its folder has files of several snapshots, too. Train on one snapshot by Dataset.from_iceberg",
    ),
    ".hoodie": ("is a Hudi table", f"its folder has files of several versions, too; {BY_SPARK}"),
    "_spark_metadata": (
        "was written by a stream",
        "its folder may have files of batches that failed, which Spark's list in _spark_metadata leaves out. "
        "Name the files that it has, spark.read.parquet(...).inputFiles()",
    ),
}
"""By what lies in a folder, what the folder is, and why its files are not simply those of a table."""

_OF_ICEBERG = ".metadata.json"


class File(NamedTuple):
    """A file as it was listed."""

    path: str  # as its file system knows it
    size: int  # bytes
    time: int  # when it was last changed, in nanoseconds


def absolute(paths: Any) -> list[str]:
    """Return paths as executors read them: absolute ones, or URLs, all of one file system."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(given, Sequence) or not given:
        raise ConfigError(f"paths={paths!r:.100}: expected a path or URL of Parquet files, or a list of them")
    found = []
    for path in given:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ConfigError(f"paths: {path!r:.100}: expected a path or URL of Parquet files")
        text = str(os.fspath(path))
        if any(sign in text for sign in "*?["):
            raise ConfigError(f"paths: {text}: patterns are not read; name folders, or list the files")
        found.append(text if is_url(text) else os.path.abspath(text))
    roots = {_root(path) for path in found}
    if len(roots) > 1:
        raise ConfigError(f"paths: of several file systems: {', '.join(sorted(roots))}; expected one")
    if len(set(found)) < len(found):
        raise ConfigError(f"paths: {max(found, key=found.count)} is there twice")
    return found


def _root(path: str) -> str:
    """Return what names a path's file system."""
    parts = urlsplit(path)
    return f"{parts.scheme}://{parts.netloc}" if is_url(path) else "this machine's files"


def why_not_all(system: Any, folder: str, path: str, seen: set[str]) -> str:
    """Return why the rows of a folder's files are not those of a table; empty if nothing says so.

    ``folder`` is the file system's, ``path`` the caller's; ``seen`` gains folders of which nothing says so.
    """
    parts = folder.rstrip("/").split("/")
    for number in range(len(parts), 0, -1):
        root = "/".join(parts[:number])
        if root in seen:
            return ""
        seen.add(root)
        with nullcontext() if number == len(parts) else suppress(OSError):  # above, nothing may be readable
            for info in system.get_file_info([f"{root}/{mark}" for mark in _TABLES]):
                mark = info.path.rpartition("/")[2]
                if _is_mark(system, info, mark):
                    what, why = _TABLES[mark]
                    within = "" if number == len(parts) else f"is inside of {root}, which "
                    return f"{path} {within}{what}: {why}"
    return ""


def _is_mark(system: Any, info: Any, mark: str) -> bool:
    from pyarrow import fs

    if mark != "metadata":
        return bool(info.type != fs.FileType.NotFound)
    within = system.get_file_info(fs.FileSelector(info.path)) if info.type == fs.FileType.Directory else ()
    return any(each.path.endswith(_OF_ICEBERG) for each in within)


def list_files(paths: Sequence[str], storage: Storage) -> list[tuple[File, str]]:
    """List data files under paths, a folder's by name, each with its path below that one; in a task."""
    from pyarrow import fs

    found: list[tuple[File, str]] = []
    seen: set[str] = set()
    for path in paths:
        system, own = file_system(path, storage)
        try:
            info = system.get_file_info(own)
            if info.type == fs.FileType.NotFound:
                raise FileNotFoundError("there is no such file or folder")
            if info.type == fs.FileType.File:
                found.append((_file(info), info.base_name))
                continue
            if why := why_not_all(system, own, path, seen):
                raise ConfigError(why)
            listed = system.get_file_info(fs.FileSelector(own, recursive=True))
        except OSError as error:
            raise unseen(path, error) from error
        files = [i for i in listed if i.is_file and not any(map(is_hidden, i.path[len(own) :].split("/")))]
        if not files:
            raise DataError(f"{path}: there are no files in this folder", code="data-empty")
        files.sort(key=lambda info: info.path)
        found += [(_file(info), info.path[len(own) :].strip("/")) for info in files]
    paths_found = [file.path for file, _ in found]
    if len(set(paths_found)) < len(found):
        twice = max(paths_found, key=paths_found.count)
        raise ConfigError(f"paths: {twice} is there twice; expected no path inside of another")
    return found


def file_at(system: Any, path: str) -> File | None:
    """Return a file, ``None`` if it is not there; called in a task."""
    info = system.get_file_info(path)
    return _file(info) if info.is_file else None


def listed_files(
    system: Any, listed: Sequence[tuple[str, str, int]], table: str, says: str, gone: str
) -> list[File]:
    """Return the files of a table, of which its metadata tell; called in a task.

    ``listed`` has each file's name for errors, path and bytes; ``table``, ``says`` and ``gone`` are of
    errors.
    """
    found = []
    infos = system.get_file_info([path for _, path, _ in listed])
    for (name, _, size), info in zip(listed, infos, strict=True):
        if not info.is_file:
            raise DataError(f"{table}: its file {name} is not there any more: {gone}", code="data-source")
        if info.size != size:
            raise DataError(
                f"{table}: its file {name} has {info.size:,} bytes, and {says} says {size:,}",
                code="data-changed",
            )
        found.append(_file(info))
    return found


def _file(info: Any) -> File:
    return File(info.path, int(info.size), int(info.mtime_ns or 0))


def unseen(path: str, error: Exception) -> DataError:
    """Return the error of a path that this executor does not see."""
    return DataError(
        f"{path}: the executor on {socket.gethostname()} cannot read it: {error}. Tasks read "
        "the files themselves: put them where all executors see them under one path, or in an object store",
        code="data-source",
    )


def attempted(work: Callable[[], T]) -> T:
    """Do some work with files, again if that fails: object stores do not answer now and then."""
    for attempt in range(1, ATTEMPTS):
        try:
            return work()
        except OSError:
            time.sleep(_WAIT * attempt)
    try:
        return work()
    except OSError as error:
        raise DataError(f"{error} (after {ATTEMPTS} attempts)", code="data-source") from error


def open_file(system: Any, file: File) -> Any:
    """Open a file to read, in tasks; raises DataError if it has changed, OSError if it cannot be read now."""
    check_unchanged(system, file)
    return _named(file.path, lambda: system.open_input_file(file.path))


def open_parquet(system: Any, file: File) -> Any:
    """Open a Parquet file; raises DataError naming it if it is none."""
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(open_file(system, file))
    except (ArrowInvalid, ArrowNotImplementedError) as error:
        raise DataError(f"{file.path}: expected a Parquet file: {error}", code="data-source") from error


def check_unchanged(system: Any, file: File) -> None:
    """Check, in tasks, that a file is still the one listed; raises DataError, OSError if unreadable now."""
    info = _named(file.path, lambda: system.get_file_info(file.path))
    if not info.is_file:
        raise unseen(file.path, FileNotFoundError("there is no such file"))
    if _file(info) != file:
        raise changed(file.path)


def _named(path: str, work: Callable[[], Any]) -> Any:
    """Do some work with a file, and name it in errors."""
    try:
        return work()
    except FileNotFoundError as error:
        raise unseen(path, error) from error
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error}") from error


def changed(path: str) -> DataError:
    """Return the error of a file that is another one than when the Dataset listed it."""
    return DataError(
        f"{path}: the file has changed since the Dataset read its footer. Train on files that stay as they "
        "are: a copy, or one version of a table; Dataset.release() lets the next fit begin with the files "
        "that there are now",
        code="data-changed",
    )
