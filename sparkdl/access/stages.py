"""Protocols of what runs stages over a partition store, alone and in chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparkdl.access.in_pieces import ChainTask
from sparkdl.wire.frame import Buffer

RESULT = 0
"""Key of the frames of a chain's last stage that go to the driver."""
STATE = 1
"""Key of those that stay."""

FRAMES_PER_RANK = 2
"""Each task sends each partition so many frames, some of them empty: of the first one the length is known."""

Kept = Any
"""Frames that a chain has left on the executors. Opaque to others."""


@dataclass(frozen=True, slots=True)
class Host:
    """A task that has several ranks.

    Attributes:
        executor: id of the executor where it is to run, if that is there.
        tokens: the tokens of their partitions.
    """

    executor: str
    tokens: Sequence[bytes]


class Gathering(Protocol):
    """Runs stages of fewer tasks than ranks over a partition store."""

    def executors(self) -> set[str]:
        """Return the ids of the executors that take tasks now."""
        ...

    def hosts(self, slots: int) -> list[Host]:
        """Return the tasks of which each has all ranks whose rows are on its executor, or some of them.

        Builds partitions again that are lost, or whose executor takes no more tasks.

        Args:
            slots: task slots of an executor; it has no more tasks.
        """
        ...

    def run(
        self,
        task: ChainTask,
        hosts: Sequence[Host],
        broadcasts: Sequence[Any],
        name: str,
        *,
        kept_bytes: int | None = None,
    ) -> tuple[list[Buffer], Kept | None]:
        """Run one stage.

        Args:
            task: gets the tokens of several partitions. The key of what stays is ``STATE`` and the number of
                the rank for which it does.
            hosts: for each task, where it is to run, and what it gets.
            broadcasts: broadcasts that it reads.
            name: names the job in the Spark UI.
            kept_bytes: length of a frame that stays, about; ``None`` if none does.

        Returns:
            Frames for the driver, and what stays, as :meth:`Chain.run` does; of that nothing unless it is
            complete.
        """
        ...


class Chain(Protocol):
    """Runs chains of stages over a partition store, with an exchange of all with all between them."""

    @property
    def stays(self) -> bool:
        """Whether each stage of a rank runs where its rows are."""
        ...

    @property
    def gathering(self) -> Gathering | None:
        """Runs tasks of several ranks; ``None`` where each rank has a task of its own."""
        ...

    def run(
        self,
        tasks: Sequence[ChainTask],
        broadcasts: Sequence[Any],
        name: str,
        frame_bytes: int,
        *,
        kept_bytes: int | None = None,
    ) -> tuple[list[Buffer], Kept | None]:
        """Run the stages.

        Args:
            tasks: the task of each stage. All but the last yield two keyed frames for each partition; its
                frames go to the driver and stay, by their keys. The first one gets a partition's token,
                the others what has arrived for it too.
            broadcasts: broadcasts that the tasks read.
            name: names the job in the Spark UI.
            frame_bytes: bytes of the first frame that a task sends to a partition, about; the second one is
                small.
            kept_bytes: length of a frame that stays after the last stage, about; ``None`` if none does.
        """
        ...

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""
        ...

    def release(self) -> None:
        """Delete all files on the executors for the store."""
        ...
