"""From rows that differ in length to the tensors of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkdl.data.columns import ColumnPlan, Structure, TablePlan
from sparkdl.data.convert import RowName
from sparkdl.exceptions import ConfigError, DataError, integer_option
from sparkdl.wire.frame import Array

if TYPE_CHECKING:
    from torch import Tensor

Collate = Callable[[list[Any]], Any]
"""As ``collate_fn`` of a torch ``DataLoader``: from a list of rows, each ``(features, label)`` or, without a
label, ``features``, to ``(inputs, label)`` or ``inputs``."""


MASK = "attention_mask"
"""The argument by which a module is told what fills its rows up, so that it passes over that."""

TOKENS = "input_ids"
"""The argument whose rows the mask belongs to."""

Fill = float | Sequence[float] | Mapping[str, float]
"""Values that fill features up: one for all, or one for each."""


@dataclass(frozen=True, slots=True)
class Pad:
    """Pads the rows of a batch to the longest of them, and gives their lengths as a further tensor.

    Features become ``(padded, lengths)`` for a module ``forward(padded, lengths)``; several features become
    all padded tensors and then the lengths of those that were padded; features by name get a further
    ``<name>_lengths``. Features and labels that are numbers are stacked.

    Args:
        value: fills features up; a dict gives each named feature its own, a tuple each positional one.
        label_value: fills labels up that are arrays; -100 is what torch's cross-entropy passes over.
        multiple: lengths are rounded up to a multiple of this.
        lengths: whether the module gets the lengths.
        has_label: whether rows are ``(features, label)``.

    Raises:
        ConfigError: if ``multiple`` is no integer of at least 1; when it is called, if ``value`` has no value
            for a feature.

    Examples:
        >>> import torch
        >>> rows = [(torch.tensor([5, 6, 7]), 1), (torch.tensor([8]), 0)]
        >>> Pad()(rows)
        ((tensor([[5, 6, 7],
                [8, 0, 0]]), tensor([3, 1])), tensor([1, 0]))
    """

    value: Fill = 0
    label_value: float = -100
    multiple: int = 1
    lengths: bool = True
    has_label: bool = True

    def __post_init__(self) -> None:
        integer_option("Pad", "multiple", self.multiple, 1)

    def __call__(self, rows: list[Any]) -> Any:
        """Return the batch.

        Raises:
            DataError: if a row has no label although there should be one.
        """
        if not self.has_label:
            return self._inputs(rows)
        if not all(isinstance(row, tuple | list) and len(row) == 2 for row in rows):
            raise DataError(
                f"Pad expects rows of (features, label), got {rows[0]!r:.100}; without a label say "
                "Pad(has_label=False)",
                code="data-shape",
            )
        labels = [label for _, label in rows]
        return self._inputs([features for features, _ in rows]), self._grouped(labels, self.label_value)

    def _inputs(self, rows: list[Any]) -> Any:
        padded = self._grouped(rows, self.value)
        if not self.lengths:
            return padded
        if isinstance(padded, dict):
            lengths = {f"{name}_lengths": _lengths([row[name] for row in rows]) for name in padded}
            return padded | {name: found for name, found in lengths.items() if found is not None}
        if isinstance(padded, tuple):
            several = [_lengths([row[n] for row in rows]) for n in range(len(padded))]
            return (*padded, *(found for found in several if found is not None))
        found = _lengths(rows)
        return padded if found is None else (padded, found)

    def _grouped(self, rows: list[Any], value: Fill) -> Any:
        if isinstance(rows[0], Mapping):
            fills = value if isinstance(value, Mapping) else dict.fromkeys(rows[0], value)
            if set(rows[0]) - set(fills):
                raise ConfigError(f"Pad(value={value!r}): expected a value for each of {list(rows[0])}")
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            check_mask(columns, lambda index: f"row {index} of a batch")
            return {
                name: padded(column, _one(fills[name]), self.multiple) for name, column in columns.items()
            }
        if isinstance(rows[0], tuple | list):
            count = len(rows[0])
            several = value if isinstance(value, Sequence) else [value] * count
            if len(several) != count:
                raise ConfigError(f"Pad(value={value!r}): expected a value for each of {count} features")
            return tuple(
                padded([row[n] for row in rows], _one(fill), self.multiple) for n, fill in enumerate(several)
            )
        return padded(rows, _one(value), self.multiple)


def check_mask(inputs: Any, name: RowName) -> None:
    """Check that each row's mask is as long as its tokens: filled up, both would fit and mean other tokens.

    Only rows of one dimension are looked at: a mask may be of two, for each token and those it attends to.
    """
    if not isinstance(inputs, Mapping) or TOKENS not in inputs or MASK not in inputs:
        return
    tokens, mask = inputs[TOKENS], inputs[MASK]
    if _shape(tokens) == _shape(mask) != ():
        return
    for index, row in enumerate(zip(tokens, mask, strict=False)):
        dimensions = [0 if each is None else np.ndim(each) for each in row]
        if max(dimensions) > 1:
            return
        sizes = [len(each) if dims else 0 for each, dims in zip(row, dimensions, strict=True)]
        if sizes[0] != sizes[1]:
            raise DataError(
                f"{name(index)}: {TOKENS} has {sizes[0]} values and {MASK} {sizes[1]}; expected one of the "
                "mask for each token",
                code="data-shape",
            )


def _shape(rows: Any) -> tuple[int, ...]:
    """Return the shape of rows of one shape, as an array has them."""
    shape: tuple[int, ...] = getattr(rows, "shape", ())
    return shape[:2] if len(shape) > 1 else ()


def _one(value: Any) -> float:
    """Return the value for one tensor."""
    if isinstance(value, Sequence | Mapping):
        raise ConfigError(f"Pad(value={value!r}): expected one value, for there is one feature")
    number: float = value
    return number


def padded(rows: Sequence[Any], value: float = 0, multiple: int = 1) -> Tensor:
    """Return rows as one tensor, filled up to the longest of them; numbers are stacked."""
    import torch

    tensors = [torch.as_tensor(row) for row in rows]
    if not tensors[0].dim():
        return torch.stack(tensors)
    longest = max(len(tensor) for tensor in tensors)
    longest += -longest % multiple
    first = tensors[0]
    filled = first.new_full((len(tensors), longest, *first.shape[1:]), value)
    for index, tensor in enumerate(tensors):
        filled[index, : len(tensor)] = tensor
    return filled


def tensor_of(plan: ColumnPlan, values: Array) -> Tensor:
    """Return rows of a stored column as a tensor; rows that differ in length are filled up."""
    import torch

    if values.dtype == object:
        return padded(list(values), plan.fill or 0)
    return torch.from_numpy(values)


def padding_of(plan: TablePlan) -> Pad | None:
    """Return how rows are padded whose columns' metadata say so; ``None`` if there is no such column."""
    if not any(column.ragged and column.fill is not None for column in plan.columns):
        return None
    fills = {column.key: column.fill or 0 for column in plan.columns}
    return Pad(value=plan.features.assemble(fills), lengths=False, has_label=plan.label.kind != "none")


