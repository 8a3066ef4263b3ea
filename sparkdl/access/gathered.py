"""Stages whose tasks have several ranks each: fewer tasks run than there are partitions.

Their tokens come with the task, not from the store's RDD: a partition that is built again inside of another
one's task would take that one's number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sparkdl._spark.frames import key, keyed_by
from sparkdl.access.in_pieces import ChainTask, cut_keyed
from sparkdl.access.stages import RESULT, STATE
from sparkdl.wire.frame import Buffer, Parts
from sparkdl.wire.pieces import joined


@dataclass(frozen=True, slots=True)
class Gathered:
    """A task over the tokens of several ranks, whose frames leave in pieces.

    Attributes:
        task: the task.
        tokens: what each task gets, in place of frames.
        by_rank: whether what leaves goes to the partition of its rank, for :class:`AtHome`;
            frames for the driver go along with the first one's.
    """

    task: ChainTask
    tokens: Sequence[Sequence[bytes]]
    by_rank: bool

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterable[bytes | Parts]:
        """Run the task."""
        deque(frames, maxlen=0)
        leaving = self.task(partition, iter(self.tokens[partition]))
        return cut_keyed(partition, self._addressed(leaving) if self.by_rank else leaving)

    def _addressed(self, leaving: Iterable[bytes | Parts]) -> Iterator[bytes | Parts]:
        """Yield each frame after a frame with its key, both after the key of the partition that gets them."""
        stream = iter(leaving)
        for to in stream:
            assert isinstance(to, bytes)
            stays = keyed_by(to) >= STATE
            home = key(keyed_by(to) - STATE if stays else 0)
            yield from (home, key(STATE if stays else RESULT), home, next(stream))


LACKING = b"lacking"
"""What a partition sends the driver to which nothing has come.

If what a task has sent is lost, Spark runs it again, alone: it finds no other ranks then.
"""


@dataclass(frozen=True, slots=True)
class AtHome:
    """The task that gets what :class:`Gathered` has sent to a partition, and keeps it there."""

    def __call__(self, partition: int, pieces: Iterator[bytes]) -> Iterator[bytes | Parts]:
        """Yield keys and pieces."""
        return cut_keyed(partition, _pairs(joined(pieces)))


def _pairs(frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
    """Yield keys and frames in turn."""
    stays = False
    for found in frames:
        to = bytes(found)
        stays = stays or to == key(STATE)
        yield to
        yield [next(frames)]
    if not stays:
        yield key(RESULT)
        yield LACKING


def by_executor(places: Sequence[str], slots: int) -> list[list[int]]:
    """Return partitions in groups, each on one executor, of which none has more groups than task slots."""
    found: dict[str, list[int]] = {}
    for partition, place in enumerate(places):
        found.setdefault(place, []).append(partition)
    return [own[n::slots] for own in found.values() for n in range(min(slots, len(own)))]
