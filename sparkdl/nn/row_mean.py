"""A trial whether a loss is a mean over rows: that of a batch is the mean of its parts' losses.

Contrastive losses, triplet mining and Barlow Twins compare the rows of a batch with each other, and a sum is
no mean. Partitions and micro-batches train something else with them than torch does with the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from sparkdl.nn.batch import Batch, call
from sparkdl.nn.objective import LossObjective, Objective

# of a loss: rounding of float32 is below it, a part of the loss that compares rows often above
_TOLERANCE = 3e-5
_COARSE = 1e-3  # the same where passes round to bf16 or TF32
_OWN = torch.nn.modules.loss


def is_known(objective: Objective) -> bool:
    """Return whether the loss is one of torch's modules that takes a mean: it needs no trial."""
    loss = objective.loss if isinstance(objective, LossObjective) else None
    own = type(loss).__module__ == _OWN.__name__
    return own and getattr(loss, "reduction", "") in ("mean", "none", "batchmean")


def differs(objective: Objective, module: nn.Module, batch: Batch) -> tuple[float, float] | None:
    """Return the loss of a batch and the mean of its parts' losses if they differ.

    Layers are in evaluation mode meanwhile: BatchNorm compares rows, and dropout draws, whatever the loss is.
    ``None`` if they are equal, or if nothing can be said: the loss is random, or fails.
    """
    if is_known(objective) or batch.rows < 2:
        return None
    try:
        with torch.no_grad(), _without_noise(module):
            compute = _computing(objective, module, batch)
            whole = compute(0, batch.rows)
            middle = batch.rows // 2
            parts = [compute(0, middle), compute(middle, batch.rows - middle)]
            total = sum(weight for _, weight in parts)
            if not whole[1] or not total:
                return None
            mean = sum(loss * weight for loss, weight in parts if weight) / total
            close = partial(_close, tolerance=_tolerance(module))
            if close(whole[0], mean) or not close(whole[0], compute(0, batch.rows)[0]):
                return None
            return whole[0], mean
    except Exception:
        return None  # the dry run itself says why


def _computing(
    objective: Objective, module: nn.Module, batch: Batch
) -> Callable[[int, int], tuple[float, float]]:
    """Return what computes loss and weight of rows; a loss is given outputs of all rows together."""
    if isinstance(objective, LossObjective):
        output = call(module, batch.inputs)
        target = batch.inputs if batch.label is None else batch.label
        rows = Batch(output, target, batch.weight, batch.rows)
    else:
        rows = batch

    def compute(start: int, length: int) -> tuple[float, float]:
        part = rows.narrow(start, length)
        if isinstance(objective, LossObjective):
            evaluated = objective.of(part.inputs, part)
        else:
            evaluated = objective(module, part)
        weight = length if part.weight is None else float(part.weight.double().sum())
        return evaluated.loss.item(), weight if evaluated.divisor is None else evaluated.divisor

    return compute


@contextmanager
def _without_noise(module: nn.Module) -> Iterator[None]:
    """Put all layers into evaluation mode but the module itself, whose step may ask for its own."""
    modes = [(layer, layer.training) for layer in module.modules()]
    for layer in module.children():
        layer.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def _tolerance(module: nn.Module) -> float:
    """Return by how much rounding may change a loss, as a share of it."""
    exact = all(p.device.type == "cpu" for p in module.parameters()) and not torch.is_autocast_enabled("cpu")
    return _TOLERANCE if exact else _COARSE


def _close(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(abs(one), abs(other), 1e-6)
