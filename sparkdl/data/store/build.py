"""The build of a partition store by a job, which checks what it made; its deletion."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from sparkdl import session
from sparkdl._spark.errors import is_job_failure, task_error
from sparkdl.access.base import Access, Frames
from sparkdl.data.columns import TablePlan
from sparkdl.data.store.manifest import Manifest
from sparkdl.data.store.partition import Token, delete_store
from sparkdl.data.store.sources import Partitions, Source
from sparkdl.data.store.writers import other_rows
from sparkdl.data.streams import Dealt
from sparkdl.exceptions import DataError
from sparkdl.wire import frame

MAX_REBUILDS = 5
"""How often a job is run again because it found parts of the store missing."""


@dataclass(frozen=True, slots=True)
class PartitionStore:
    """A built partition store.

    Attributes:
        tokens: persisted token frames, one per partition.
        partitions: the tokens as they were when built, by partition.
        executors: what the cluster offered when it was built.
        owns_files: whether its files go with it; those of a share are another store's.
    """

    tokens: Frames
    partitions: tuple[Token, ...]
    executors: session.Executors
    owns_files: bool = True

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each partition."""
        return tuple(token.rows for token in self.partitions)

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
        return _used(self.partitions) < min(len(self.partitions), self.executors.count)


def build_store(
    access: Access,
    source: Source,
    plan: TablePlan,
    store: str,
    partitions: Partitions,
    available: session.Executors,
) -> PartitionStore:
    """Build a partition store.

    Raises:
        DataError: naming the column and row that cannot become a tensor.
        TaskError: if a task keeps failing.
    """
    with described(access, "build the partition store"):
        with _explained():
            tokens = source.tokens(access, plan, store, partitions)
        access.persist(tokens)
        try:
            with _explained():
                found = tuple(Token.from_frame(frame.unpack(f)) for f in access.collect(tokens))
            _verify(found)
        except BaseException:
            with suppress(Exception):  # the error that is on its way says more
                access.run_on_executors(partial(delete_store, store))
            access.unpersist(tokens, wait=True)
            raise
    _warn_if_uneven(found, available)
    return PartitionStore(tokens, found, available, owns_files=found[0].store == store)


def delete(access: Access, store: PartitionStore) -> None:
    """Delete a store's files from the executors, and let go of its tokens."""
    try:
        if store.owns_files:
            with described(access, "release the partition store"):
                access.run_on_executors(partial(delete_store, store.partitions[0].store))
    finally:
        access.unpersist(store.tokens, wait=True)


@contextmanager
def described(access: Access, doing: str) -> Iterator[None]:
    """Name the jobs of a block in the Spark UI."""
    access.describe(f"sparkdl: {doing}")
    try:
        yield
    finally:
        access.describe(None)


@contextmanager
def _explained() -> Iterator[None]:
    """Let a failed job of a block tell what its task has said."""
    try:
        yield
    except Exception as error:
        if is_job_failure(error):
            raise task_error(error, "building the partition store") from None
        raise


def _verify(tokens: Sequence[Token]) -> None:
    """Check that all partitions were written and agree on dtypes and shapes."""
    for token in tokens:
        if token.error:
            raise DataError(token.error)
    filled = [token for token in tokens if token.rows]
    if not filled:
        raise DataError("the Dataset is empty: there is nothing to train on", code="data-empty")
    _check_dealt(tokens)
    for token in filled[1:]:
        if token.columns != filled[0].columns:
            raise DataError(
                f"partition {token.partition} has columns {token.columns}, partition "
                f"{filled[0].partition} has {filled[0].columns}; all rows must have one shape",
                code="data-shape",
            )


def _check_dealt(tokens: Sequence[Token]) -> None:
    """Check that partitions have the rows of their streams, as those were counted before."""
    rows = sum(token.rows for token in tokens)
    for token in tokens:
        counted = token.dealt and not token.scan
        expected = Dealt(rows, token.partition, token.dealt).count if counted else token.rows
        if token.rows != expected:
            raise other_rows(token.partition)


def _warn_if_uneven(tokens: Sequence[Token], available: session.Executors) -> None:
    """Say when partitions lie on fewer executors than they could."""
    used = _used(tokens)
    if used < min(len(tokens), available.count):
        warnings.warn(
            f"{len(tokens)} partitions lie on {used} of {available.count} executors, so iterations take "
            "longer than they need to; release() and rebuild when all executors are idle",
            UserWarning,
            stacklevel=4,
        )


def _used(tokens: Sequence[Token]) -> int:
    """Return how many executors have built partitions."""
    return len({token.executor for token in tokens})
