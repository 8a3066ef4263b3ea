"""Rows that are Python objects or arrays: elements of an RDD, items of a torch dataset, numpy columns."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkdl import seeding
from sparkdl._spark.frames import frames_of
from sparkdl.access.base import Access, BytesRef, Frames
from sparkdl.code import pickling
from sparkdl.data.columns import STORED_DTYPES, ColumnPlan, TablePlan, make_plan, structure_of
from sparkdl.data.convert import from_rows
from sparkdl.data.store.build import Partitions, StoreSource
from sparkdl.data.store.dataframe import ROW_BITS, Places, token_of
from sparkdl.data.store.partition import StoreBatch
from sparkdl.data.streams import Dealt, check_partitions
from sparkdl.exceptions import ConfigError, DataError, SerializationError
from sparkdl.wire.frame import Array
from sparkdl.wire.pieces import cut, joined

if TYPE_CHECKING:
    from pyspark import RDD
    from torch import Tensor

_CHUNK = 1024  # rows of an RDD that are stacked and written at once
_TASK_BYTES = 512 << 10  # of arrays that a task brings from the driver; Spark warns of 1,000 KiB
_DEALT_BYTES = 1 << 10  # more than it takes to say which items a partition has


def check_rdd(rdd: Any) -> None:
    """Check that rows are an RDD."""
    if hasattr(rdd, "take") and hasattr(rdd, "mapPartitionsWithIndex"):
        return
    raise ConfigError(
        f"rdd={rdd!r:.100}: expected an RDD, got a {type(rdd).__name__}. Take Dataset.from_dataframe for a "
        "DataFrame, from_numpy for arrays, from_torch for a dataset of torch; Spark Connect has no RDDs"
    )


def plan_element(
    first: Any, has_label: bool, has_weight: bool, ragged: bool, arrays: bool = False
) -> TablePlan:
    """Plan the columns of rows like the first one."""
    parts = 1 + has_label + has_weight
    if parts > 1 and (not isinstance(first, tuple | list) or len(first) != parts):
        raise DataError(
            f"expected elements that are tuples of {parts}, got {first!r:.200}"
            + ("" if has_weight else "; without a label say has_label=False"),
            code="data-shape",
        )
    values = list(first) if parts > 1 else [first]
    features = structure_of(values[0], "features")
    label = structure_of(values[1] if has_label else None, "label")
    found = features.disassemble(values[0]) | (label.disassemble(values[1]) if has_label else {})
    free = {key for key, value in found.items() if ragged and np.ndim(value)}
    plans = {key: ColumnPlan(key, key, ragged=key in free) for key in (*found, "weight")}
    return make_plan(features, label, plans, has_weight, arrays)


def plan_items(dataset: Any, has_label: bool, ragged: bool) -> TablePlan:
    """Plan the columns of a torch dataset by its first item; tensors keep their dtype."""
    from torch import Tensor

    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ConfigError(
            f"dataset={dataset!r:.100}: expected a map-style dataset, with __len__ and __getitem__; write "
            "the rows of an iterable one to a table, or collect them in a list"
        )
    if not len(dataset):
        raise DataError("the torch dataset is empty: there is nothing to train on", code="data-empty")
    item = dataset[0]
    plan = plan_element(as_arrays(item), has_label, False, ragged, arrays=True)
    features, label = item if has_label else (item, None)
    found = plan.features.disassemble(features) | plan.label.disassemble(label)
    tensors = {key: str(array_of(value).dtype) for key, value in found.items() if isinstance(value, Tensor)}
    kept = {key: dtype for key, dtype in tensors.items() if dtype in STORED_DTYPES}
    return replace(plan, columns=tuple(replace(c, dtype=kept.get(c.key)) for c in plan.columns))


def as_arrays(item: Any) -> Any:
    """Return an item with arrays in place of tensors and of lists of numbers."""
    from torch import Tensor

    if isinstance(item, Tensor):
        return array_of(item)
    if isinstance(item, Mapping):
        return {name: as_arrays(value) for name, value in item.items()}
    if isinstance(item, list) and item and all(isinstance(value, int | float) for value in item):
        return np.asarray(item)
    if isinstance(item, tuple | list):
        return tuple(as_arrays(value) for value in item)
    return item


def array_of(tensor: Tensor) -> Array:
    """Return a tensor as an array, of float32 where numpy lacks the dtype or the store does."""
    import torch

    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()


# -- elements of an RDD -------------------------------------------------------------------------


class RddSource(StoreSource):
    """Elements of an RDD; what of them are features, label and weight is the plan's matter."""

    def __init__(self, rdd: RDD[Any]) -> None:
        self._rdd = rdd

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`StoreSource`."""
        first = self._rdd.take(rows)
        return stack_rows(plan, first, [(0, i) for i in range(len(first))]) if first else {}

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`StoreSource`."""
        positioned = self._rdd.mapPartitionsWithIndex(_with_position)
        dealt, places = 0, None
        if isinstance(partitions, int):
            check_partitions(partitions)
            dealt = partitions
            places = Places.after(self._counts()) if partitions > 1 else None
            positioned = positioned.repartitionAndSortWithinPartitions(
                partitions, partial(_dealt, places, partitions)
            )
        return frames_of(positioned.mapPartitionsWithIndex(partial(_write_rows, store, plan, dealt, places)))

    def _counts(self) -> list[int]:
        """Return the rows of each partition but the last one."""
        others = range(self._rdd.getNumPartitions() - 1)
        return self._rdd.context.runJob(self._rdd, _count, others) if others else []

    def first(self, rows: int) -> StoreSource:
        """See :class:`StoreSource`."""
        return RddSource(self._rdd.context.parallelize(self._rdd.take(rows)))


