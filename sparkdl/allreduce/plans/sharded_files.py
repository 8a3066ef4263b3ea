"""Files that the sharded plan's phases leave on an executor for later ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import Average, Message, State, UpdatedShard, of_type
from sparkdl.compute.local_store import LocalStore
from sparkdl.compute.problems import LackingState, ProblemError
from sparkdl.compute.start import ModelVersion, Start
from sparkdl.wire import frame
from sparkdl.wire.frame import Array
from sparkdl.wire.held import Held, Owned

WEIGHTS = "weights"
"""Part of a version: its shards, as they have arrived on an executor."""

Buffers = Mapping[str, Array]
"""Buffers and counters by kind, and the combined gradient if the driver wants it."""


@dataclass(frozen=True, slots=True)
class OwnShard:
    """The state of a shard."""

    weights: Held[Array] | None
    state: State | None
    average: Average | None

    @classmethod
    def read(cls, files: LocalStore, start: Start, done: int, n: int, *, take: bool) -> OwnShard:
        """Return the shard's state after the step before.

        Args:
            files: what lies on this executor.
            start: the model from which the group starts.
            done: steps of the group that are completed.
            n: the shard.
            take: whether it may be overwritten. Shard and state are then updated in place, which spares four
                copies of the shard. A task that runs again does not find them any more, and the group is run
                again with a seed.
        """
        if not done and not start.kept:
            return cls(None, None, None)
        if not done and start.seed:
            return cls._among([messages.read(message, mine=True) for message in start.seed_of(n)])
        version = start.after(done)
        name = version.part(shard_part(n))
        found = files.take(name) if take else files.read(name)
        if found is None:
            raise ProblemError(LackingState(version.iteration, name))
        return cls._among([messages.decode(packed, mine=take) for packed in found])

    @classmethod
    def _among(cls, messages: Sequence[Message]) -> OwnShard:
        shard, state, average = (
            next(iter(of_type(messages, UpdatedShard)), None),
            next(iter(of_type(messages, State)), None),
            next(iter(of_type(messages, Average)), None),
        )
        return cls(shard.held if shard is not None else None, state, average)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A version of the model on an executor, but for its weights.

    Attributes:
        arrays: buffers, counters and the combined gradient, if the driver wants it.
        trail: reports of the group's steps so far, in their order, as JSON: it is passed
            on from phase to phase, and only the last one reads it.
    """

    arrays: Buffers
    trail: Sequence[bytes]

    @classmethod
    def read(cls, files: LocalStore, version: ModelVersion) -> ModelFiles | None:
        """Return what this executor has of a version, or ``None``."""
        found = files.read(version.name)
        if found is None:
            return None
        arrays, *trail = found
        return cls(frame.unpack(arrays).arrays, [frame.join(frame.parts(line)) for line in trail])

    def leave(self, files: LocalStore, start: Start, done: int) -> None:
        """Leave it for the next tasks, and delete what no task of the group needs.

        Those are all versions but this one, the one before it, and the one that the group has started from.
        Other processes of the executor do the same; who has mapped a file keeps it. Where there are none,
        older ones are needed only by tasks that run again, which the driver sends what they need.
        """
        version = start.after(done)
        files.leave(version.name, [frame.pack({"kind": "model"}, self.arrays), *self.trail])
        keep = {version.name}
        if not files.in_memory:
            keep |= {start.after(max(done - 1, 0)).name, start.version.name}
        files.discard(lambda name: name.split(".")[0] not in keep)


def model_before(
    start: Start, done: int, n: int, files: LocalStore, bounds: tuple[int, int]
) -> tuple[Buffers, Held[Array] | None]:
    """Return buffers and counters before a step, and a shard of the weights if the driver has sent them."""
    if done:
        return _model_of_group(start, done, files).arrays, None
    found = start.load_weights(files, once=True)
    if found is None:
        raise ProblemError(LackingState(start.version.iteration, f"shard {n}"))
    params = found.arrays.get("params")
    # The frame that they lie in need not stay in memory.
    buffers = {name: np.array(found.arrays[name]) for name in ("buffers", "counters")}
    return buffers, None if params is None else Owned(np.array(params[bounds[0] : bounds[1]]))


def model_after(start: Start, done: int, files: LocalStore) -> ModelFiles:
    """Return the model after some steps of a group."""
    if done:
        return _model_of_group(start, done, files)
    found = ModelFiles.read(files, start.version)
    if found is None:
        sent = start.load_weights(files, once=True)
        if sent is None:
            raise ProblemError(LackingState(start.version.iteration, "the buffers"))
        return ModelFiles(sent.arrays, [])
    return ModelFiles(found.arrays, [])


def read_weights(files: LocalStore, version: ModelVersion) -> Sequence[Array] | None:
    """Return the shards that a task of this executor has left."""
    found = files.read(version.part(WEIGHTS))
    return None if found is None else list(frame.unpack(found[0]).arrays.values())


def write_weights(files: LocalStore, version: ModelVersion, weights: Sequence[Array]) -> None:
    """Leave the shards of the weights, as they have arrived."""
    arrays = {str(i): values for i, values in enumerate(weights)}
    files.leave(version.part(WEIGHTS), [frame.pack({"kind": WEIGHTS}, arrays)])


def shard_part(n: int) -> str:
    """Return the name of the part of a version that holds a shard and its state."""
    return f"shard-{n}"


def _model_of_group(start: Start, done: int, files: LocalStore) -> ModelFiles:
    """Return the model after at least one step of a group."""
    version = start.after(done)
    found = ModelFiles.read(files, version)
    if found is None or len(found.trail) != done:
        raise ProblemError(LackingState(version.iteration, "the buffers"))
    return found
