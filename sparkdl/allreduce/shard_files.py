"""The state of a shard between iterations, as a safetensors file.

A checkpoint has one such file per shard. Where all executors can reach its folder, the tasks that own the
shards write them side by side; otherwise the driver does.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import posixpath
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from sparkdl.allreduce.messages import Master, OwnedRows
from sparkdl.allreduce.shard_states import is_of_rows
from sparkdl.keyed.entries import Entries
from sparkdl.wire import frame
from sparkdl.wire.arrays import LARGE, trim_all
from sparkdl.wire.frame import Array, Buffer, Packed, Parts
from sparkdl.wire.private import local_folders

_KINDS = {
    **{f"f{size}": f"F{8 * size}" for size in (2, 4, 8)},
    **{f"i{size}": f"I{8 * size}" for size in (1, 2, 4, 8)},
    **{f"u{size}": f"U{8 * size}" for size in (1, 2, 4, 8)},
    "b1": "BOOL",
}
"""What safetensors calls the dtypes of numpy."""
_DTYPES = {name: np.dtype(f"<{dtype}") for dtype, name in _KINDS.items()}

Write = Callable[[str, Iterable[Buffer]], str]
"""Writes the parts of a file with a name, in place of one that is there, and returns its sha256."""
Merge = Callable[[str, Mapping[str, str], Write], dict[str, str]]
"""Makes files of shards of those in a folder, by their sha256, and returns theirs."""


def name_of(index: int, count: int, kind: str = "shard") -> str:
    """Return the file name of a shard; its first word was ``slice`` in checkpoints of format 1."""
    return f"{kind}-{index:05d}-of-{count:05d}.safetensors"


def layer_kind(layer: int) -> str:
    """Return the first word of the files of a layer, counted from the newest; only this one has state."""
    return f"below{layer}" if layer else "shard"


def encode(frames: Sequence[Packed]) -> bytes:
    """Return the file of one shard's frames."""
    unpacked = map(frame.unpack, frames)
    return b"".join(parts_of((message.meta, message.arrays) for message in unpacked))


@dataclass(frozen=True, slots=True)
class Streamed:
    """An array that is there some rows at a time."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    blocks: Callable[[], Iterable[Array]]

    @property
    def nbytes(self) -> int:
        """How long it is."""
        return math.prod(self.shape) * self.dtype.itemsize


_Message = tuple[Mapping[str, Any], Mapping[str, Array | Streamed]]


def parts_of(messages: Iterable[_Message]) -> Iterator[Buffer]:
    """Yield the parts of a file with some messages: the meta of each, and its arrays."""
    arrays: dict[str, Array | Streamed] = {}
    table: list[dict[str, Any]] = []
    for i, (meta, own) in enumerate(messages):
        table.append({"meta": meta, "arrays": list(own)})
        arrays |= {f"{i}.{name}": array for name, array in own.items()}
    header: dict[str, Any] = {"__metadata__": {"sparkdl": json.dumps(table)}}
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    position = 0
    for name, array in ordered:
        place = [position, position + array.nbytes]
        header[name] = {"dtype": _KINDS[array.dtype.str[1:]], "shape": array.shape, "data_offsets": place}
        position = place[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield from (len(text).to_bytes(8, "little"), text)
    for name, array in ordered:
        left = array.nbytes
        for block in array.blocks() if isinstance(array, Streamed) else [array]:
            flat: Any = np.ascontiguousarray(block).reshape(-1)
            left -= flat.nbytes
            yield memoryview(flat).cast("B")
        if left:
            raise ValueError(f"array {name!r} is {left} bytes shorter than it was to be")


def decode(data: bytes) -> list[bytes]:
    """Return the frames of a shard's file."""
    try:
        arrays = load(data)  # compares lengths and offsets with the file
        length = int.from_bytes(data[:8], "little")
        table = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["sparkdl"])
        return [frame.join(_frame_of(entry, f"{i}.", arrays)) for i, entry in enumerate(table)]
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not the file of a shard: {error!r:.200}") from error


