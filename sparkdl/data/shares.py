"""Shares of rows: of a Dataset as Datasets of their own, of a DataFrame as DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl import seeding
from sparkdl._spark.session import is_deterministic
from sparkdl.access.base import Access, Frames
from sparkdl.data.columns import TablePlan, quoted
from sparkdl.data.dataset import Dataset
from sparkdl.data.store import partition as store
from sparkdl.data.store.build import Partitions, StoreSource
from sparkdl.data.store.partition import Token
from sparkdl.data.streams import RowShare
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Parts


def check_share(fraction: Any) -> None:
    """Check that something is a share of rows to validate on."""
    if isinstance(fraction, bool) or not 0 < fraction < 1:
        raise ConfigError(
            f"validation={fraction!r}: expected the share of the rows to validate on, above 0 and below 1, a "
            "Dataset or a DataFrame"
        )


def share_of(fraction: Any, seed: int) -> tuple[RowShare, RowShare]:
    """Return the rows for training, and the share of them for validation; ConfigError if it is none."""
    check_share(fraction)
    return RowShare(0.0, fraction, True, seed), RowShare(0.0, fraction, False, seed)


def folds_of(count: int, seed: int) -> list[tuple[RowShare, RowShare]]:
    """Return the rows for training and those for validation of each fold."""
    bounds = [(fold / count, (fold + 1) / count) for fold in range(count)]
    return [(RowShare(a, b, True, seed), RowShare(a, b, False, seed)) for a, b in bounds]


@contextmanager
def shares_of(data: Dataset, shares: Sequence[RowShare]) -> Iterator[list[Dataset]]:
    """Make a Dataset of each share of a Dataset's rows while the block runs; DataError if one is empty.

    Of rows that stay in their files it is a scan of its own. Otherwise it takes its share of each partition,
    and has the store's files: it costs 8 bytes per row, its numbers in these files.
    """
    with ExitStack() as stack:
        made = []
        for one in shares:
            made.append(_share_as_dataset(data, one))
            stack.callback(made[-1].release)
        yield made


def first_rows(data: Dataset, rows: int, num_partitions: int | None) -> Dataset:
    """Return the first rows of a Dataset, all if its source cannot be cut; its store need not be built."""
    return _of_source(data, data.source.first(rows), num_partitions)


def _share_as_dataset(data: Dataset, one: RowShare) -> Dataset:
    part = data.source.part(data.plan, one)
    if part is None:
        stored = data.store().rows
        if not sum(map(one.count, stored)):
            raise DataError(
                f"no row is left for training or for validation: a share from {one.begin:g} to {one.end:g} "
                f"is taken of each partition, and the largest has {max(stored)} rows; choose another share",
                code="data-empty",
            )
        return _of_source(data, _StoredShare(data, one), len(stored))
    most = part.most_partitions(data.plan)
    given = data.num_partitions
    return _of_source(data, part, min(given, most) if isinstance(given, int) else given)


def _of_source(data: Dataset, source: StoreSource, num_partitions: Partitions) -> Dataset:
    return Dataset(
        data.spark, data.plan, source, num_partitions, data.transform, data.collate, access=data.access
    )


class _StoredShare(StoreSource):
    """Some rows of each partition of a store."""

    def __init__(self, data: Dataset, one: RowShare) -> None:
        self._data, self._share = data, one

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`sparkdl.data.store.build.StoreSource`."""
        return {key: values[:rows] for key, values in self._data.peek().items()}

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`sparkdl.data.store.build.StoreSource`."""
        return access.stage(self._data.store().tokens, partial(_select, self._share), [])


def _select(share: RowShare, partition: int, frames: Iterator[bytes]) -> Iterator[bytes | Parts]:
    """Take a share of a partition: yield its token."""
    for data in frames:
        token = Token.from_frame(frame.unpack(data))
        own = replace(share, seed=seeding.derive(seeding.ORDER, share.seed, partition) % (1 << 62))
        yield store.view_of(token, own.name, own.rows(token.rows)).to_frame()


_HASHES = 1 << 20


def split_by_fraction(df: DataFrame, fraction: float, seed: int) -> tuple[DataFrame, DataFrame]:
    """Split rows by a hash of their values; raises DataError if the query gives other rows each time.

    The same rows go to the same side in whatever order they come, equal rows together: both sides are
    computed on their own, and a row that changed sides in between would be lost or seen twice.
    """
    check_repeats(df)
    hashed = F.pmod(F.xxhash64(F.lit(seed), *(quoted(name) for name in df.columns)), F.lit(_HASHES))
    chosen = hashed < F.lit(round(fraction * _HASHES))
    return df.filter(~chosen), df.filter(chosen)


def check_repeats(df: DataFrame, side: str = "") -> None:
    """Check that a query gives the same rows each time, by running it twice where Spark does not know.

    ``side`` is a column that says which part a row is in; other columns may change. Empty if all count.
    """
    if is_deterministic(df):
        return
    keys = [(name,) for name in df.columns] + [(name, side) for name in df.columns if side not in ("", name)]
    found = []
    for _ in range(2):  # queries of their own: one would find its own shuffle files again
        hashes = [F.sum(F.pmod(F.xxhash64(*map(quoted, key)), F.lit(_HASHES))) for key in keys]
        found.append(df.agg(*hashes).collect()[0])
    same = {key for key, first, again in zip(keys, *found, strict=True) if first == again}
    if side:  # as many rows may be in each part, but others: beside a column that stays, this is seen
        moved = any((name,) in same and (name, side) not in same for name in df.columns if name != side)
        changed = [side] if moved or (side,) not in same else []
    else:
        changed = [name for name in df.columns if (name,) not in same]
    if changed:
        raise DataError(
            f"the query gives other values of {', '.join(changed)} each time it runs, and rows for training "
            "and for validation are read one after the other: some would be in both parts, others in none. "
            "Put it behind a cache(), a checkpoint() or a file",
            code="data-value",
        )


def split_pandas(df: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    """Split the rows of a pandas DataFrame into training and validation, by their number and the seed."""
    drawn = np.random.default_rng(seeding.derive(seeding.ORDER, seed)).permutation(len(df))
    held = np.zeros(len(df), np.bool_)
    held[drawn[: round(fraction * len(df))]] = True
    return df[~held], df[held]
