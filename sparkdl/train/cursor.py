"""The rows that are left of an epoch when they move to other partitions; see :mod:`sparkdl.data.sampler`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.access.base import Access
from sparkdl.compute.worker import FitRef
from sparkdl.data.sampler import CursorRef, Place
from sparkdl.data.store import partition as store
from sparkdl.data.store.partition import Token
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Parts


@dataclass(frozen=True, slots=True)
class Unvisited:
    """Task that returns the positions of a partition's rows that are left of an epoch."""

    fit: FitRef
    place: Place

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterator[Parts]:
        """Yield them as one frame."""
        (token,) = [Token.from_frame(frame.unpack(data)) for data in frames]
        try:
            spec = self.fit.worker().spec
            rows = self.place.rows_left(token, spec.seed, spec.shuffle)
            positions = store.read_positions(token, rows)
        except store.PartitionMissingError:
            yield store.missing(partition)
            return
        yield frame.pack({"kind": "unvisited", "partition": partition}, {"positions": positions})


class Cursor:
    """The rows that are left of an epoch, on the driver.

    Args:
        access: the cluster.
        first: iteration of the epoch from which on it counts.
        positions: positions of the rows that are left, in any order.
    """

    def __init__(self, access: Access, first: int, positions: Array) -> None:
        self.first = first
        self.positions: Array = np.sort(positions)
        self._sent = access.send(self.positions.tobytes())
        self.ref = CursorRef(first, self._sent.ref)

    @property
    def broadcasts(self) -> Sequence[Any]:
        """What stages that use it must name."""
        return self._sent.broadcasts

    def release(self) -> None:
        """Delete the positions from the executors."""
        self._sent.release()
