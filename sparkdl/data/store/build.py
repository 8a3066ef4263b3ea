"""Sources of rows, and the job that builds a partition store of one and checks what it made; its deletion."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from sparkdl import seeding, session
from sparkdl._spark.errors import explained
from sparkdl.access.base import Access, Frames, Published, described
from sparkdl.data.columns import TablePlan
from sparkdl.data.store.manifest import ADVICE, Manifest
from sparkdl.data.store.partition import Token, delete_store, view_of
from sparkdl.data.streams import STREAMS, Dealt, RowShare
from sparkdl.exceptions import DataError
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Parts

Partitions = int | Literal["input"] | None

MAX_ATTEMPTS = 5
"""How often a job is run, at most, where it finds parts of the store missing, or executors are lost."""


class StoreSource(ABC):
    """Where rows come from."""

    _sent: Published | None = None  # what tasks need of it, once executors have that

    @abstractmethod
    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """Return the first rows as arrays by column key; empty if there are none."""

    @abstractmethod
    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """Return the lazy frames whose tasks write the store and yield tokens."""

    def first(self, rows: int) -> StoreSource:
        """Return a source of the first rows, for a sample; this one if it cannot be cut."""
        return self

    def part(self, plan: TablePlan, share: RowShare) -> StoreSource | None:
        """Return a source of a share of the rows; ``None`` if they are divided where they are stored."""
        return None

    def split(self, plan: TablePlan, fraction: float, seed: int) -> tuple[StoreSource, StoreSource]:
        """Return sources of a DataFrame's rows for training and for validation, which a seed chooses."""
        raise NotImplementedError

    def most_partitions(self, plan: TablePlan) -> int:
        """Return how many partitions there can be, given the columns with dtypes and shapes."""
        return STREAMS

    def shown(self) -> dict[str, object]:
        """Return what else there is to show of a Dataset."""
        return {}

    def release(self) -> None:
        """Delete what was sent to the executors for tokens, none of which are in use any more."""
        sent, self._sent = self._sent, None
        if sent is not None:
            sent.release()


@dataclass(slots=True)
class PartitionStore:
    """A built partition store."""

    tokens: Frames  # persisted token frames, one per partition
    partitions: tuple[Token, ...]  # the tokens as they were when built, by partition
    executors: session.Executors  # what the cluster offered when it was built
    owns_files: bool = True  # whether there are files to go with it; those of a share are another store's

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each partition."""
        return tuple(token.rows for token in self.partitions)

    @property
    def name(self) -> str:
        """The name of its files on the executors."""
        return self.partitions[0].store

    @property
    def is_dealt(self) -> bool:
        """Whether rows were dealt to the partitions, so that batches do not depend on these."""
        return self.partitions[0].dealt > 0

    @property
    def manifest(self) -> Manifest:
        """What tasks expect to find."""
        return Manifest.of(self.partitions)

    @property
    def is_crowded(self) -> bool:
        """Whether partitions were built on fewer executors than they could."""
        return self.used < min(len(self.partitions), self.executors.count)

    @property
    def used(self) -> int:
        """How many executors have built partitions."""
        return len({token.executor for token in self.partitions})


class StoredShare(StoreSource):
    """Some rows of each partition of a Dataset's store."""

    def __init__(
        self, first: Callable[[], dict[str, Array]], store: Callable[[], PartitionStore], share: RowShare
    ) -> None:
        self._first, self._store, self._share = first, store, share

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`StoreSource`."""
        return {key: values[:rows] for key, values in self._first().items()}

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`StoreSource`."""
        return access.stage(self._store().tokens, partial(_select, self._share), [])


def _select(share: RowShare, partition: int, frames: Iterator[bytes]) -> Iterator[bytes | Parts]:
    """Take a share of a partition: yield its token."""
    for data in frames:
        token = Token.from_frame(frame.unpack(data))
        own = replace(share, seed=seeding.derive(seeding.ORDER, share.seed, partition) % (1 << 62))
        yield view_of(token, own.name, own.rows(token.rows)).to_frame()


def build_store(
    access: Access,
    source: StoreSource,
    plan: TablePlan,
    store: str,
    partitions: Partitions,
    available: session.Executors,
) -> PartitionStore:
    """Build a partition store.

    DataError names a column and row that is no tensor; TaskError is raised if a task keeps failing.
    """
    with described(access, "sparkdl: build the partition store"):
        with explained("building the partition store"):
            tokens = source.tokens(access, plan, store, partitions)
        access.persist(tokens)
        try:
            with explained("building the partition store"):
                found = tuple(Token.from_frame(frame.unpack(f)) for f in access.collect(tokens))
            _verify(found)
        except BaseException:
            with suppress(Exception):  # the error that is on its way says more
                access.run_on_executors(partial(delete_store, store))
            access.unpersist(tokens, wait=True)
            raise
    built = PartitionStore(tokens, found, available, owns_files=found[0].store == store)
    if built.is_crowded:
        warnings.warn(
            f"{len(found)} partitions lie on {built.used} of {available.count} executors, so iterations take "
            "longer than they need to; release() and rebuild when all executors are idle",
            UserWarning,
            stacklevel=3,
        )
    return built


def delete(access: Access, store: PartitionStore) -> None:
    """Delete a store's files from the executors, if it owns some, and let go of its tokens."""
    try:
        if store.owns_files:
            with described(access, "sparkdl: release the partition store"):
                access.run_on_executors(partial(delete_store, store.name))
    finally:
        access.unpersist(store.tokens, wait=True)


def _verify(tokens: Sequence[Token]) -> None:
    """Check that all partitions were written, have the rows dealt to them, and agree on dtypes and shapes."""
    for token in tokens:
        if token.error:
            raise DataError(token.error)
    filled = [token for token in tokens if token.rows]
    if not filled:
        raise DataError("the Dataset is empty: there is nothing to train on", code="data-empty")
    rows = sum(token.rows for token in filled)
    for token in tokens:
        counted = token.dealt and not token.scan
        if counted and token.rows != Dealt(rows, token.partition, token.dealt).count:
            raise other_rows(token.partition)
    for token in filled[1:]:
        if token.columns != filled[0].columns:
            raise DataError(
                f"partition {token.partition} has columns {token.columns}, partition "
                f"{filled[0].partition} has {filled[0].columns}; all rows must have one shape",
                code="data-shape",
            )


def other_rows(partition: int) -> DataError:
    """Return the error of a source that gives other rows when they are read than when they are counted."""
    return DataError(
        f"partition {partition} has rows of other numbers than were dealt to it: the source gave other rows "
        f"when they were read than when they were counted. {ADVICE}; or keep its partitions by "
        "num_partitions='input'",
        code="data-changed",
    )
