"""The state of a shard between iterations, as a safetensors file.

A checkpoint has one such file per shard. Where all executors can reach its folder, the tasks that own the
shards write them side by side; otherwise the driver does.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sparkdl import frame
from sparkdl.allreduce.kept import is_of_rows
from sparkdl.allreduce.messages import Master
from sparkdl.allreduce.row_layers import changed_rows
from sparkdl.frame import Array, Buffer, Parts


def name_of(index: int, count: int, kind: str = "shard") -> str:
    """Return the file name of a shard; its first word was ``slice`` in checkpoints of format 1."""
    return f"{kind}-{index:05d}-of-{count:05d}.safetensors"


def layer_kind(layer: int) -> str:
    """Return the first word of the files of a layer, counted from the newest; only this one has state."""
    return f"below{layer}" if layer else "shard"


def encode(frames: Sequence[Buffer]) -> bytes:
    """Return the file of one shard's frames."""
    arrays: dict[str, Array] = {}
    table: list[dict[str, Any]] = []
    for i, data in enumerate(frames):
        message = frame.unpack(data)
        table.append({"meta": message.meta, "arrays": list(message.arrays)})
        arrays |= {f"{i}.{name}": in_order(a) for name, a in message.arrays.items()}
    return save(arrays, metadata={"sparkdl": json.dumps(table)})


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
        kept: list[Buffer] = []
        for own in frames:
            if is_of_rows(own):
                kept.append(frame.join(changed_rows(own, self.since)))
            elif not self.layer and frame.kind_of(own) != Master.kind:
                kept.append(own)
        data = encode(kept)
        name = name_of(index, self.count, layer_kind(self.layer))
        write_whole(posixpath.join(self.folder, name), data)
        yield frame.pack({"name": name, "sha256": hashlib.sha256(data).hexdigest()})


def digest_of(path: str) -> str:
    """Return the sha256 of a local file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_synced(path: str, data: bytes) -> None:
    """Write a local file and see it to the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: str, data: bytes) -> None:
    """Write a file that appears at once: stores do so by themselves, folders by a rename."""
    fs, inside = url_to_fs(path)
    if not isinstance(fs, LocalFileSystem):
        fs.pipe_file(inside, data)
        return
    draft = f"{inside}.{uuid.uuid4().hex}"
    try:
        write_synced(draft, data)
        os.replace(draft, inside)
    except BaseException:
        if os.path.exists(draft):
            os.remove(draft)
        raise
