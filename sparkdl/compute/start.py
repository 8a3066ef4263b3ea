"""The start of a group of iterations, as it is sent to its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from sparkdl.access.base import BytesRef
from sparkdl.compute.local_store import LocalStore, decode
from sparkdl.data.store.manifest import Manifest
from sparkdl.wire import frame
from sparkdl.wire.frame import Frame


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """Names a version of the model of a fit."""

    # how often the fit had gone back, or on from weights that no iteration made, before it was made: of two
    # versions with as many iterations the older one may be another model
    generation: int
    iteration: int  # completed iterations

    @property
    def name(self) -> str:
        """Name of its files on an executor; names of parts follow after a dot."""
        return f"{self.generation}-{self.iteration}"

    def part(self, what: str) -> str:
        """Return the name of a part of it."""
        return f"{self.name}.{what}"


class Origin(Enum):
    """Where the ranks of a group find the model from which it starts."""

    EXECUTORS = "the executors have it"
    DRIVER = "the driver sends it; the messages of a rank to itself stay on its executor"
    DRIVER_ALONE = "the driver sends it, for one step that relies on no file of an executor"


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a group of iterations."""

    version: ModelVersion  # the model's version
    generation: int  # generation of the versions that the group makes
    weights: BytesRef | None  # frame of its weights; ``None`` if the executors have it
    has_state: bool  # whether anything stays with the weights between iterations
    manifest: Manifest  # checksums of the partitions' first build
    # state of the weights, whole or one per shard; empty if the executors have it, or there is none
    seed: tuple[BytesRef, ...] = ()
    local: bool = True  # whether messages of a rank to itself stay on its executor
    changes: bool = False  # whether of rows of embedding variables only those stay that the group changes
    # whether an error of the module in a group of one step is raised in its task, so that Spark tries the
    # task again; otherwise it is sent as a problem, as in longer groups
    raises: bool = True

    def after(self, steps: int) -> ModelVersion:
        """Return the version after some steps of the group."""
        return ModelVersion(self.generation, self.version.iteration + steps) if steps else self.version

    @property
    def whole(self) -> bool:
        """Whether the driver has sent all that is needed."""
        return self.weights is not None and (bool(self.seed) or not self.has_state)

    def load_weights(self, files: LocalStore, *, once: bool = False) -> Frame | None:
        """Return params, buffers and counters; ``None`` if this executor does not have them.

        Args:
            files: what earlier tasks have left here.
            once: whether this process is not to keep them if the driver sends them.
        """
        if self.weights is not None:
            return frame.unpack(self.weights.read(once=once))
        found = files.read(self.version.name)
        return frame.unpack(found[0]) if found is not None else None

    def load(self, files: LocalStore) -> tuple[Frame, Sequence[Frame]] | None:
        """Return the weights and their state; ``None`` if this executor lacks one of them."""
        if self.whole:
            weights = self.load_weights(files)
            assert weights is not None
            return weights, list(self.seed_of(0)) if self.seed else []
        found = files.read(self.version.name)
        if found is None:
            return None
        weights, *states = map(frame.unpack, found)
        return weights, states

    def seed_of(self, shard: int) -> Iterator[Frame]:
        """Read the state of a shard, to be overwritten."""
        return (frame.unpack(data, writable=True) for data in decode(self.seed[shard].read(once=True)))
