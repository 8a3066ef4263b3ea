"""Folds and shares of a Dataset as Datasets of their own, which share its files on the executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sparkdl import seeding
from sparkdl.access.base import Access, Frames
from sparkdl.data.columns import TablePlan
from sparkdl.data.dataset import Dataset
from sparkdl.data.sampled import part_of
from sparkdl.data.store import partition as store
from sparkdl.data.store.partition import Token
from sparkdl.data.store.sources import Partitions, Source
from sparkdl.tune.parts import RowShare
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Parts

Pair = tuple[RowShare | None, RowShare | None]


@contextmanager
def divided_datasets(data: Dataset, pairs: Sequence[Pair]) -> Iterator[list[tuple[Dataset, Dataset | None]]]:
    """Give for each fold the rows to train on, and those to validate on, on all executors.

    A fold takes its share of each partition. It costs 8 bytes per row: its numbers in the partition's files.
    Of rows that stay in their files it is a scan of its own.

    Args:
        data: the rows; their store stays in use.
        pairs: the parts of each fold; ``None`` for all rows to train on, or none to validate on.
    """
    made: list[Dataset] = []

    def view(part: RowShare) -> Dataset:
        found = part_of(data, part.begin, part.end, part.others, part.seed)
        if found is None:
            count = len(data.store().partitions)
            found = Dataset(
                data.spark,
                data.plan,
                _PartSource(data, part),
                count,
                data.transform,
                data.collate,
                access=data.access,
            )
        made.append(found)
        return found

    try:
        yield [
            (data if train is None else view(train), None if held is None else view(held))
            for train, held in pairs
        ]
    finally:
        for found in made:
            if not isinstance(found.source, _PartSource):
                found.release()
                continue
            built, found._store = found._store, None  # the files are the Dataset's whose rows they are
            if built is not None and data.access.is_alive():
                data.access.unpersist(built.tokens, wait=True)


class _PartSource(Source):
    """Some rows of each partition of a Dataset."""

    def __init__(self, data: Dataset, part: RowShare) -> None:
        self._data, self._part = data, part

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`sparkdl.data.store.sources.Source`."""
        return {key: values[:rows] for key, values in self._data.peek().items()}

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`sparkdl.data.store.sources.Source`."""
        return access.stage(self._data.store().tokens, _Select(self._part), [])


@dataclass(frozen=True, slots=True)
class _Select:
    """Task that takes a part of its partition."""

    part: RowShare

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterator[bytes | Parts]:
        """Yield the token of the part."""
        for data in frames:
            token = Token.from_frame(frame.unpack(data))
            own = replace(
                self.part, seed=seeding.derive(seeding.ORDER, self.part.seed, partition) % (1 << 62)
            )
            yield store.view_of(token, own.name, own.rows(token.rows)).to_frame()