def _lengths(rows: list[Any]) -> Tensor | None:
    """Return the lengths of rows that are arrays."""
    import torch

    return torch.tensor([len(row) for row in rows]) if torch.as_tensor(rows[0]).dim() else None


def collated(
    columns: Mapping[str, Array], features: Structure, label: Structure, collate: Collate
) -> tuple[Any, Any]:
    """Let ``collate`` make inputs and label of a batch."""
    import torch

    keys = [*features.keys, *label.keys]
    rows: list[Any] = []
    for values in zip(*(columns[key] for key in keys), strict=True):
        tensors = {key: torch.as_tensor(value) for key, value in zip(keys, values, strict=True)}
        row = features.assemble(tensors)
        rows.append(row if label.kind == "none" else (row, label.assemble(tensors)))
    found = collate(rows)
    if label.kind == "none":
        return _inputs(found), None
    if not isinstance(found, Sequence) or len(found) != 2:
        raise DataError(
            f"collate returned {type(found).__name__}; expected (inputs, label), as the rows have a label",
            code="data-transform",
        )
    return _inputs(found[0]), found[1]


def _inputs(found: Any) -> Any:
    if isinstance(found, Mapping):  # collators of transformers return a class of their own
        return dict(found)
    return tuple(found) if isinstance(found, list) else found
