"""Rows of embedding variables in layers: all of them at some time, and what has changed since.

What Spark keeps at the end of a group has the rows that the group has changed. The layers below it have the
others, down to one with all rows. A group keeps all rows again when there are many layers, or when they
have about as many entries as the tables. So storage is bounded, and a group costs what it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from sparkdl.access.base import Persisted, Published
from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import OwnedRows
from sparkdl.allreduce.outcome import Outcome
from sparkdl.allreduce.shard_states import ShardStates, is_of_rows, joined_rows, unpacked
from sparkdl.keyed.entries import merged
from sparkdl.wire import frame
from sparkdl.wire.frame import Buffer, Frame, Parts

MOST = 16
"""Layers of changes above one with all rows: of each one a job reads, after a loss."""
_CHANGED, _IDS = "/changed", "/ids"


@dataclass(frozen=True, slots=True)
class Layer:
    """What Spark keeps of a group."""

    persisted: Persisted  # the cluster's handle
    iteration: int  # completed iterations then
    # what the tasks that made it name; needed as long as it is, for Spark ships those tasks' description with
    # every job that reads what they have made
    named: tuple[Published, ...] = ()


@dataclass(frozen=True, slots=True)
class RowLayers:
    """The layers below what a model keeps itself."""

    # the oldest first, which has all rows; none if the model's own layer has them
    below: tuple[Layer, ...] = ()
    iteration: int = 0  # completed iterations of the model's own layer; 0 if it is of no group
    changed: float = 0.0  # entries of all changes, at most
    entries: float = 0.0  # entries of the tables then

    @property
    def is_full(self) -> bool:
        """Whether the next group is to keep all rows."""
        return len(self.below) >= MOST or self.changed > self.entries

    def since(self, persisted: Persisted, since: int) -> list[Layer]:
        """Return the layers which have what has changed since so many iterations, the model's own last."""
        own = Layer(persisted, self.iteration)
        return [*(layer for layer in self.below if not since or layer.iteration > since), own]

    def above(
        self,
        persisted: Persisted,
        named: tuple[Published, ...],
        iteration: int,
        outcomes: Sequence[Outcome],
        *,
        changes: bool,
    ) -> RowLayers:
        """Return the layers of a group that starts from here."""
        extras = [outcome.extras for outcome in outcomes]
        entries = sum(value for name, value in extras[-1].items() if name.endswith(_IDS))
        if not changes:
            return RowLayers((), iteration, 0.0, entries)
        changed = sum(value for each in extras for name, value in each.items() if name.endswith(_CHANGED))
        below = (*self.below, Layer(persisted, self.iteration, named))
        return RowLayers(below, iteration, self.changed + changed, entries)


def pass_changed_rows(since: int, index: int, frames: Iterator[Buffer]) -> Iterator[Parts]:
    """Pass on, of the rows that stay with a shard, those that have changed since so many iterations."""
    for data in frames:
        if is_of_rows(data):
            owned = OwnedRows.read(frame.unpack(data), False)
            changed = {name: own.changed(since) for name, own in owned.tables.items()}
            yield messages.encode(OwnedRows(changed))


def complete(layers: Sequence[ShardStates]) -> ShardStates:
    """Return the frames of the last layer, with all rows; of the others, the oldest first, rows count."""
    if len(layers) == 1:
        return layers[0]
    count = len(layers[-1])
    if any(len(layer) != count for layer in layers):  # other owners had the rows below
        change = next(n for n in range(len(layers), 0, -1) if len(layers[n - 1]) != count)
        rows = joined_rows(unpacked(rows_only(complete(layers[:change]))))
        owned = [{name: own.of_owner(n, count) for name, own in rows.items()} for n in range(count)]
        below = [[frame.join(messages.encode(OwnedRows(tables)))] for tables in owned]
        return complete([below, *layers[change:]])
    return [
        [
            _merged([_rows_of(layer[shard]) for layer in layers]) if is_of_rows(data) else data
            for data in frames
        ]
        for shard, frames in enumerate(layers[-1])
    ]


def stacked(below: Sequence[ShardStates], above: Sequence[ShardStates]) -> list[ShardStates]:
    """Return layers with others above them: few ones, and not much more than all rows."""
    if not any(map(is_of_rows, chain.from_iterable(above[-1]))):
        return [*above]
    layers = [*map(rows_only, below), *above]
    sizes = [sum(map(len, chain.from_iterable(rows_only(layer)))) for layer in layers]
    return [complete(layers)] if len(layers) > MOST + 1 or sum(sizes[1:]) > sizes[0] else layers


def rows_only(layer: ShardStates) -> ShardStates:
    """Return the frames with rows."""
    return [[data for data in frames if is_of_rows(data)] for frames in layer]


def _rows_of(frames: Sequence[bytes]) -> OwnedRows:
    (found,) = (data for data in frames if is_of_rows(data))
    return OwnedRows.read(frame.unpack(found), False)


def _merged(parts: Sequence[OwnedRows]) -> bytes:
    tables = {name: merged([part.tables[name] for part in parts]) for name in parts[-1].tables}
    return frame.join(messages.encode(OwnedRows(tables)))


def as_shard_states(rows: Sequence[Frame]) -> ShardStates:
    """Return frames of rows, one of each shard, as what stays with the shards."""
    return [[frame.join(messages.pack(own))] for own in rows]
