"""The state of a shard between iterations, as a safetensors file.

A checkpoint has one such file per shard. Where all executors can reach its folder, the tasks that own the
shards write them side by side; otherwise the driver does.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from safetensors import SafetensorError
from safetensors.numpy import load

from sparkdl import frame
from sparkdl.allreduce.kept import is_of_rows
from sparkdl.allreduce.messages import Master
from sparkdl.allreduce.row_layers import changed_rows
from sparkdl.frame import Array, Buffer, Packed, Parts
from sparkdl.keyed.arrays import LARGE, trim_all
from sparkdl.private import local_folders

_KINDS = {
    **{f"f{size}": f"F{8 * size}" for size in (2, 4, 8)},
    **{f"i{size}": f"I{8 * size}" for size in (1, 2, 4, 8)},
    **{f"u{size}": f"U{8 * size}" for size in (1, 2, 4, 8)},
    "b1": "BOOL",
}
"""What safetensors calls the dtypes of numpy."""


def name_of(index: int, count: int, kind: str = "shard") -> str:
    """Return the file name of a shard; its first word was ``slice`` in checkpoints of format 1."""
    return f"{kind}-{index:05d}-of-{count:05d}.safetensors"


def layer_kind(layer: int) -> str:
    """Return the first word of the files of a layer, counted from the newest; only this one has state."""
    return f"below{layer}" if layer else "shard"


def encode(frames: Sequence[Packed]) -> bytes:
    """Return the file of one shard's frames."""
    return frame.join(laid_out(frames))


def laid_out(frames: Sequence[Packed]) -> Parts:
    """Return the parts of the file of one shard's frames; their arrays are not copied."""
    arrays: dict[str, Array] = {}
    table: list[dict[str, Any]] = []
    for i, data in enumerate(frames):
        message = frame.unpack(data)
        table.append({"meta": message.meta, "arrays": list(message.arrays)})
        arrays |= {f"{i}.{name}": in_order(a) for name, a in message.arrays.items()}
    header: dict[str, Any] = {"__metadata__": {"sparkdl": json.dumps(table)}}
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    position = 0
    for name, array in ordered:
        place = [position, position + array.nbytes]
        header[name] = {"dtype": _KINDS[array.dtype.str[1:]], "shape": array.shape, "data_offsets": place}
        position = place[1]
    told = json.dumps(header, separators=(",", ":")).encode()
    told += b" " * (-len(told) % 8)
    whole: list[Any] = [array.reshape(-1) for _, array in ordered]
    return [len(told).to_bytes(8, "little"), told, *(memoryview(flat).cast("B") for flat in whole)]


def in_order(array: Array) -> Array:
    """Return an array as safetensors can write it; one without dimensions stays so."""
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def decode(data: bytes) -> list[bytes]:
    """Return the frames of a shard's file.

    Raises:
        ValueError: if it is no such file.
    """
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
class WriteShard:
    """Task that writes the file of the shard that it owns.

    A second attempt writes the same bytes, so it does not matter which of the two is last.

    Attributes:
        folder: folder, or its URL, that all executors reach.
        count: number of shards.
        since: of rows of embedding variables only those that have changed since so many completed
            iterations; 0 for all.
        layer: number of the layer, counted from the newest; see :meth:`Engine.run_on_kept`.
    """

    folder: str
    count: int
    since: int = 0
    layer: int = 0

    def __call__(self, index: int, frames: Iterator[Buffer]) -> Iterator[Parts]:
        """Yield the file's name and checksum."""
        kept: list[Packed] = []
        for own in frames:
            if is_of_rows(own):
                kept.append(changed_rows(own, self.since))
            elif not self.layer and frame.kind_of(own) != Master.kind:
                kept.append(own)
        name = name_of(index, self.count, layer_kind(self.layer))
        digest = write_whole(posixpath.join(self.folder, name), laid_out(kept))
        yield frame.pack({"name": name, "sha256": digest})


def digest_of(path: str) -> str:
    """Return the sha256 of a local file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_synced(path: str, data: bytes) -> None:
    """Write a local file and see it to the disk."""
    _write_parts(path, [data])


def write_whole(path: str, parts: Parts) -> str:
    """Write a file that appears at once, and return its sha256.

    Stores let it appear at once by themselves, folders by a rename. The parts are not copied as a whole: what
    lies in mapped files may be larger than memory.
    """
    fs, inside = url_to_fs(path)
    if isinstance(fs, LocalFileSystem):
        draft = f"{inside}.{uuid.uuid4().hex}"
        try:
            digest = _write_parts(draft, parts)
            os.replace(draft, inside)
        except BaseException:
            if os.path.exists(draft):
                os.remove(draft)
            raise
        return digest
    if frame.size(parts) <= LARGE:
        data = frame.join(parts)
        fs.pipe_file(inside, data)
        return hashlib.sha256(data).hexdigest()
    with tempfile.TemporaryDirectory(dir=local_folders()[0]) as folder:  # for its owner alone
        draft = os.path.join(folder, "shard")
        digest = _write_parts(draft, parts)
        fs.put_file(draft, inside)
    return digest


def _write_parts(path: str, parts: Parts) -> str:
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
