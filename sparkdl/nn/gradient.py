"""Forward and backward over one task's share of the global batch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparkdl.exceptions import ModelError
from sparkdl.nn.batch import Batch, map_tensors
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.objective import Evaluated, Objective


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """Loss, weight and rows of a task's share of the batch, beside its gradient."""

    loss: float  # mean loss of the share, weighted by the samples' weights
    weight: float  # sum of the samples' weights, or their number without weights
    rows: int  # number of samples, without those that were left out
    # further scalars of a step, means over the share like the loss
    extras: dict[str, float] = field(default_factory=dict)
    dropped: int = 0  # number of samples that were left out
    divisor: float = field(default=math.nan)
    # by what a further scalar counts in the mean over shares, where that is not ``weight``
    shares: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if math.isnan(self.divisor):
            object.__setattr__(self, "divisor", self.weight)


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of a partition's rows."""

    # its mean gradient, shape (n,), where it was computed; with local steps the pseudo-gradient, weights
    # before minus weights after
    values: Tensor
    used: NDArray[np.bool_]  # per parameter of the layout, whether it has one
    # rows that have one, by parameter, where the gradient is row-sparse
    touched: Mapping[int, NDArray[np.bool_]]
    weight: float  # its weight in the mean over partitions: what the loss was divided by


def forward_backward(
    replica: FlatModule,
    batch: Batch,
    objective: Objective,
    micro_batch_size: int | None,
    ends: Callable[[int], bool] = lambda rows: False,
) -> BatchLoss:
    """Leave the gradient of the batch's mean loss in ``replica.grad``; ModelError names the layer that fails.

    The batch is the task's share of the global one, at least one row, on any device. ``micro_batch_size`` are
    rows per forward pass, by default all: gradients of several passes are accumulated, which gives the same
    mean with less memory. ``ends`` is asked between two passes, with the number of rows done, whether to
    leave out the others; the gradient is that of the rows that were done.
    """
    return replica.attempt(lambda: _accumulate(replica, batch, objective, micro_batch_size, ends))


def _accumulate(
    replica: FlatModule,
    batch: Batch,
    objective: Objective,
    micro_batch_size: int | None,
    ends: Callable[[int], bool],
) -> BatchLoss:
    replica.zero_grad()
    size = min(micro_batch_size or batch.rows, batch.rows)
    weights = _weights(batch, size)
    total = sum(weights)
    mean, came, rows, divisor = 0.0, 0.0, 0, 0.0
    whole = 0.0  # the divisor of all rows, if it is to them as the first one is to its rows
    extras: defaultdict[str, float] = defaultdict(float)
    reported: defaultdict[str, float] = defaultdict(float)
    for index, weight in enumerate(weights):
        start = index * size
        if came and ends(rows):
            break
        rows = min(start + size, batch.rows)
        if weight == 0.0:
            continue  # every row of the micro-batch has weight zero: nothing to learn, 0/0 otherwise
        came += weight
        part = batch.narrow(start, rows - start) if len(weights) > 1 else batch
        evaluated = _compute(replica, part, objective, training=True)
        value = evaluated.loss
        own = weight if evaluated.divisor is None else evaluated.divisor
        for name, extra in evaluated.extras.items():
            counts = evaluated.divisors.get(name, weight)
            if counts and (own or math.isfinite(extra)):
                extras[name] += counts * extra
                reported[name] += counts
        if not own:
            continue  # no label counts: 0/0
        if not value.requires_grad:
            raise _no_gradient(replica)
        whole = whole or (own if weight == total else total * (own / weight))
        divisor += own
        share = own / whole
        _backward(replica, value if share == 1.0 else value * share)
        mean += share * value.item()
    if whole and not divisor:
        raise ModelError(
            f"the loss of {rows} rows is divided by 0: the divisors of its micro-batches add up to 0, and "
            "some are below 0. Give classes weights above 0",
            code="model-output",
        )
    replica.check_gradients()
    if divisor and divisor != whole:
        replica.grad.mul_(whole / divisor)
        mean *= whole / divisor
    means = {name: extras[name] / reported[name] for name in extras if reported[name]}
    shares = {name: counts for name, counts in reported.items() if counts != came}
    return BatchLoss(mean, came, rows, means, batch.rows - rows, divisor, shares)


def evaluate(replica: FlatModule, batch: Batch, objective: Objective) -> Evaluated:
    """Return loss, extras and output of a batch; call it in ``with replica.evaluating()``.

    The output is on the CPU, in no lower precision than float32. ModelError names the layer when module or
    objective fail.
    """
    evaluated = replica.attempt(lambda: _compute(replica, batch, objective, training=False))
    return replace(evaluated, output=map_tensors(evaluated.output, _to_host))


def _to_host(tensor: Tensor) -> Tensor:
    low = tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor.to("cpu", torch.float32) if low else tensor.cpu()


def _compute(replica: FlatModule, batch: Batch, objective: Objective, *, training: bool) -> Evaluated:
    """Run the objective, as ``loss(module(inputs), label)``, on a batch; an error names the layer."""
    if replica.device.type != "cpu":
        objective.to(replica.device)
    batch = replica.prepare(batch)
    with replica.computing():
        try:
            return objective(replica.module, batch) if training else objective.evaluate(replica.module, batch)
        except ModelError:
            raise
        except Exception as error:
            if replica.compiled:
                raise  # perhaps the compiler's fault: it is tried again without
            raise objective.explain(replica.module, batch, error) from error


def _backward(replica: FlatModule, loss: Tensor) -> None:
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        if replica.compiled:
            raise  # perhaps the compiler's fault: it is tried again without
        raise ModelError(
            f"the backward pass failed: {type(error).__name__}: {error}. The forward pass and the loss ran; "
            "look for tensors that are changed in place, graphs that are used twice, and functions without "
            "a derivative",
            code="model-gradient",
        ) from error


def _no_gradient(replica: FlatModule) -> ModelError:
    frozen = replica.frozen()
    if len(frozen) == len(replica.layout.params):
        return ModelError(
            "all parameters are frozen: unfreeze some, or end the training", code="model-gradient"
        )
    message = "the loss does not depend on any trainable parameter: no gradient can flow"
    if frozen:
        names = ", ".join(repr(name) for name in frozen[:3]) + (", ..." if len(frozen) > 3 else "")
        message += f". {len(frozen)} of {len(replica.layout.params)} parameters are frozen now: {names}"
    return ModelError(message, code="model-gradient")


def try_forward(
    replica: FlatModule, batch: Batch, objective: Objective, micro_batch_size: int | None
) -> None:
    """Run forward passes of a batch in training mode, for what they ask of others; errors do not matter.

    The same forward passes run again with what was asked for, and raise then.
    """
    size = min(micro_batch_size or batch.rows, batch.rows)
    with torch.no_grad():
        for start in range(0, batch.rows, size):
            length = min(size, batch.rows - start)
            part = batch.narrow(start, length) if length < batch.rows else batch
            with suppress(Exception), replica.computing():
                objective(replica.module, replica.prepare(part))


def _weights(batch: Batch, size: int) -> list[float]:
    """Weight of each micro-batch: its number of rows, or the sum of their weights."""
    starts = range(0, batch.rows, size)
    if batch.weight is None:
        return [float(min(size, batch.rows - start)) for start in starts]
    weight = batch.weight.to(torch.float64)
    return [float(weight[start : start + size].sum()) for start in starts]
