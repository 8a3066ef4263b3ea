"""Weights alone: one safetensors file, and its checksum beside it in a file as ``sha256sum`` writes it.

The checksum lies beside the file and not in its header, so that the file is what any program expects, and
``sha256sum -c weights.safetensors.sha256`` compares it, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from sparkdl.allreduce import shard_files
from sparkdl.saved.integrity import check_digest
from sparkdl.train.checkpoint.store import CheckpointStore, Path

_ENDING = ".safetensors"
_LINE = re.compile(r"(?P<digest>[0-9a-fA-F]{64})( [ *].*)?\s*", re.ASCII)


def is_exported(path: Path) -> bool:
    """Return whether a path is that of a file of weights, and not of a checkpoint's folder."""
    return os.fspath(path).endswith(_ENDING)


def write_checksum(file: str) -> str:
    """Write the checksum of a local file beside it, and return where."""
    beside = f"{file}.sha256"
    with open(beside, "w") as checksum:
        checksum.write(f"{shard_files.digest_of(file)}  {os.path.basename(file)}\n")
    return beside


@contextmanager
def verified(path: Path) -> Iterator[str]:
    """Give a file's local path, its checksum compared if one lies beside it; ConfigError if it is another."""
    store = CheckpointStore(path)
    beside = f"{store.root}.sha256"
    with store.on_disk(store.root) as file:
        if store.exists(beside):
            line = _LINE.fullmatch(store.read(beside).decode(errors="replace"))
            expected = line["digest"].lower() if line else f"unreadable in {beside}"
            check_digest(f"{path} is", shard_files.digest_of(file), expected)
        yield file
