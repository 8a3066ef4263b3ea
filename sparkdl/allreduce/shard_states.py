"""Copies on the driver of the state of the shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from sparkdl.allreduce.messages import Average, OwnedRows, State, encode
from sparkdl.keyed.entries import Entries, joined
from sparkdl.optim.shard.run import cut_states
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Buffer, Frame, Parts
from sparkdl.wire.held import Shared

ShardStates = list[list[bytes]]
"""Per shard, the frames that stay with it between iterations."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights and buffers of one moment, as read-only flat vectors."""

    params: Array  # trainable parameters, in the order of the layout
    buffers: Array  # floating-point buffers
    counters: Array  # integer and boolean buffers


def is_of_rows(data: Buffer) -> bool:
    """Return whether a frame has rows of embedding variables."""
    return frame.kind_of(data) == OwnedRows.kind


def unpacked(states: ShardStates) -> list[Frame]:
    """Return the frames of all shards, in their order."""
    return [frame.unpack(data) for frames in states for data in frames]


def cut_shard_states(messages: Sequence[Frame], bounds: Sequence[tuple[int, int]]) -> list[list[Parts]]:
    """Cut the state of all shards, optimizer state and averaged weights in their order, for new shards."""
    states = [message for message in messages if message.meta["kind"] == State.kind]
    new = [[parts] for parts in cut_states(states, bounds)] if states else [[] for _ in bounds]
    averages: list[Any] = [m.arrays["params"] for m in messages if m.meta["kind"] == Average.kind]
    if averages:
        whole = np.concatenate(averages)
        for frames, (start, stop) in zip(new, bounds, strict=True):
            frames.append(encode(Average(Shared(whole[start:stop]))))
    tables = joined_rows([message for message in messages if message.meta["kind"] == OwnedRows.kind])
    if tables:
        for rank, frames in enumerate(new):
            own = {name: entries.of_owner(rank, len(bounds)) for name, entries in tables.items()}
            frames.append(encode(OwnedRows(own)))
    return new


def joined_rows(states: Sequence[Frame]) -> dict[str, Entries]:
    """Return the entries of each table, from those of all its owners."""
    owned = [OwnedRows.read(message, False) for message in states]
    names = dict.fromkeys(name for part in owned for name in part.tables)
    return {name: joined([part.tables[name] for part in owned]) for name in names}


def with_rows(snapshot: Snapshot, rows: Mapping[str, Entries]) -> Parts:
    """Return weights and rows as one frame, for tasks that evaluate them; see :func:`rows_in`."""
    arrays = {"params": snapshot.params, "buffers": snapshot.buffers, "counters": snapshot.counters}
    for number, entries in enumerate(rows.values()):
        rows_alone = replace(entries.without_state(), pages=None)
        arrays |= rows_alone.arrays(f"rows.{number}.")
    return frame.pack({"kind": "weights", "tables": list(rows)}, arrays)


def rows_in(weights: Frame) -> dict[str, Entries]:
    """Return the rows in a frame of weights, by table."""
    names = weights.meta.get("tables", [])
    return {name: Entries.read(weights.arrays, f"rows.{n}.", {}) for n, name in enumerate(names)}


def check_shard_states(states: Sequence[Sequence[Buffer]], numel: int) -> None:
    """Check that the state of the shards in a file covers the weights once, from first to last.

    Raises ValueError, LookupError or TypeError if it does not.
    """
    ends = {"state": 0, "average": 0}
    for message in map(frame.unpack, chain.from_iterable(states)):
        kind = message.meta["kind"]
        if kind == OwnedRows.kind:
            OwnedRows.read(message, False)
            continue
        if kind == "average":
            ends[kind] += message.arrays["params"].size
            continue
        for start, stop, group, scalars in message.meta["runs"]:
            if not (
                start == ends[kind] <= stop
                and isinstance(stop, int)
                and isinstance(group, int)
                and group >= 0
            ):
                raise ValueError(f"state of weights {start!r:.20} to {stop!r:.20} after {ends[kind]}")
            ends[kind] = stop
            dict(scalars)
    for kind, end in ends.items():
        if end not in (0, numel):
            raise ValueError(f"{kind} of {end} weights, expected {numel}")


def state_names(states: Sequence[Sequence[Buffer]]) -> dict[int, set[str]]:
    """Return the names of the optimizer's state, by parameter group that has state."""
    names: dict[int, set[str]] = {}
    for message in map(frame.unpack, chain.from_iterable(states)):
        for index, (_, _, group, scalars) in enumerate(message.meta.get("runs", [])):
            prefix = f"{index}."
            arrays = {n.removeprefix(prefix) for n in message.arrays if n.startswith(prefix)}
            if found := {*scalars, *arrays}:
                names.setdefault(group, set()).update(found)
    return names
