"""The first rows of a Dataset as another one."""

from __future__ import annotations

from sparkdl.data.dataset import Dataset


def first_rows(data: Dataset, rows: int, num_partitions: int | None) -> Dataset:
    """Return the first rows of a Dataset; all of them if its source cannot be cut.

    Args:
        data: the Dataset, whose store need not be built.
        rows: how many.
        num_partitions: of the new Dataset; ``None`` for one per executor.
    """
    return Dataset(
        data.spark,
        data.plan,
        data.source.first(rows),
        num_partitions,
        data.transform,
        data.collate,
        access=data.access,
    )