def _with_position(partition: int, elements: Iterable[Any]) -> Iterator[tuple[tuple[int, int], Any]]:
    for row, element in enumerate(elements):
        yield (partition, row), element


def _count(elements: Iterable[Any]) -> list[int]:
    return [sum(1 for _ in elements)]


def _dealt(places: Places | None, partitions: int, position: tuple[int, int]) -> int:
    """Return the partition of the row's stream."""
    return places.stream(*position) % partitions if places is not None else 0


def _write_rows(
    store: str, plan: TablePlan, dealt: int, places: Places | None, partition: int, elements: Iterable[Any]
) -> Iterator[bytes]:
    """Write RDD elements of ((partition, row), element)."""
    stream = iter(elements)
    stacked = _stack(plan, stream)
    if places is not None:
        stacked = places.check(stacked, partition, dealt)
    yield token_of(store, plan.columns, partition, stacked, dealt).to_frame()
    deque(stream, maxlen=0)  # after an error: see token_writer


def _stack(plan: TablePlan, elements: Iterator[Any]) -> Iterator[StoreBatch]:
    while chunk := list(islice(elements, _CHUNK)):
        # Numbered like Spark's monotonically_increasing_id.
        ids = np.array([(partition << ROW_BITS) + row for (partition, row), _ in chunk], np.int64)
        yield ids, stack_rows(plan, [row for _, row in chunk], [position for position, _ in chunk])


def stack_rows(plan: TablePlan, rows: list[Any], positions: list[tuple[int, int]]) -> dict[str, Array]:
    """Stack RDD elements into arrays by column key; ``positions``: (partition, row) of each, for errors."""

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


