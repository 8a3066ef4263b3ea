"""Some rows of a Dataset as another one."""

from __future__ import annotations

from sparkdl.data.dataset import Dataset
from sparkdl.data.store.sources import Partitions, Source


def first_rows(data: Dataset, rows: int, num_partitions: int | None) -> Dataset:
    """Return the first rows of a Dataset; all of them if its source cannot be cut.

    Args:
        data: the Dataset, whose store need not be built.
        rows: how many.
        num_partitions: of the new Dataset; ``None`` for one per executor.
    """
    return _of_source(data, data.source.first(rows), num_partitions)


def part_of(data: Dataset, begin: float, end: float, others: bool, seed: int) -> Dataset | None:
    """Return a share of the rows of a Dataset; ``None`` if they are divided where they are stored.

    Args:
        data: the Dataset.
        begin: share at which it begins, from 0.
        end: share at which it ends, up to 1: shares that do not overlap have no row in common.
        others: whether all other rows are meant.
        seed: draws which rows are in a share.

    Raises:
        DataError: if no row is in it.
    """
    part = data.source.part(data.plan, begin, end, others, seed)
    if part is None:
        return None
    most = part.most_partitions(data.plan)
    given = data.num_partitions
    return _of_source(data, part, min(given, most) if isinstance(given, int) else given)


def _of_source(data: Dataset, source: Source, num_partitions: Partitions) -> Dataset:
    return Dataset(
        data.spark, data.plan, source, num_partitions, data.transform, data.collate, access=data.access
    )
