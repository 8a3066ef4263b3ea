"""Access to this process alone: one rank, whose stages are calls.

Inside a Spark task a whole fit of one partition runs by it, with the code of a distributed one: the loop, the
engine, plans, passes over rows, checkpoints. Frames are bytes and pieces as between executors, so nothing is
shared that would not be shared there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pyspark.sql import DataFrame

from sparkdl._spark.frames import Task, pairs_of
from sparkdl.access.base import Access, BytesRef, Published
from sparkdl.access.in_pieces import RESULT, ChainTask, InPieces
from sparkdl.exceptions import ConfigError
from sparkdl.session import Executors
from sparkdl.wire import frame
from sparkdl.wire.frame import Buffer, Parts
from sparkdl.wire.pieces import joined


@dataclass(slots=True)
class LazyFrames:
    """Frames of each partition, made when they are read."""

    partitions: int  # how many
    make: Callable[[int], Iterable[bytes | Parts]]  # makes those of a partition
    parent: LazyFrames | None = None  # the frames of which a stage makes them, if one does
    persisted: bool = False  # whether they stay once they are made
    blocks: dict[int, list[bytes]] = field(default_factory=dict)  # those that stay

    def read(self, partition: int) -> list[bytes]:
        """Return those of a partition."""
        found = self.blocks.get(partition)
        if found is None:
            found = list(map(frame.join, self.make(partition)))  # copies: who made them may go on writing
            if self.persisted:
                self.blocks[partition] = found
        return found

    def forget(self, partition: int) -> None:
        """Make those of a partition again when they are read next, and what they are made of."""
        self.blocks.pop(partition, None)
        if self.parent is not None:
            self.parent.forget(partition)


@dataclass(frozen=True, slots=True)
class CalledChain:
    """Runs the stages of one rank as calls; see :class:`sparkdl.access.base.Chain`."""

    tokens: LazyFrames
    stays: bool = True
    gathering: None = None

    def run(
        self,
        tasks: Sequence[ChainTask],
        broadcasts: Sequence[Any],
        name: str,
        frame_bytes: int,
        *,
        persisted_bytes: int | None = None,
    ) -> tuple[list[Buffer], list[bytes] | None]:
        """Run the stages."""
        arriving: list[bytes] = []
        for number, task in enumerate(tasks, start=1):
            frames = iter([*self.tokens.read(0), *arriving])
            leaving = [(to, _own(data)) for to, data in pairs_of(InPieces(task)(0, frames))]
            if number < len(tasks):
                arriving = [piece for _, piece in leaving]
        results = [piece for to, piece in leaving if to == RESULT]
        persisted = [piece for to, piece in leaving if to != RESULT]
        return list(joined(results)), persisted if persisted_bytes is not None else None

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""
        self.tokens.forget(partition)

    def release(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class AloneAccess(Access):
    """This process as a cluster of one; see :class:`sparkdl.access.base.Access`."""

    # of the session that there is not, by name; others have their default
    confs: Mapping[str, str] = field(default_factory=dict)
    longest_chain: int = 1000  # how many steps may be one chain of stages

    def conf(self, name: str, default: str = "") -> str:
        """Return a conf."""
        return self.confs.get(name, default)

    def executors(self) -> Executors:
        """Return that there is one task at a time."""
        return Executors(1, 1)

    def count_executors(self, *, look: bool = False) -> int:
        """Return that there is one."""
        return 1

    def send(self, data: bytes | bytearray, *, inline: bool = False) -> Published:
        """Return the bytes themselves."""
        return Published(BytesRef(data))

    def planned_once(self, df: DataFrame) -> NoReturn:
        """Refuse DataFrames."""
        raise ConfigError("a process alone reads no DataFrames; give it rows that lie in a store")

    def written(self, df: DataFrame, write: Any, rows_per_batch: int) -> LazyFrames:
        """Refuse DataFrames."""
        self.planned_once(df)

    def scattered(self, pieces: Iterable[tuple[int, bytes | Parts]], partitions: int) -> LazyFrames:
        """Return frames by partition."""
        sent = [(n, frame.join(data)) for n, data in pieces]
        return LazyFrames(partitions, lambda partition: [data for n, data in sent if n == partition])

    def stage(
        self, parent: LazyFrames, task: Task, broadcasts: Sequence[Any] = (), *, profile: Any = None
    ) -> LazyFrames:
        """Return the frames that a task makes of each partition."""
        return LazyFrames(parent.partitions, lambda n: task(n, iter(parent.read(n))), parent=parent)

    def collect(self, frames: LazyFrames) -> list[bytes]:
        """Return all frames, partition by partition."""
        return [data for n in range(frames.partitions) for data in frames.read(n)]

    def run_everywhere(
        self, task: Task, broadcasts: Sequence[Any] = (), *, times: int = 1, profile: Any = None
    ) -> list[bytes]:
        """Run a task that gets no frames."""
        return [frame.join(data) for _ in range(times) for data in task(0, iter(()))]

    def chain(self, tokens: LazyFrames, ranks: int, profile: Any) -> CalledChain:
        """Return what runs the stages of one rank."""
        if ranks != 1:
            raise ConfigError(f"a process alone has one partition; found {ranks}")
        return CalledChain(tokens)

    def persist(self, frames: LazyFrames) -> None:
        """Keep frames from when they are made on."""
        frames.persisted = True

    def unpersist(self, frames: LazyFrames | list[bytes], *, wait: bool = False) -> None:
        """Let go of frames."""
        if isinstance(frames, LazyFrames):
            frames.persisted = False
            frames.blocks.clear()

    def forget(self, frames: LazyFrames, partition: int) -> None:
        """Make a partition again when it is read next."""
        frames.forget(partition)

    def run_on_persisted(self, persisted: list[bytes], task: Task) -> list[bytes]:
        """Run a task over the pieces that a chain has left."""
        return list(map(frame.join, task(0, iter(persisted))))

    def keep(self, pieces: Iterable[tuple[int, bytes | Parts]], shards: int, shard_bytes: int) -> list[bytes]:
        """Return pieces as if a chain had left them."""
        return [frame.join(data) for _, data in pieces]


def _own(data: bytes | Parts) -> Any:
    """Return a frame that its reader may overwrite, as PySpark hands frames over."""
    return data if isinstance(data, bytes) else bytearray(frame.join(data))
