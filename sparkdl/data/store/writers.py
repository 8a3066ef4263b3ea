"""Building the partition store with Spark: what runs in the tasks that write it.

Every build task takes the rows of one partition as a stream of batches, writes the files and
yields the partition's token. A row that cannot be converted makes a token with an error in it
instead of a failed task: retrying would find the same row.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.access.base import BytesRef
from sparkdl.code import pickling
from sparkdl.data.columns import ROW_ID, ColumnPlan, TablePlan
from sparkdl.data.convert import from_arrow, from_rows, row_namer
from sparkdl.data.store.manifest import ADVICE
from sparkdl.data.store.partition import StoreBatch, Token, write_partition
from sparkdl.data.streams import STREAMS, Dealt
from sparkdl.exceptions import DataError
from sparkdl.wire.frame import Array
from sparkdl.wire.pieces import joined
from sparkdl.wire.private import local_folders

_CHUNK = 1024  # rows of an RDD that are stacked and written at once
ROW_BITS = 33  # of an id by monotonically_increasing_id; the input partition is above them
ROWS = (1 << ROW_BITS) - 1


@dataclass(frozen=True, slots=True)
class Places:
    """Where the input partitions begin in the order of the source, for rows that are dealt to others.

    The number of a row is that of the rows in the input partitions before its own, and of those before it
    there. So one job counts the rows of each; with one, or one to deal to, there is nothing to count.

    Attributes:
        streams: the stream of the first row of each.
    """

    streams: tuple[int, ...]

    @classmethod
    def after(cls, counts: Sequence[int]) -> Places:
        """Return where partitions begin, given the rows of each but the last one."""
        return cls(tuple(before % STREAMS for before in accumulate(counts, initial=0)))

    def check(self, batches: Iterable[StoreBatch], partition: int, partitions: int) -> Iterator[StoreBatch]:
        """Yield the batches of a partition, whose rows must be those of its streams, in turn.

        Raises:
            DataError: if the source has other rows than when they were counted.
        """
        own, first, known = np.arange(partition, STREAMS, partitions), 0, np.array(self.streams)
        for ids, columns in batches:
            begins = known.take(ids >> ROW_BITS, mode="clip")
            expected = own.take(np.arange(first, first + len(ids)), mode="wrap")
            if not np.array_equal((begins + (ids & ROWS)) % STREAMS, expected):
                raise other_rows(partition)
            first += len(ids)
            yield ids, columns

    def stream(self, partition: int, row: int) -> int:
        """Return the stream of a row of an input partition."""
        return (self.streams[partition] + row) % STREAMS


def other_rows(partition: int) -> DataError:
    """Return the error of a source that gives other rows when they are read than when they are counted."""
    return DataError(
        f"partition {partition} has rows of other numbers than were dealt to it: the source gave other rows "
        f"when they were read than when they were counted. {ADVICE}; or keep its partitions by "
        "num_partitions='input'",
        code="data-changed",
    )


def _write(
    store: str, plans: tuple[ColumnPlan, ...], partition: int, batches: Iterable[StoreBatch], dealt: int
) -> bytes:
    executor = str(local_folders()[0])  # a directory of the executor's own: as good as its id
    try:
        return write_partition(store, partition, executor, plans, batches, dealt).to_frame()
    except DataError as error:
        return Token(store, partition, 0, "", executor, error=str(error)).to_frame()


# -- DataFrames ---------------------------------------------------------------------------------


def arrow_writer(
    store: str, plans: tuple[ColumnPlan, ...], dealt: int = 0, places: Places | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the ``mapInArrow`` function that writes a partition and yields its token.

    Here and below, ``dealt`` is the number of partitions that rows were dealt to, 0 if they were not, and
    ``places`` is where input partitions begin, if that has to be looked at.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        stream = iter(batches)
        converted: Iterable[StoreBatch] = ((_row_ids(b), convert(plans, b)) for b in stream)
        if places is not None:
            converted = places.check(converted, context.partitionId(), dealt)
        token = _write(store, plans, context.partitionId(), converted, dealt)
        for _ in stream:
            pass  # after an error: a task that leaves input unread loses its Python worker
        yield pa.RecordBatch.from_pydict({"token": [token]})

    return write


def convert_rows(plan: TablePlan, rows: Sequence[Any]) -> dict[str, Array]:
    """Convert collected rows of the selected columns, like :func:`convert`."""
    names = [ROW_ID, *(column.key for column in plan.columns)]
    values = {
        name: [bytes(v) if isinstance(v, bytearray) else v for v in (row[i] for row in rows)]
        for i, name in enumerate(names)
    }
    return convert(plan.columns, pa.RecordBatch.from_pydict(values))


def convert(plans: tuple[ColumnPlan, ...], batch: pa.RecordBatch) -> dict[str, Array]:
    """Convert an Arrow batch to arrays by column key."""
    name = row_namer(_row_ids(batch))
    return {plan.key: from_arrow(plan, batch.column(plan.key), name) for plan in plans}


def _row_ids(batch: pa.RecordBatch) -> Array:
    ids: Array = batch.column(ROW_ID).to_numpy(zero_copy_only=False)
    return ids


# -- rows that are Python objects ---------------------------------------------------------------


def rows_writer(
    store: str, plan: TablePlan, dealt: int = 0, places: Places | None = None
) -> Callable[[int, Iterable[Any]], Iterator[bytes]]:
    """Return the partition function that writes RDD elements of ((partition, row), element)."""

    def write(partition: int, elements: Iterable[Any]) -> Iterator[bytes]:
        stream = iter(elements)
        stacked = _stack(plan, stream)
        if places is not None:
            stacked = places.check(stacked, partition, dealt)
        yield _write(store, plan.columns, partition, stacked, dealt)
        for _ in stream:
            pass

    return write


def _stack(plan: TablePlan, elements: Iterator[Any]) -> Iterator[StoreBatch]:
    while chunk := list(islice(elements, _CHUNK)):
        # Numbered like Spark's monotonically_increasing_id.
        ids = np.array([(partition << ROW_BITS) + row for (partition, row), _ in chunk], np.int64)
        yield ids, stack_rows(plan, [row for _, row in chunk], [position for position, _ in chunk])


def stack_rows(plan: TablePlan, rows: list[Any], positions: list[tuple[int, int]]) -> dict[str, Array]:
    """Stack RDD elements into arrays by column key.

    Args:
        plan: how an element groups into columns.
        rows: elements: features, or a tuple of features, label and weight, as planned.
        positions: (partition, row) of each in the source RDD, for errors.
    """

    def name(index: int) -> str:
        partition, row = positions[index]
        if plan.arrays:
            return f"row {row}"
        return f"row {row} of input partition {partition}"

    columns: dict[str, list[Any]] = {column.key: [] for column in plan.columns}
    parts = 1 + (plan.label.kind != "none") + plan.weighted
    for index, row in enumerate(rows):
        if parts > 1 and (not isinstance(row, tuple | list) or len(row) != parts):
            raise DataError(
                f"{name(index)}: expected a tuple of {parts} (features, label, weight), got {row!r:.200}",
                code="data-shape",
            )
        values = list(row) if parts > 1 else [row]
        found = plan.features.disassemble(values.pop(0))
        if plan.weighted:
            found["weight"] = values.pop()
        if values:
            found |= plan.label.disassemble(values.pop())
        for key, value in found.items():
            columns[key].append(value)
    return {column.key: from_rows(column, columns[column.key], name) for column in plan.columns}


# -- items of a dataset that tasks read ---------------------------------------------------------


def items_writer(
    store: str, plan: TablePlan, dataset: BytesRef, convert_item: Callable[[Any], Any]
) -> Callable[[int, Iterator[bytes]], Iterator[bytes]]:
    """Return the task that writes a partition of the items of a dataset, given which of them it has."""

    def write(partition: int, arriving: Iterator[bytes]) -> Iterator[bytes]:
        (own,) = (pickle.loads(data) for data in joined(arriving))

        def items() -> Iterator[tuple[tuple[int, int], Any]]:
            found = pickling.loads(dataset.read(once=True))
            for number in own.numbers().tolist():
                yield (0, number), convert_item(found[number])

        yield _write(store, plan.columns, partition, _stack(plan, items()), own.partitions)
        deque(arriving, maxlen=0)  # after an error: see arrow_writer

    return write


# -- arrays of the driver -----------------------------------------------------------------------


def pickled(own: Dealt, arrays: Mapping[str, Array] | None = None) -> bytes:
    """Return rows of a partition as :func:`arrays_writer` reads them, or which these are.

    Args:
        own: says which rows of the source these are.
        arrays: by column key; of any dtype, for errors in them are found by the task.
    """
    return pickle.dumps(own if arrays is None else (own, arrays), protocol=pickle.HIGHEST_PROTOCOL)


def arrays_writer(store: str, plan: TablePlan) -> Callable[[int, Iterator[bytes]], Iterator[bytes]]:
    """Return the task that writes a partition of what :func:`pickled` returned, which arrives in pieces."""

    def write(partition: int, arriving: Iterator[bytes]) -> Iterator[bytes]:
        ((own, arrays),) = (pickle.loads(data) for data in joined(arriving))
        numbers = own.numbers()
        converted = ((numbers, convert_numpy(plan, arrays, numbers)) for _ in range(1))
        yield _write(store, plan.columns, partition, converted, own.partitions)
        deque(arriving, maxlen=0)  # after an error: see arrow_writer

    return write


def convert_numpy(
    plan: TablePlan, arrays: Mapping[str, Array], numbers: Array | None = None
) -> dict[str, Array]:
    """Convert whole numpy columns; ``numbers`` are those of their rows in the source, for errors."""
    name = lambda index: f"row {index if numbers is None else numbers[index]}"  # noqa: E731
    return {column.key: from_rows(column, np.asarray(arrays[column.key]), name) for column in plan.columns}
