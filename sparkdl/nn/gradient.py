"""Forward and backward over one task's share of the global batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ModelError
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.trace import explain_failure

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
"""Feature tensors: one, several positional ones, or keyword ones."""

Loss = Callable[[Any, Any], Tensor]
"""``loss(output, label)``: a scalar mean over the batch, or one loss per sample."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one batch as tensors; the first dimension of each counts rows."""

    inputs: Inputs
    label: Any
    weight: Tensor | None
    rows: int

    def narrow(self, start: int, length: int) -> Batch:
        """Return rows [start, start + length) as views."""

        def cut(tree: Any) -> Any:
            if isinstance(tree, Tensor):
                return tree.narrow(0, start, length)
            if isinstance(tree, Mapping):
                return {name: cut(value) for name, value in tree.items()}
            return None if tree is None else tuple(cut(value) for value in tree)

        return Batch(cut(self.inputs), cut(self.label), cut(self.weight), length)


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """What a share contributes besides its gradient.

    Attributes:
        loss: mean loss of the share, weighted by the samples' weights.
        weight: sum of the samples' weights, or their number without weights.
        rows: number of samples.
    """

    loss: float
    weight: float
    rows: int


def call(module: nn.Module, inputs: Inputs) -> Any:
    """Call a module with one tensor, positional tensors or keyword tensors."""
    if isinstance(inputs, Tensor):
        return module(inputs)
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs)


def mean_loss(loss: Loss, output: Any, batch: Batch) -> Tensor:
    """Evaluate the loss on a batch as a scalar mean.

    Raises:
        ModelError: if the loss is neither a scalar nor one value per sample, or is a scalar
            although samples have weights.
    """
    target = batch.inputs if batch.label is None else batch.label
    value = loss(output, target)
    if not isinstance(value, Tensor):
        raise ModelError(f"the loss returned a {type(value).__name__}; expected a torch.Tensor")
    if value.dim() == 0:
        if batch.weight is not None:
            raise ModelError(
                "the Dataset has a weight column, but the loss returned a scalar: sample weights "
                "need one loss per sample, so build the loss with reduction='none'"
            )
        return value
    if value.shape[0] != batch.rows:
        raise ModelError(
            f"the loss returned shape {tuple(value.shape)} for {batch.rows} rows; expected a scalar "
            f"mean or one loss per row, shape ({batch.rows},)"
        )
    per_sample = value.reshape(batch.rows, -1).mean(dim=1)
    if batch.weight is None:
        return per_sample.mean()
    weight = batch.weight.to(per_sample.dtype)
    return (per_sample * weight).sum() / weight.sum()


def forward_backward(
    replica: FlatModule, batch: Batch, loss: Loss, micro_batch_size: int | None
) -> BatchLoss:
    """Leave the gradient of the batch's mean loss in ``replica.grad``.

    Args:
        replica: module with the current weights, in training mode.
        batch: the task's share of the global batch, at least one row.
        loss: ``loss(output, label)``.
        micro_batch_size: rows per forward pass; gradients of several passes are accumulated,
            which gives the same mean with less memory. All rows at once by default.

    Raises:
        ModelError: naming the layer, when the module or the loss fails on the data.
    """
    replica.zero_grad()
    size = min(micro_batch_size or batch.rows, batch.rows)
    weights = _weights(batch, size)
    total = sum(weights)
    mean = 0.0
    for index, weight in enumerate(weights):
        if weight == 0.0:
            continue  # every row of the micro-batch has weight zero: nothing to learn, 0/0 otherwise
        start = index * size
        part = batch.narrow(start, min(size, batch.rows - start)) if len(weights) > 1 else batch
        try:
            value = mean_loss(loss, call(replica.module, part.inputs), part)
        except ModelError:
            raise
        except Exception as error:
            raise explain_failure(replica.module, part.inputs, call, error) from error
        if not value.requires_grad:
            raise ModelError("the loss does not depend on any trainable parameter: no gradient can flow")
        share = weight / total
        (value if share == 1.0 else value * share).backward()  # type: ignore[no-untyped-call]
        mean += share * value.item()
    return BatchLoss(mean, total, batch.rows)


def _weights(batch: Batch, size: int) -> list[float]:
    """Weight of each micro-batch: its number of rows, or the sum of their weights."""
    starts = range(0, batch.rows, size)
    if batch.weight is None:
        return [float(min(size, batch.rows - start)) for start in starts]
    weight = batch.weight.to(torch.float64)
    return [float(weight[start : start + size].sum()) for start in starts]
