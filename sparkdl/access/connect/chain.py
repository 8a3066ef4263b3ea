"""Groups of steps on Spark Connect: one stage whose tasks exchange among themselves, or a few stages."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from sparkdl._spark.errors import tolerated
from sparkdl._spark.frames import Task
from sparkdl.access.connect.files import KeptFile
from sparkdl.access.connect.rows import ConnectFrames, by_key
from sparkdl.access.connect.tasks import LOST, SCHEMA, ArrowTask, Round, TaskSpec, leaving, over_kept
from sparkdl.access.in_pieces import RESULT, ChainTask, per_round
from sparkdl.exceptions import TaskError
from sparkdl.wire import frame
from sparkdl.wire.frame import Buffer
from sparkdl.wire.pieces import PIECE_BYTES, joined

if TYPE_CHECKING:
    from sparkdl.access.connect.access import ConnectAccess

Row = tuple[int, int, bytes]
"""Key, source and piece of a frame."""

_ATTEMPTS = 3  # so often the files of a group are looked for: a task may run elsewhere once


@dataclass(eq=False, slots=True)
class OnExecutors:
    """Frames that a group has left in files, one per shard."""

    chain: ConnectChain
    file: KeptFile

    def run(self, task: Task) -> list[bytes]:
        """Run a task over the pieces of each shard."""
        for _ in range(_ATTEMPTS):
            found = self.chain.access.collect(
                self.chain.access.stage(self.chain.tokens, partial(over_kept, task, self.file))
            )
            if LOST not in found:
                return found
        raise TaskError("the state of some shards is lost: their executors are gone, or did not get the task")

    def release(self) -> None:
        """Let the files be deleted by the next group."""
        self.chain.alive.discard(self.file.name)


@dataclass(frozen=True, eq=False, slots=True)
class OnDriver:
    """Pieces of frames, by shard, which the driver keeps itself."""

    pieces: Sequence[Sequence[bytes]]

    def run(self, task: Task) -> list[bytes]:
        """Run a task over the pieces of each shard, here."""
        return [
            frame.join(data) for shard, pieces in enumerate(self.pieces) for data in task(shard, iter(pieces))
        ]

    def release(self) -> None:
        """Do nothing."""


@dataclass(eq=False, slots=True)
class ConnectChain:
    """Runs groups over a partition store; see :class:`sparkdl.access.base.Chain`."""

    access: ConnectAccess  # the cluster
    tokens: ConnectFrames  # of the partition store
    ranks: int  # how many there are
    profile: Any  # resource profile of the tasks
    alive: set[str] = field(default_factory=set)  # names of the files on executors that somebody may ask for
    stays: bool = False  # a stage after the first one may run anywhere
    gathering: None = None  # a client cannot say where a task is to run
    _folder: str = field(default_factory=lambda: uuid.uuid4().hex)
    _groups: int = 0

    def run(
        self,
        tasks: Sequence[ChainTask],
        broadcasts: Sequence[Any],
        name: str,
        frame_bytes: int,
        *,
        persisted_bytes: int | None = None,
    ) -> tuple[list[Buffer], OnExecutors | OnDriver | None]:
        """Run the stages."""
        if len(tasks) == 1 and (persisted_bytes is None or self.tokens.stays):
            return self._run_one(tasks[0], keeps=persisted_bytes is not None)
        return self._run_stages(tasks, persisted_bytes)

    def _run_one(self, task: ChainTask, *, keeps: bool) -> tuple[list[Buffer], OnExecutors | None]:
        """Run a group as one stage where the rows are; what stays, stays there, too."""
        persisted = None
        if keeps:
            self._groups += 1
            file = KeptFile(self._folder, f"group-{self._groups}", tuple(sorted(self.alive)))
            persisted = OnExecutors(self, file)
        run = partial(leaving, task, persisted.file if persisted is not None else None)
        found: list[Buffer] = list(
            self.access.collect(self.access.stage(self.tokens, run, profile=self.profile))
        )
        if persisted is not None:
            self.alive.add(persisted.file.name)
        return found, persisted

    def _run_stages(
        self, tasks: Sequence[ChainTask], persisted_bytes: int | None
    ) -> tuple[list[Buffer], OnDriver | None]:
        """Run a group as stages with shuffles between them; what is to stay goes to the driver."""
        tokens = self.tokens.collected
        functions = [
            ArrowTask(TaskSpec(task, keyed=True, first=tokens if number else (), unlink=self.access.outdated))
            for number, task in enumerate(tasks)
        ]

        def make() -> DataFrame:
            df = self.tokens.df
            for number, function in enumerate(functions):
                if number:
                    df = by_key(df, self.ranks)
                df = df.mapInArrow(function, SCHEMA, profile=self.profile)
            return df

        made = ConnectFrames(make, parent=self.tokens)
        # State is up to three times as long as the weights.
        large = 4 * (persisted_bytes or 0) > per_round(self.ranks) * PIECE_BYTES
        rows = self._in_rounds(made) if large else self.access.rows_of(made)
        results = [piece for key, _, piece in rows if key == RESULT]
        if persisted_bytes is None:
            return list(joined(results)), None
        persisted: list[list[bytes]] = [[] for _ in range(self.ranks)]
        for key, source, piece in rows:
            if key != RESULT:
                persisted[source].append(piece)
        return list(joined(results)), OnDriver(persisted)

    def _in_rounds(self, made: ConnectFrames) -> list[Row]:
        """Run stages once, and bring what they made here by several jobs, each of a part of it."""
        self.access.persist(made)
        try:
            if not made.stays:
                return self.access.rows_of(made)
            rows: list[Row] = []
            step = per_round(self.ranks)
            for first in count(0, step):
                found = self.access.rows_of(
                    ConnectFrames(partial(_passed, made, Round(first, first + step)), parent=made)
                )
                rows += found
                if not found:
                    break
            return rows
        finally:
            self.access.unpersist(made)

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""
        self.access.forget(self.tokens, partition)

    def release(self) -> None:
        """Delete all files on the executors for the store."""
        if self._groups:
            self.alive.clear()
            with tolerated("files of a group were not deleted"):
                self.access.run_on_executors(KeptFile(self._folder, "").delete_all)


def _passed(made: ConnectFrames, some: Round) -> DataFrame:
    return made.df.mapInArrow(some, SCHEMA)
