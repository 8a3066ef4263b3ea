"""Saved models without Spark: the folders that it writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl.saved import content as saved
from sparkdl.saved import weights
from sparkdl.saved.content import Content
from sparkdl.saved.metadata import SHA256, seal
from support.mutations import Tree, write_tree

METADATA = "metadata/part-00000.txt"


def describe(content: Content, allow_pickle: bool = False) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the metadata of a model, without checksums, and its streams by folder."""
    info, code = saved.describe(content, allow_pickle)
    streams = {"code": b"" if code is None else code}
    if content.module is not None:
        streams["weights"] = b"".join(piece.data for piece in weights.write(content.module, 8 << 20))
    params = {"paramMap": {}, "defaultParamMap": {}, "sparkVersion": "4.0.0"}
    metadata = {"class": "sparkdl.ml.estimators.model.TorchModel", "uid": "TorchModel_0", **params}
    return {**metadata, "sparkdl": {**info, "hyper": []}}, streams


def folder_of(metadata: dict[str, Any], streams: dict[str, bytes], chunk: int = 64) -> Tree:
    """Return the files of a model, with the checksums of the streams unless its format has none."""
    tree: Tree = {"metadata/_SUCCESS": b""}
    for name, data in streams.items():
        tree[f"{name}/_SUCCESS"] = b""
        rows = cut(data, chunk)
        for number, group in enumerate((rows[1::2], rows[::2])):  # files in the wrong order
            tree[f"{name}/part-{number}.parquet"] = parquet(group)
    if metadata["sparkdl"].get("format") in (1, None):
        metadata["sparkdl"].pop(SHA256, None)
        tree[METADATA] = json.dumps(metadata).encode() + b"\n"
    else:
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in streams.items()}
        tree[METADATA] = seal(metadata, digests).encode() + b"\n"
    return tree


def cut(data: bytes, chunk: int) -> list[tuple[int, bytes]]:
    """Cut a stream: the header of weights, then equal pieces; what is no safetensors file is one piece."""
    first = 8 + int.from_bytes(data[:8], "little")
    if not data or first > len(data):
        return [(0, data)] if data else []
    places = [0, *range(first, len(data), chunk)]
    return [(begin, data[begin:end]) for begin, end in zip(places, [*places[1:], len(data)], strict=True)]


def parquet(rows: Sequence[tuple[Any, Any]]) -> bytes:
    """Return a file of pieces."""
    columns = {"offset": [offset for offset, _ in rows], "data": [data for _, data in rows]}
    file = BytesIO()
    pq.write_table(pa.table(columns, pa.schema({"offset": pa.int64(), "data": pa.binary()})), file)
    return file.getvalue()


def write(
    path: Path, content: Content, *, chunk: int = 64, allow_pickle: bool = False, **changes: Any
) -> None:
    """Write a folder as Spark does.

    Args:
        path: folder.
        content: what to save.
        chunk: bytes of a piece.
        allow_pickle: whether a pickle may be written.
        changes: of our entry in the metadata.
    """
    metadata, streams = describe(content, allow_pickle)
    metadata["sparkdl"] |= changes
    write_tree(folder_of(metadata, streams, chunk), path)
