"""What a partition keeps for its own next iteration: an inner optimizer's state, what a codec has left out.

It lies as a file where the partition's rows are, one version per iteration, so that an iteration that runs
again starts from what it started from before. Where it is lost, with an executor or because the iteration
goes back to a commit, the partition begins with a fresh one; that is counted, and tolerated: averaging over
partitions makes good for it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from sparkdl import frame
from sparkdl.frame import Frame, Parts
from sparkdl.train.executor_files import (
    decode,
    delete_files,
    encode,
    fit_folder,
    read_file,
    write_file,
)

_FOLDER = "partitions"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Reads and writes the state of partitions in one iteration.

    Attributes:
        fit_id: unique id of the fit.
        iteration: completed iterations.
        since: iteration from which on this one may have to run again.
    """

    fit_id: str
    iteration: int
    since: int

    def read(self, partition: int) -> Mapping[str, Frame] | None:
        """Return the frames that the iteration before has left, by kind; ``None`` if there are none."""
        data = read_file(self._path(partition, self.iteration))
        if data is None:
            return None
        frames = [frame.unpack(one) for one in decode(data)]
        return {message.meta["kind"]: message for message in frames}

    def write(self, partition: int, frames: list[Parts]) -> None:
        """Leave frames, each of another kind, for the next iteration."""
        write_file(self._path(partition, self.iteration + 1), encode(frames))
        self._delete_outdated(partition)

    def pass_on(self, partition: int) -> None:
        """Leave to the next iteration what the one before has left: this one does nothing."""
        after = self._path(partition, self.iteration + 1)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(after)  # of an earlier attempt
        try:
            os.link(self._path(partition, self.iteration), after)
        except FileNotFoundError:
            if not self.iteration:  # nothing is lost: there never was anything
                self.write(partition, [])
            return
        self._delete_outdated(partition)

    def _delete_outdated(self, partition: int) -> None:
        own = f"{partition}-"
        keep = {f"{own}{n}" for n in (self.since, self.iteration, self.iteration + 1)}
        delete_files(self._folder, lambda name: name.startswith(own) and name not in keep)

    @property
    def _folder(self) -> str:
        return f"{fit_folder(self.fit_id)}/{_FOLDER}"

    def _path(self, partition: int, iteration: int) -> str:
        return f"{self._folder}/{partition}-{iteration}"
