"""Files on executors: what the driver has sent, and frames that stay between groups.

Frames that stay are hints: a lost executor takes its files along, and the driver goes back to its last
commit.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sparkdl.access.base import BytesRef
from sparkdl.wire.frame import Parts, size
from sparkdl.wire.private import local_folders, make_folder, opener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = "sparkdl-kept"
_LENGTH = struct.Struct("<q")

FILE_BYTES = 32 << 20
"""Bytes of a file that is sent, at most. Each is a call of its own: if the connection to the server ends, the
client sends this one again, and not all of them."""


def sent_file(name: str) -> str:
    """Return the path of a file that the driver has sent."""
    from pyspark import SparkFiles

    return SparkFiles.get(name)


@dataclass(frozen=True, slots=True)
class FileRef(BytesRef):
    """Bytes that the driver has sent as files, which each executor fetches once."""

    names: tuple[str, ...] = ()  # names of the files, in the order of their bytes

    def read(self, *, once: bool = False) -> bytearray:
        """Return the bytes; called in tasks."""
        paths = [sent_file(name) for name in self.names]
        data = bytearray(sum(map(os.path.getsize, paths)))
        rest = memoryview(data)
        for path in paths:
            with open(path, "rb") as file:
                rest = rest[file.readinto(rest) :]
        return data


def new_files(nbytes: int, made: str | None = None) -> FileRef:
    """Return names for the files of so many bytes: new ones, or those of a content that has a name."""
    made = made or uuid.uuid4().hex
    return FileRef(None, names=tuple(f"sparkdl-{made}-{n}.bin" for n in range(-(-nbytes // FILE_BYTES))))


def send_files(spark: SparkSession, ref: FileRef, data: bytes | bytearray) -> None:
    """Send bytes file by file; each exists on this machine only while it is sent."""
    with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
        for number, name in enumerate(ref.names):
            path = Path(folder, name)
            with open(path, "xb", opener=opener) as file:
                file.write(memoryview(data)[number * FILE_BYTES : (number + 1) * FILE_BYTES])
            spark.addArtifacts(str(path), file=True)
            path.unlink()


@dataclass(frozen=True, slots=True)
class KeptFile:
    """Where the frames that a group has left are: a file for each partition, on the executor that ran it."""

    folder: str  # name of the folder of the chain
    name: str  # name of the group's file
    alive: tuple[str, ...] = ()  # names of the files that are still needed, beside it

    def read(self, partition: int) -> Iterator[bytes] | None:
        """Return the pieces of a partition; ``None`` if this executor does not have them."""
        try:
            file = open(self._path(partition), "rb")  # noqa: SIM115
        except FileNotFoundError:
            return None
        return _pieces(file)

    @contextmanager
    def writing(self, partition: int) -> Iterator[Callable[[Parts], None]]:
        """Yield a function that writes a piece; the file is there when the block has succeeded."""
        path = self._path(partition)
        make_folder(os.path.dirname(path))
        self._delete_others()
        draft = f"{path}.{uuid.uuid4().hex}"
        try:
            with open(draft, "xb", opener=opener) as file:

                def write(piece: Parts) -> None:
                    file.write(_LENGTH.pack(size(piece)))
                    for part in piece:
                        file.write(part)

                yield write
            os.replace(draft, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft)
            raise

    def delete_all(self) -> None:
        """Delete all files of the chain on this executor."""
        shutil.rmtree(self._root(), ignore_errors=True)

    def _delete_others(self) -> None:
        with suppress(OSError):
            for found in os.listdir(self._root()):
                if found.split(".")[0] not in (self.name, *self.alive):
                    with suppress(OSError):
                        os.unlink(os.path.join(self._root(), found))

    def _root(self) -> str:
        return f"{local_folders()[0]}/{_ROOT}/{self.folder}"

    def _path(self, partition: int) -> str:
        return f"{self._root()}/{self.name}.{partition}"


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while head := file.read(_LENGTH.size):
            yield file.read(*_LENGTH.unpack(head))
