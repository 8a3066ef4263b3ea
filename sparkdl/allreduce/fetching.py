"""State of the shards of a model, fetched: optimizer state, and rows of embedding variables in all layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sparkdl.access.in_pieces import ChainTask
from sparkdl.allreduce.persisted import PersistedShards
from sparkdl.allreduce.row_layers import as_shard_states, complete, pass_changed_rows
from sparkdl.allreduce.shard_states import ShardStates, joined_rows, unpacked
from sparkdl.allreduce.state import ModelState
from sparkdl.keyed.entries import Entries
from sparkdl.wire.frame import Frame


def whole(shards: PersistedShards, model: ModelState) -> ShardStates:
    """Return the state of the shards, but for their weights, with all rows."""
    found = shards.fetch(model.persisted)
    return complete([*_below(shards, model), found]) if model.layers.below else found


def changes(shards: PersistedShards, model: ModelState, since: int) -> list[ShardStates]:
    """Return the state of the shards, and in layers the rows that have changed since so many iterations.

    The layers are for :func:`~sparkdl.allreduce.row_layers.complete`, to be put above those of that time.
    """
    above = [
        as_shard_states(shards.rows(layer.persisted, partial(pass_changed_rows, since)))
        for layer in model.layers.since(model.persisted, since)
    ]
    state = shards.fetch(model.persisted, rows=False)
    *early, last = above
    return [*early, [[*frames, *rows] for frames, rows in zip(state, last, strict=True)]]


def rows(shards: PersistedShards, model: ModelState) -> dict[str, Entries]:
    """Return all rows, with the optimizer's state."""
    own = as_shard_states(shards.rows(model.persisted))
    return joined_rows(unpacked(complete([*_below(shards, model), own])))


def run(
    shards: PersistedShards, model: ModelState, task: Callable[[int], ChainTask], doing: str, since: int
) -> list[Frame]:
    """Run tasks over the state of each shard, and over rows in the layers below."""
    layers = reversed(model.layers.since(model.persisted, since))
    return [
        message
        for number, layer in enumerate(layers)
        for message in shards.run(layer.persisted, task(number), doing)
    ]


def _below(shards: PersistedShards, model: ModelState) -> list[ShardStates]:
    return [as_shard_states(shards.rows(layer.persisted)) for layer in model.layers.below]
