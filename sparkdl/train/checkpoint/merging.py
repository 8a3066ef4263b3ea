"""All rows of embedding variables, from a checkpoint that has them and what has changed since.

So executors write, or send the driver, what has changed, also for a checkpoint with all rows. Memory is
bounded: files are read and written some MiB at a time. Besides, there is a bit for each entry, and as much
for ids that have changed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from sparkdl.allreduce.messages import OwnedRows
from sparkdl.allreduce.shard_files import ShardFile, Streamed, Write, name_of, parts_of, write_whole
from sparkdl.train.checkpoint.reading import Opened
from sparkdl.train.checkpoint.stored_rows import Check, LayerPart, StoredTable, merge_parts
from sparkdl.wire.frame import Array, Buffer
from sparkdl.wire.private import local_folders

File = Callable[[], AbstractContextManager[str]]
"""Gives a local path of a file for a while."""


def merge(
    base: str, folder: str, digests: Mapping[str, str], write: Write, check: Check = lambda: None
) -> dict[str, str]:
    """Write files of shards with all rows, in place of those with changes alone; return sha256 by name.

    Other files of shards there are not needed any more. Raises ConfigError if one is missing or damaged,
    OSError if one cannot be read or written.
    """
    layers = [layer for link in Opened(base).links() for layer in link.layers()]
    return _merged_layers([*layers, *Opened(folder, digests).layers()], write, check)


def _merged_layers(layers: Sequence[Sequence[File]], write: Write, check: Check) -> dict[str, str]:
    """Write the files of the last layer's shards, with the rows of all layers, the oldest first."""
    count, found = len(layers[-1]), dict[str, str]()
    change = next((n for n in range(len(layers), 0, -1) if len(layers[n - 1]) != count), 0)
    with ExitStack() as whole:
        others: list[ShardFile] = []
        if change:  # other owners had the rows below
            others = [ShardFile(path) for path in _whole(layers[:change], whole, check)]
        for index in range(count):
            with ExitStack() as shard:
                own = [ShardFile(shard.enter_context(layer[index]())) for layer in layers[change:]]
                parts = parts_of(_messages(own, others, (index, count), check))
                found[name_of(index, count)] = write(name_of(index, count), _checked(parts, check))
    return found


def _checked(parts: Iterable[Buffer], check: Check) -> Iterator[Buffer]:
    for part in parts:
        check()
        yield part


def _whole(layers: Sequence[Sequence[File]], stack: ExitStack, check: Check) -> list[str]:
    """Return the files of shards that have all rows of some layers, the oldest first."""
    if len(layers) == 1:
        return [stack.enter_context(file()) for file in layers[0]]
    # For its owner alone.
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkdl-rows-", dir=local_folders()[0]))
    names = _merged_layers(layers, lambda name, parts: write_whole(os.path.join(folder, name), parts), check)
    return [os.path.join(folder, name) for name in names]


def _messages(
    layers: Sequence[ShardFile], others: Sequence[ShardFile], owner: tuple[int, int], check: Check
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Array | Streamed]]]:
    """Yield what a shard's file has, in the order of the last layer's."""
    for meta, arrays in layers[-1].messages:
        if meta["kind"] != OwnedRows.kind:
            yield meta, {name: stored.streamed() for name, stored in arrays.items()}
            continue
        values: list[dict[str, Any]] = []
        found: dict[str, Array | Streamed] = {}
        for number, table in enumerate(meta["tables"]):
            parts = [LayerPart.of([StoredTable.of(file, table)], None) for file in layers]
            if others:
                parts.insert(0, LayerPart.of([StoredTable.of(file, table) for file in others], owner))
            rows = merge_parts(parts, check)
            if rows.common.since:
                raise ValueError(f"{layers[-1].path} has changes of table {table!r} without rows below them")
            values.append(rows.values)
            found |= rows.arrays(f"{number}.")
        yield {**meta, "values": values, "figures": {}}, found
