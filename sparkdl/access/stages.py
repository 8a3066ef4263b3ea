"""The protocol of what runs chains of stages over a partition store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sparkdl.access.in_pieces import ChainTask
from sparkdl.wire.frame import Buffer

if TYPE_CHECKING:
    from sparkdl.access.gathered import GatheredStages

Kept = Any
"""Frames that a chain has left on the executors. Opaque to others."""


class Chain(Protocol):
    """Runs chains of stages over a partition store, with an exchange of all with all between them."""

    @property
    def stays(self) -> bool:
        """Whether each stage of a rank runs where its rows are."""
        ...

    @property
    def gathering(self) -> GatheredStages | None:
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
