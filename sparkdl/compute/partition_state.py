"""A partition's own state between iterations: a local optimizer's state, and the residual of a codec.

The state is a file beside the partition's rows, with one version per iteration, so that an iteration that
runs again starts from the same state. It can be lost, with an executor or because the run goes back to a
commit. Then the partition begins with a fresh state, and the history counts it. This is tolerated: averaging
over partitions makes up for it.

Where a rank stays in its process until a group has ended, no version but the last one is written, for a group
runs again from its beginning. In between the state is in memory, and the optimizer updates it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkdl.compute.local_store import LocalStore
from sparkdl.wire import frame
from sparkdl.wire.frame import Frame, Parts
from sparkdl.wire.held import Held, held_frame


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Reads and writes the state of one partition in one iteration."""

    files: LocalStore  # where the files are
    partition: int
    iteration: int  # completed iterations
    since: int  # first iteration that may have to run again

    def take(self) -> Mapping[str, Held[Frame]] | None:
        """Return the frames of the iteration before, by kind; ``None`` if there are none.

        Those in memory leave it, and belong to the caller.
        """
        found = self.files.take(self._name(self.iteration))
        if found is None:
            return None
        frames = [frame.unpack(one, writable=True) for one in found]
        return {one.meta["kind"]: held_frame(one, mine=True) for one in frames}

    def write(self, frames: Sequence[Parts]) -> None:
        """Leave frames, one of each kind, for the next iteration; their arrays must not change afterwards."""
        self.files.leave(self._name(self.iteration + 1), frames)
        self._delete_outdated()

    def pass_on(self, taken: Mapping[str, Held[Frame]] | None) -> None:
        """Let the state of the iteration before be that of the next one, for this one does not change it.

        ``taken`` is what :meth:`take` returned, if it was called.
        """
        if self.files.link(self._name(self.iteration), self._name(self.iteration + 1)):
            self._delete_outdated()
        elif taken is not None:
            self.write([frame.pack(one.value.meta, one.value.arrays) for one in taken.values()])
        elif not self.iteration:  # nothing is lost: there never was anything
            self.write([])

    def _delete_outdated(self) -> None:
        own = self._name("")
        keep = {self._name(n) for n in (self.since, self.iteration, self.iteration + 1)}
        self.files.discard(lambda name: name.startswith(own) and name not in keep)

    def _name(self, iteration: int | str) -> str:
        return f"{self.partition}-{iteration}"
