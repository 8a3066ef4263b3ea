"""Hadoop's file systems as fsspec sees them, through the driver's JVM.

Spark brings the classes for HDFS and whatever ``fs.<scheme>.impl`` names; no native library is needed, as
fsspec's own driver for HDFS needs one. Only the driver can use it.
"""

from __future__ import annotations

import io
import os
import tempfile
from typing import Any

from fsspec.spec import AbstractFileSystem

from sparkdl import redaction
from sparkdl.exceptions import ConfigError


class HadoopFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A Hadoop ``FileSystem``; paths are whole URLs."""

    protocol = "hadoop"
    cachable = False

    def __init__(self, url: str) -> None:
        super().__init__()
        from py4j.protocol import Py4JJavaError
        from pyspark import SparkContext

        from sparkdl._spark.frames import java_class  # with pyspark, which a folder elsewhere does not need

        sc = SparkContext._active_spark_context
        if sc is None or sc._jvm is None:
            raise ConfigError(f"{url}: Hadoop's file systems need a running Spark session")
        self._path = java_class(sc._jvm, "org.apache.hadoop.fs.Path")
        self._failure = Py4JJavaError
        try:
            self._files: Any = self._path(url).getFileSystem(sc._jsc.hadoopConfiguration())
        except Py4JJavaError as error:
            raise ConfigError(f"cannot open {url}: {error.java_exception.getMessage()}") from None

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._files, method)(*arguments)
        except self._failure as error:
            cause = error.java_exception
            kind = FileNotFoundError if "FileNotFound" in cause.getClass().getName() else OSError
            message = f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
            raise kind(redaction.text(message)) from None

    @staticmethod
    def _describe(status: Any) -> dict[str, Any]:
        kind = "directory" if status.isDirectory() else "file"
        return {"name": status.getPath().toString(), "size": status.getLen(), "type": kind}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List a folder."""
        entries = [self._describe(status) for status in self._call("listStatus", self._path(path))]
        return entries if detail else [entry["name"] for entry in entries]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, size and type of a file or folder."""
        return self._describe(self._call("getFileStatus", self._path(path)))

    def exists(self, path: str, **_: Any) -> bool:
        """Return whether there is such a file or folder."""
        return bool(self._call("exists", self._path(path)))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder and those above it."""
        if not self._call("mkdirs", self._path(path)):
            raise OSError(redaction.text(f"cannot make the folder {path}"))

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        """Rename."""
        if not self._call("rename", self._path(path1), self._path(path2)):
            raise OSError(redaction.text(f"cannot rename {path1} to {path2}"))

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete."""
        self._call("delete", self._path(path), recursive)

    def rm_file(self, path: str) -> None:
        """Delete a file."""
        self.rm(path)

    def rmdir(self, path: str) -> None:
        """Delete a folder with nothing in it."""
        self.rm(path)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Copy a local file there."""
        self._call("copyFromLocalFile", False, True, self._local(lpath), self._path(rpath))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Write a file."""
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "file")
            with open(local, "wb") as file:
                file.write(value)
            self.put_file(local, path)

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        """Copy a file to the local disk."""
        # The last argument: without a file of checksums beside it.
        self._call("copyToLocalFile", False, self._path(rpath), self._local(lpath), True)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return a file's bytes."""
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "file")
            self.get_file(path, local)
            with open(local, "rb") as file:
                return file.read()[start:end]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        if mode != "rb":
            raise NotImplementedError(f"mode {mode!r}: write with put_file or pipe_file")
        return io.BytesIO(self.cat_file(path))

    def _local(self, path: str) -> Any:
        return self._path(f"file://{os.path.abspath(path)}")

    def unstrip_protocol(self, name: str) -> str:
        """Return a path as it is: a whole URL."""
        return name

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path
