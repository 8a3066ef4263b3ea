"""Answers of sessions that have no RDDs to questions that only RDDs can serve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NoReturn, TypeVar

from sparkdl.access.base import Persisted
from sparkdl.access.in_pieces import ChainTask
from sparkdl.exceptions import ConfigError
from sparkdl.wire.frame import Parts

T = TypeVar("T")


class WithoutRdds:
    """Part of :class:`sparkdl.access.base.Access`."""

    __slots__ = ()

    has_sync: ClassVar[bool] = False  # an iteration cannot be jobs of its own
    tells_executors: ClassVar[bool] = False  # executors come and go without a word

    def ask_for_executors(self, total: int) -> bool:
        """Return that nobody takes such wishes."""
        return False

    def scattered(self, pieces: Iterable[tuple[int, bytes | Parts]], partitions: int) -> Any:
        """Return frames of the driver in so many partitions."""
        raise NotImplementedError

    def one_task(self, data: bytes | Parts) -> Any:
        """Return a frame of the driver's, for a job of one task."""
        return self.scattered([(0, data)], 1)

    def inherited(self, run: Callable[..., T]) -> Callable[..., T]:
        """Return the function: jobs have no confs of their own."""
        return run

    def in_pool(self, name: str) -> AbstractContextManager[None]:
        """Do nothing: there are no pools."""
        return nullcontext()

    def sync(
        self,
        tokens: Any,
        task: ChainTask,
        shards: int,
        state: Persisted | None,
        broadcasts: Sequence[Any],
        profile: Any,
    ) -> NoReturn:
        """Refuse."""
        raise ConfigError(
            "exchange='driver' needs RDDs, which this session has not; take another exchange, or fit in a "
            "classic session",
            code="config-connect",
        )