def _frame_of(entry: Mapping[str, Any], prefix: str, arrays: Mapping[str, Array]) -> Parts:
    meta, names = entry["meta"], entry["arrays"]
    if not isinstance(meta, dict) or not isinstance(meta.get("kind"), str):
        raise TypeError(f"a frame with meta={meta!r:.100}")
    return frame.pack(meta, {name: arrays[f"{prefix}{name}"] for name in names})


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in a file."""

    path: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        """Return how many rows it has."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """How long a row is."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, begin: int, stop: int) -> Array:
        """Return some rows."""
        if not 0 <= begin <= stop <= len(self):
            raise IndexError(f"rows {begin} to {stop} of {len(self)} in {self.path}")
        offset, count = self.offset + begin * self.row_bytes, (stop - begin) * math.prod(self.shape[1:])
        found: Array = np.fromfile(self.path, self.dtype, count, offset=offset)
        return found.reshape(stop - begin, *self.shape[1:])

    def like(self, rows: int, blocks: Callable[[], Iterable[Array]]) -> Streamed:
        """Return an array of such rows."""
        return Streamed(self.dtype, (rows, *self.shape[1:]), blocks)

    def streamed(self) -> Array | Streamed:
        """Return the array, to be read while it is written."""
        if not self.shape:
            return np.fromfile(self.path, self.dtype, 1, offset=self.offset).reshape(())
        return self.like(len(self), self._blocks)

    def _blocks(self) -> Iterator[Array]:
        step = max(1, LARGE // max(1, self.row_bytes))
        return (self.read(begin, min(len(self), begin + step)) for begin in range(0, len(self), step))


class ShardFile:
    """The file of a shard, of which arrays are read in parts.

    Raises ValueError if it is no such file, OSError if it cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = os.fstat(file.fileno()).st_size - 8 - length
            if size < 0:
                raise ValueError(f"{path} is not the file of a shard: it is too short")
            header = json.loads(file.read(length))
        try:
            table = json.loads(header.pop("__metadata__")["sparkdl"])
            arrays = {name: self._stored(path, 8 + length, size, entry) for name, entry in header.items()}
            self.messages = [
                (entry["meta"], {name: arrays[f"{i}.{name}"] for name in entry["arrays"]})
                for i, entry in enumerate(table)
            ]
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not the file of a shard: {error!r:.200}") from error

    @staticmethod
    def _stored(path: str, start: int, size: int, entry: Mapping[str, Any]) -> StoredArray:
        (begin, end), shape = entry["data_offsets"], tuple(entry["shape"])
        found = StoredArray(path, start + begin, _DTYPES[entry["dtype"]], shape)
        if not 0 <= begin <= end <= size or math.prod(shape) * found.dtype.itemsize != end - begin:
            raise ValueError(f"{path} is not the file of a shard: an array has {entry!r:.200}")
        return found


@dataclass(frozen=True, slots=True)
class WriteShard:
    """Task that writes the file of the shard that it owns.

    A second attempt writes the same bytes, so it does not matter which of the two is last.
    """

    folder: str  # folder, or its URL, that all executors reach
    count: int  # number of shards
    # of rows of embedding variables only those that have changed since so many completed iterations; 0 for
    # all
    since: int = 0
    layer: int = 0  # number of the layer, counted from the newest; see :meth:`Engine.run_on_persisted`

    def __call__(self, index: int, frames: Iterator[Buffer]) -> Iterator[Parts]:
        """Yield the file's name and checksum."""
        found: list[_Message] = []
        for own in frames:
            message = frame.unpack(own)
            if is_of_rows(own):
                found.append(_changed(OwnedRows.read(message, False), self.since))
            elif not self.layer and frame.kind_of(own) != Master.kind:
                found.append((message.meta, message.arrays))
        name = name_of(index, self.count, layer_kind(self.layer))
        digest = write_whole(posixpath.join(self.folder, name), parts_of(found))
        yield frame.pack({"name": name, "sha256": digest})


def _changed(owned: OwnedRows, since: int) -> _Message:
    """Return the message with the rows that have changed since so many completed iterations."""
    changed: dict[str, Entries] = {}
    chosen: dict[str, Array | Streamed] = {}
    for number, (name, own) in enumerate(owned.tables.items()):
        late = own.which_changed(since)
        if late is None:  # all rows are written
            changed[name] = own
            continue
        none = own.ids[:0]
        log = replace(own, ids=none, counts=none, last=none, admitted=own.admitted[:0], columns={})
        changed[name] = log.changed(since)
        with_row = late[own.admitted]
        for part, values in replace(own, pages=None).arrays(f"{number}.").items():
            if part.partition(".")[2] not in ("gone", "gone_at"):
                which = with_row if ".column." in part else late
                chosen[part] = _streamed(values, which)
    message = OwnedRows(changed).frame()
    return message.meta, {**message.arrays, **chosen}


def _streamed(values: Array, chosen: NDArray[np.bool_]) -> Streamed:
    """Return some rows of an array, which may lie in a file that is mapped to memory."""
    step = max(1, LARGE // max(1, values[:1].nbytes))

    def blocks() -> Iterator[Array]:
        for begin in range(0, len(values), step):
            yield values[begin : begin + step][chosen[begin : begin + step]]
            trim_all()

    return Streamed(values.dtype, (int(chosen.sum()), *values.shape[1:]), blocks)


def digest_of(path: str) -> str:
    """Return the sha256 of a local file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: str, parts: Iterable[Buffer]) -> str:
    """Write a file that appears at once, and return its sha256; see :func:`put_whole`."""
    fs, inside = url_to_fs(path)
    return put_whole(fs, inside, parts)


def put_whole(fs: Any, path: str, parts: Iterable[Buffer]) -> str:
    """Write a file that appears at once, and return its sha256.

    Stores let it appear at once by themselves, folders by a rename. The parts are not copied as a whole: what
    lies in mapped files may be larger than memory.
    """
    if isinstance(fs, LocalFileSystem):
        draft = f"{path}.{uuid.uuid4().hex}"
        try:
            digest = write_parts(draft, parts)
            os.replace(draft, path)
        except BaseException:
            if os.path.exists(draft):
                os.remove(draft)
            raise
        return digest
    stream, head, size = iter(parts), list[Buffer](), 0
    for part in stream:
        head.append(part)
        size += len(part)
        if size > LARGE:
            break
    else:
        data = b"".join(head)
        fs.pipe_file(path, data)
        return hashlib.sha256(data).hexdigest()
    with tempfile.TemporaryDirectory(dir=local_folders()[0]) as folder:  # for its owner alone
        draft = os.path.join(folder, "shard")
        digest = write_parts(draft, chain(head, stream))
        fs.put_file(draft, path)
    return digest


def write_parts(path: str, parts: Iterable[Buffer]) -> str:
    """Write a local file, see it to the disk, and return its sha256."""
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for part in parts:
            for begin in range(0, len(part), LARGE):
                some = memoryview(part)[begin : begin + LARGE]
                file.write(some)
                digest.update(some)
                if len(some) == LARGE:
                    trim_all()
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
