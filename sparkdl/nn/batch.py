"""A batch of rows as tensors, and how a module is called on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.hf.outputs import get_ready, plain
from sparkdl.nn.vector_math import bind

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
"""Feature tensors: one, several positional ones, or keyword ones."""

bind()  # here, for whatever computes needs batches: in tasks, servers and notebooks


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one batch as tensors; the first dimension of each counts rows.

    It unpacks as ``inputs, label = batch``.

    Attributes:
        inputs: the module's inputs.
        label: one tensor, a tuple or a dict of them, or ``None`` without a label column.
        weight: weight of each row, shape (rows,), or ``None`` without a weight column.
        rows: number of rows.
        epoch: completed epochs; 0 where there is no run.
        iteration: completed iterations; a step may choose by it what to train.
    """

    inputs: Inputs
    label: Any
    weight: Tensor | None
    rows: int
    epoch: int = 0
    iteration: int = 0

    def __iter__(self) -> Iterator[Any]:
        yield self.inputs
        yield self.label

    def narrow(self, start: int, length: int) -> Batch:
        """Return rows [start, start + length) as views."""
        return self._map(lambda tensor: tensor.narrow(0, start, length), length)

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device; itself if it is there."""
        target = torch.device(device)
        if target.type == "cpu":  # rows are read on the CPU: the common case costs nothing
            return self
        return self._map(lambda tensor: tensor.to(target, non_blocking=True), self.rows)

    def channels_last(self) -> Batch:
        """Return the batch with 4-D floating-point inputs in the channels-last memory format."""

        def restride(tensor: Tensor) -> Tensor:
            if tensor.dim() == 4 and tensor.is_floating_point():
                return tensor.contiguous(memory_format=torch.channels_last)
            return tensor

        return replace(self, inputs=map_tensors(self.inputs, restride))

    def _map(self, change: Callable[[Tensor], Tensor], rows: int) -> Batch:
        return Batch(
            map_tensors(self.inputs, change),
            map_tensors(self.label, change),
            map_tensors(self.weight, change),
            rows,
            self.epoch,
            self.iteration,
        )


def map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a tree of tuples, lists and dicts; other leaves stay."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: map_tensors(value, change) for name, value in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(map_tensors(value, change) for value in tree)
    return tree


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree, in its order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(tree, note)
    return found


def group(tensors: Sequence[Tensor], names: Sequence[str] = ()) -> Inputs:
    """Group tensors into a module's inputs: by name if there are names, else by position."""
    if names:
        return dict(zip(names, tensors, strict=True))
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def call(module: nn.Module, inputs: Inputs) -> Any:
    """Call a module with one tensor, positional tensors or keyword tensors.

    A ``ModelOutput`` of Hugging Face becomes its tensors, see :func:`sparkdl.hf.outputs.plain`.
    """
    get_ready(module, inputs)
    if isinstance(inputs, Tensor):
        return plain(module(inputs))
    if isinstance(inputs, Mapping):
        return plain(module(**inputs))
    return plain(module(*inputs))
