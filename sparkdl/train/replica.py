"""Replicas of the whole model on the executors: weights and all that stays with them, by version.

Where every task receives all gradients, every executor can make the next weights itself. What it needs
for that, it finds as a file that the iteration before has left in the executor's local directory, mapped
by all its Python processes. A file that is not there (a new executor, a task that went elsewhere) is never
waited for: the task says so, and the driver runs the group of iterations again with a *seed*, a broadcast
of what was persisted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl import frame
from sparkdl._spark import broadcast_value
from sparkdl.allreduce.weights import WeightsRef
from sparkdl.frame import Array, Packed, Parts
from sparkdl.train.executor_files import (
    decode,
    delete_files,
    encode,
    fit_folder,
    forget_frames,
    forget_outdated,
    hold_frames,
    holds_files,
    read_frames,
    take_frames,
    write_file,
)

GRADIENT = "gradient-"
"""How the name begins under which a partition leaves its gradient for itself."""

_FOLDER = "replicas"


@dataclass(frozen=True, slots=True)
class Version:
    """Names a version of the model.

    Attributes:
        fit_id: unique id of the fit.
        generation: how often the fit has gone on from weights that no iteration made.
        iteration: completed iterations.
    """

    fit_id: str
    generation: int
    iteration: int

    def after(self, iterations: int) -> Version:
        """Return the version some iterations later."""
        return Version(self.fit_id, self.generation, self.iteration + iterations)

    @property
    def name(self) -> str:
        """The name of the version's file."""
        return f"{self.generation}-{self.iteration}"

    @property
    def folder(self) -> str:
        """The folder of this executor where the fit's versions are."""
        return f"{fit_folder(self.fit_id)}/{_FOLDER}"

    @property
    def path(self) -> str:
        """The version's file on this executor."""
        return f"{self.folder}/{self.name}"


@dataclass(frozen=True, slots=True)
class Replica:
    """A version of the model.

    Attributes:
        weights: frame of params, buffers and counters.
        kept: frames of the optimizer's state and the averaged weights.
        trail: what the iterations since the group's first have to report, in their order, as JSON: it is
            passed on from stage to stage, and only the last one reads it.
    """

    weights: Packed
    kept: Sequence[Packed]
    trail: Sequence[bytes] = ()

    @property
    def arrays(self) -> Mapping[str, Any]:
        """The weights' arrays."""
        return frame.unpack(self.weights).arrays

    def copy_buffers(self) -> dict[str, Array]:
        """Return copies of buffers and counters: views would hold on to all that the driver has sent."""
        arrays = self.arrays
        return {name: np.array(arrays[name]) for name in ("buffers", "counters")}


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a stage's tasks hand their gradients to the next stage.

    Attributes:
        version: the model that the gradients are of.
        whole: whether each partition gets them whole; otherwise the n-th gets their n-th shard.
        local: whether what a partition has for itself stays on its executor, as a file.
    """

    version: Version
    whole: bool
    local: bool


@dataclass(frozen=True, slots=True)
class Start:
    """What a group of iterations starts from.

    Attributes:
        version: the model's version.
        weights: its weights; ``None`` if the executors' files should do.
        kept: whether anything stays with the weights.
        seed: ids of the broadcasts of what stays with them, one for all or one for each slice; none if the
            executors' files should do.
    """

    version: Version
    weights: WeightsRef | None
    kept: bool
    seed: tuple[int, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the driver has sent all that is needed."""
        return self.weights is not None and (bool(self.seed) or not self.kept)

    def load(self) -> Replica | None:
        """Return the model; ``None`` if this executor does not have what stays with the weights."""
        if not self.kept:
            return self.load_weights()
        if self.seed and self.weights is not None:
            return Replica(self.weights.data(), list(decode(broadcast_value(self.seed[0], once=True))))
        found = read(self.version)
        return Replica(found.weights, found.kept) if found is not None else None

    def load_weights(self, *, once: bool = False) -> Replica | None:
        """Return the weights alone; ``None`` if this executor does not have them.

        Args:
            once: whether this process is not to keep them if the driver sends them.
        """
        if self.weights is not None:
            return Replica(self.weights.data(once=once), [])
        found = read(self.version)
        return Replica(found.weights, []) if found is not None else None


def write(version: Version, weights: Parts, kept: Sequence[Parts], trail: Sequence[bytes]) -> None:
    """Leave a version for the next task, and delete those that no task of the group needs.

    Nobody may change its arrays from then on.
    """
    hold_frames(version.path, [b"\n".join(trail), weights, *kept])
    _delete_all_but(version, len(trail))


def write_copy(version: Version, weights: Parts, kept: Sequence[Parts]) -> None:
    """Leave a copy of a version, whose arrays will change, for the next group, as a file."""
    write_file(version.path, encode([b"", weights, *kept]))


def report(told: Mapping[str, Any]) -> bytes:
    """Return what an iteration has to report, as it is in a trail."""
    return json.dumps(told, separators=(",", ":")).encode()


def read_trail(trail: Sequence[bytes]) -> list[Any]:
    """Return what the iterations of a trail have to report."""
    return [json.loads(line) for line in trail]


def write_own(version: Version, name: str, frames: Sequence[Packed], *, lent: bool = False) -> Parts:
    """Leave frames for the next task of the same partition, which runs where this one does.

    Args:
        version: the model that they belong to.
        name: tells them from others of that version.
        frames: the frames, whose arrays nobody may change from then on.
        lent: whether their memory is the replica's, for the next gradient.

    Returns:
        The frame to send in their place.
    """
    hold_frames(_own(version, name), frames, lent=lent)
    return frame.pack({"kind": "own", "name": name})


def read_own(version: Version, name: str) -> Sequence[Packed] | None:
    """Return what :func:`write_own` has left on this executor, or ``None``."""
    return read_frames(_own(version, name))


def take_own(version: Version, name: str) -> Sequence[Packed] | None:
    """Return what :func:`write_own` has left, to be changed: from memory nobody gets it once more."""
    return take_frames(_own(version, name))


def forget_own(version: Version, name: str) -> None:
    """Forget what :func:`write_own` has left, if it is in memory."""
    forget_frames(_own(version, name))


def start_over(version: Version) -> None:
    """Forget what this process holds, but for gradients: a group begins with what the driver has sent."""
    gradients = f"{version.name}.{GRADIENT}"
    forget_outdated(version.folder, lambda name: not name.startswith(gradients))


def _own(version: Version, name: str) -> str:
    return f"{version.path}.{name}"


def _delete_all_but(version: Version, group: int) -> None:
    """Delete all versions but this one, the one before it, and the one its group has started from.

    Other processes of the executor do the same; who has mapped a file keeps it. Where there are none, and
    files are in memory, nobody is left who needs those before: only a stage, or a group, that runs again
    would, and that is told by the driver what it needs.
    """
    keep = {version.name}
    if not holds_files():
        keep |= {version.after(-1).name, version.after(-group).name}
    delete_files(version.folder, lambda name: name.split(".")[0] not in keep)


def read(version: Version) -> Replica | None:
    """Return a version that this executor has, or ``None``."""
    frames = read_frames(version.path)
    if frames is None:
        return None
    trail, weights, *kept = frames
    return Replica(weights, kept, frame.join(frame.parts(trail)).splitlines())
