"""Folders on the file system of a path, through a session and its Hadoop configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sparkdl import redaction
from sparkdl._spark.frames import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFolders:
    """Hadoop's file system of a path; paths are taken literally, and no pattern is expanded."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        private: Any = spark
        self._path = java_class(private._jvm, "org.apache.hadoop.fs.Path")
        configuration = private._jsparkSession.sessionState().newHadoopConf()
        self._fs: Any = self._path(path).getFileSystem(configuration)

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or folder."""
        return bool(self._fs.exists(self._path(path)))

    def delete(self, path: str) -> None:
        """Delete a folder with all that is in it, if it is there."""
        self._fs.delete(self._path(path), True)

    def rename(self, source: str, target: str) -> None:
        """Rename a folder; raises OSError if it cannot be renamed."""
        if not self._fs.rename(self._path(source), self._path(target)):
            raise OSError(redaction.text(f"cannot rename {source} to {target}"))

    def delete_siblings(self, path: str, wanted: Callable[[str], bool]) -> None:
        """Delete what lies beside a path, as its name says."""
        parent = self._path(path).getParent()
        if not self._fs.exists(parent):
            return
        for status in self._fs.listStatus(parent):
            if wanted(status.getPath().getName()):
                self._fs.delete(status.getPath(), True)

    def holding(self, path: str, name: str) -> Iterator[str]:
        """Iterate over the folders below a path in which there is a folder of this name with a file in it."""
        root = self._path(path)
        if not self._fs.exists(root):
            return
        files = self._fs.listFiles(root, True)
        seen = set()
        while files.hasNext():
            folder = files.next().getPath().getParent()
            if folder.getName() == name and folder.toString() not in seen:
                seen.add(folder.toString())
                yield folder.getParent().toString()

    def on_this_machine(self, path: str) -> str | None:
        """Return a path as the driver's own file system has it, ``None`` if it is on another."""
        return str(self._path(path).toUri().getPath()) if self._fs.getScheme() == "file" else None