class TorchSource(StoreSource):
    """Items of a map-style dataset of torch."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`StoreSource`."""
        count = min(rows, len(self._dataset))
        items = [as_arrays(self._dataset[index]) for index in range(count)]
        return stack_rows(plan, items, [(0, index) for index in range(count)])

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`StoreSource`."""
        if not isinstance(partitions, int):
            raise ConfigError("num_partitions='input' needs a DataFrame or RDD: a dataset has no partitions")
        check_partitions(partitions)
        count = len(self._dataset)
        if self._sent is None:
            self._sent = access.send(_dumped(self._dataset))
        pieces = (
            (p, piece)
            for p in range(partitions)
            for piece in cut(p, [_pickled(Dealt(count, p, partitions))], _DEALT_BYTES)
        )
        write = partial(_write_items, store, plan, self._sent.ref)
        return access.stage(access.scattered(pieces, partitions), write, self._sent.broadcasts)

    def first(self, rows: int) -> StoreSource:
        """See :class:`StoreSource`."""
        from torch.utils.data import Subset

        return TorchSource(Subset(self._dataset, range(min(rows, len(self._dataset)))))


def _dumped(dataset: Any) -> bytes:
    try:
        return pickling.dumps(dataset)
    except Exception as error:
        raise SerializationError(
            f"the torch dataset {type(dataset).__name__} cannot be sent to the executors: {error}. Open "
            "files and connections in __getitem__, not in __init__"
        ) from error


def _write_items(
    store: str, plan: TablePlan, dataset: BytesRef, partition: int, arriving: Iterator[bytes]
) -> Iterator[bytes]:
    """Write a partition of the items of a dataset, given which of them it has."""
    (own,) = (pickle.loads(data) for data in joined(arriving))

    def items() -> Iterator[tuple[tuple[int, int], Any]]:
        found = pickling.loads(dataset.read(once=True))
        for number in own.numbers().tolist():
            yield (0, number), as_arrays(found[number])

    yield token_of(store, plan.columns, partition, _stack(plan, items()), own.partitions).to_frame()
    deque(arriving, maxlen=0)  # after an error: see token_writer


# -- arrays of the driver -----------------------------------------------------------------------


class ArraySource(StoreSource):
    """Arrays on the driver."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`StoreSource`."""
        return convert_numpy(plan, {key: array[:rows] for key, array in self._arrays.items()})

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`StoreSource`."""
        if not isinstance(partitions, int):
            raise ConfigError("num_partitions='input' needs a DataFrame or RDD: arrays have no partitions")
        check_partitions(partitions)
        rows = len(next(iter(self._arrays.values())))
        chunks = (
            (p, _pickled((own, {key: array[own.numbers()] for key, array in self._arrays.items()})))
            for p, own in ((p, Dealt(rows, p, partitions)) for p in range(partitions))
        )
        # In pieces: what the driver holds travels inside tasks, and Spark warns of large ones.
        pieces = ((p, piece) for p, chunk in chunks for piece in cut(p, [chunk], _TASK_BYTES))
        return access.stage(access.scattered(pieces, partitions), partial(_write_arrays, store, plan))

    def first(self, rows: int) -> StoreSource:
        """See :class:`StoreSource`."""
        return self._of(slice(rows))

    def split(self, plan: TablePlan, fraction: float, seed: int) -> tuple[StoreSource, StoreSource]:
        """See :class:`StoreSource`."""
        rows = len(next(iter(self._arrays.values())))
        drawn = np.random.default_rng(seeding.derive(seeding.ORDER, seed)).permutation(rows)
        held = np.isin(np.arange(rows), drawn[: round(fraction * rows)])
        return self._of(~held), self._of(held)

    def _of(self, rows: slice | Array) -> ArraySource:
        return ArraySource({key: array[rows] for key, array in self._arrays.items()})


def _pickled(own: Dealt | tuple[Dealt, dict[str, Array]]) -> bytes:
    """Return which rows a partition has, with arrays of them or without; the task checks their dtypes."""
    return pickle.dumps(own, protocol=pickle.HIGHEST_PROTOCOL)


def _write_arrays(store: str, plan: TablePlan, partition: int, arriving: Iterator[bytes]) -> Iterator[bytes]:
    """Write a partition of arrays, which arrive in pieces with what says which of all rows these are."""
    ((own, arrays),) = (pickle.loads(data) for data in joined(arriving))
    numbers = own.numbers()
    converted = ((numbers, convert_numpy(plan, arrays, numbers)) for _ in range(1))
    yield token_of(store, plan.columns, partition, converted, own.partitions).to_frame()
    deque(arriving, maxlen=0)  # after an error: see token_writer


def convert_numpy(
    plan: TablePlan, arrays: Mapping[str, Array], numbers: Array | None = None
) -> dict[str, Array]:
    """Convert whole numpy columns; ``numbers`` are those of their rows in the source, for errors."""
    name = lambda index: f"row {index if numbers is None else numbers[index]}"  # noqa: E731
    return {column.key: from_rows(column, np.asarray(arrays[column.key]), name) for column in plan.columns}
