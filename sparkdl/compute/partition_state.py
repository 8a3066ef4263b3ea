"""A partition's own state between iterations: a local optimizer's state, and the residual of a codec.

The state is a file beside the partition's rows, with one version per iteration, so that an iteration that
runs again starts from the same state. It can be lost, with an executor or because the run goes back to a
commit. Then the partition begins with a fresh state, and the history counts it. This is tolerated: averaging
over partitions makes up for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkdl.compute.local_store import LocalStore
from sparkdl.wire import frame
from sparkdl.wire.frame import Frame, Parts

FOLDER = "partitions"
"""Folder of these files among those of a fit."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Reads and writes the state of one partition in one iteration.

    Attributes:
        files: where the files are.
        partition: the partition.
        iteration: completed iterations.
        since: first iteration that may have to run again.
    """

    files: LocalStore
    partition: int
    iteration: int
    since: int

    def read(self) -> Mapping[str, Frame] | None:
        """Return the frames of the iteration before, by kind; ``None`` if there are none."""
        found = self.files.read(self._name(self.iteration))
        if found is None:
            return None
        frames = [frame.unpack(one) for one in found]
        return {message.meta["kind"]: message for message in frames}

    def write(self, frames: Sequence[Parts]) -> None:
        """Write frames, one of each kind, for the next iteration."""
        self.files.write(self._name(self.iteration + 1), frames)
        self._delete_outdated()

    def pass_on(self) -> None:
        """Copy the state of the iteration before to the next one: this iteration does not change it."""
        if self.files.link(self._name(self.iteration), self._name(self.iteration + 1)):
            self._delete_outdated()
        elif not self.iteration:  # nothing is lost: there never was anything
            self.write([])

    def _delete_outdated(self) -> None:
        own = self._name("")
        keep = {self._name(n) for n in (self.since, self.iteration, self.iteration + 1)}
        self.files.discard(lambda name: name.startswith(own) and name not in keep)

    def _name(self, iteration: int | str) -> str:
        return f"{self.partition}-{iteration}"
