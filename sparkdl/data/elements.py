"""Rows that are Python objects: elements of an RDD, items of a torch dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkdl.access.base import Access, Frames, Published
from sparkdl.code import pickling
from sparkdl.data.columns import STORED_DTYPES, ColumnPlan, Structure, TablePlan, make_plan, structure_of
from sparkdl.data.store import writers
from sparkdl.data.store.sources import Partitions, Source
from sparkdl.data.streams import Dealt, check_partitions
from sparkdl.exceptions import ConfigError, DataError, SerializationError
from sparkdl.wire.frame import Array
from sparkdl.wire.pieces import cut

if TYPE_CHECKING:
    from torch import Tensor

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
    plan = make_plan(features, label, unnamed(features, label), has_weight, arrays)
    if not ragged:
        return plan
    found = features.disassemble(values[0]) | (label.disassemble(values[1]) if has_label else {})
    return plan.ragged([key for key, value in found.items() if np.ndim(value)])


def unnamed(features: Structure, label: Structure) -> dict[str, ColumnPlan]:
    """Plans for sources whose columns have no names of their own: the keys name them."""
    return {key: ColumnPlan(key, key) for key in (*features.keys, *label.keys, "weight")}


def plan_items(dataset: Any, has_label: bool, ragged: bool) -> TablePlan:
    """Plan the columns of a torch dataset by its first item; tensors keep their dtype.

    Raises:
        ConfigError: if it is no map-style dataset.
        DataError: if it is empty, or its first item is not as announced.
    """
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
    values: Any = list(item) if has_label else [item]
    found = plan.features.disassemble(values[0]) if isinstance(values[0], tuple | Mapping) else {}
    found = found or dict.fromkeys(plan.features.keys, values[0])
    if has_label:
        single = plan.label.kind == "single"
        found |= {plan.label.keys[0]: values[1]} if single else plan.label.disassemble(values[1])
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
    found: Array = (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()
    return found


class TorchSource(Source):
    """Items of a map-style dataset of torch."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._sent: Published | None = None

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`Source`."""
        count = min(rows, len(self._dataset))
        items = [as_arrays(self._dataset[index]) for index in range(count)]
        return writers.stack_rows(plan, items, [(0, index) for index in range(count)])

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`Source`."""
        if not isinstance(partitions, int):
            raise ConfigError("num_partitions='input' needs a DataFrame or RDD: a dataset has no partitions")
        check_partitions(partitions)
        count = len(self._dataset)
        if self._sent is None:
            self._sent = access.send(_pickled(self._dataset))
        pieces = (
            (p, piece)
            for p in range(partitions)
            for piece in cut(p, [writers.pickled(Dealt(count, p, partitions))], _DEALT_BYTES)
        )
        write = writers.items_writer(store, plan, self._sent.ref, as_arrays)
        return access.stage(access.scattered(pieces, partitions), write, self._sent.broadcasts)

    def first(self, rows: int) -> Source:
        """See :class:`Source`."""
        from torch.utils.data import Subset

        return TorchSource(Subset(self._dataset, range(min(rows, len(self._dataset)))))

    def release(self) -> None:
        """See :class:`Source`."""
        sent, self._sent = self._sent, None
        if sent is not None:
            sent.release()


def _pickled(dataset: Any) -> bytes:
    try:
        return pickling.dumps(dataset)
    except Exception as error:
        raise SerializationError(
            f"the torch dataset {type(dataset).__name__} cannot be sent to the executors: {error}. Open "
            "files and connections in __getitem__, not in __init__"
        ) from error
