"""What a partition keeps for its own next iteration: a local optimizer's state, what a codec has left out.

It lies as a file where the partition's rows are, one version per iteration, so that an iteration that runs
again starts from what it started from before. Where it is lost, with an executor or because the iteration
goes back to a commit, the partition begins with a fresh one; that is counted, and tolerated: averaging over
partitions makes good for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkdl import frame
from sparkdl.compute.local_store import LocalStore
from sparkdl.frame import Frame, Parts

FOLDER = "partitions"
"""Folder of these files among those of a fit."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Reads and writes the state of one partition in one iteration.

    Attributes:
        files: where the files are.
        partition: the partition.
        iteration: completed iterations.
        since: iteration from which on this one may have to run again.
    """

    files: LocalStore
    partition: int
    iteration: int
    since: int

    def read(self) -> Mapping[str, Frame] | None:
        """Return the frames that the iteration before has left, by kind; ``None`` if there are none."""
        found = self.files.read(self._name(self.iteration))
        if found is None:
            return None
        frames = [frame.unpack(one) for one in found]
        return {message.meta["kind"]: message for message in frames}

    def write(self, frames: Sequence[Parts]) -> None:
        """Leave frames, each of another kind, for the next iteration."""
        self.files.write(self._name(self.iteration + 1), frames)
        self._delete_outdated()

    def pass_on(self) -> None:
        """Leave to the next iteration what the one before has left: this one does nothing."""
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
