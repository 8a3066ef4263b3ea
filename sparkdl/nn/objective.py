"""The objective of training: a loss on the module's output, or a step of the user's own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.exceptions import ModelError
from sparkdl.hf.outputs import with_loss
from sparkdl.nn.batch import Batch, call
from sparkdl.nn.divisor import DivisorWatch, watched
from sparkdl.nn.trace import describe, explain_failure

Loss = Callable[[Any, Any], Tensor]
"""``loss(output, label)``: a scalar mean over the batch, or one loss per sample."""

Step = Callable[[nn.Module, Batch], Tensor | Mapping[str, Any]]
"""``step(module, batch)``: the loss, or a dict with ``"loss"`` and further scalars to report."""

_LOW_PRECISION = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The result of an objective for one batch."""

    loss: Tensor  # scalar mean over the batch, weighted by the samples' weights
    extras: dict[str, float] = field(default_factory=dict)  # further scalars by name, means over the batch
    output: Any = None  # the output, for metrics; only from :meth:`Objective.evaluate`
    # what the loss has been divided by, such as the number of labels that count; ``None`` if it is a mean
    # over rows
    divisor: float | None = None
    divisors: Mapping[str, float] = field(default_factory=dict)  # likewise of further scalars, by name


class Objective(ABC):
    """The loss, and the measures of an evaluation."""

    # whether the further scalars of an evaluation are scores, beside those of metrics
    scores: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, module: nn.Module, batch: Batch) -> Evaluated:
        """Return the loss of a batch, with the graph that leads to it; ModelError if it is no such loss."""

    @abstractmethod
    def evaluate(self, module: nn.Module, batch: Batch) -> Evaluated:
        """Return loss and output of a batch; the caller sets the module's mode."""

    @abstractmethod
    def explain(self, module: nn.Module, batch: Batch, error: Exception) -> ModelError:
        """Return an error that names the layer, or the other part, that failed on the batch."""

    def to(self, device: torch.device) -> None:
        """Move the objective's own tensors, such as class weights, to a device."""
        for part in parts_of(self).values():
            if isinstance(part, nn.Module):
                part.to(device)


@dataclass(frozen=True, slots=True)
class LossObjective(Objective):
    """Minimise ``loss(output, label)``, or ``loss(output, inputs)`` without a label."""

    loss: Loss  # gives a scalar mean over the batch, or one loss per sample

    def __call__(self, module: nn.Module, batch: Batch) -> Evaluated:
        """Return the loss; the output is let go of."""
        return self.of(call(module, batch.inputs), batch)

    def evaluate(self, module: nn.Module, batch: Batch) -> Evaluated:
        """Return loss and the module's output."""
        output = call(module, batch.inputs)
        return replace(self.of(output, batch), output=output)

    def of(self, output: Any, batch: Batch) -> Evaluated:
        """Return the loss of an output."""
        target = batch.inputs if batch.label is None else batch.label
        loss, watch = watched(self.loss, output, target)
        return Evaluated(_scalar_mean(loss, batch, "the loss"), divisor=watch.divisor_of(loss))

    def explain(self, module: nn.Module, batch: Batch, error: Exception) -> ModelError:
        """Say whether a layer or the loss failed."""
        return explain_failure(module, batch.inputs, call, error)


@dataclass(frozen=True, slots=True)
class StepObjective(Objective):
    """Minimise the result of a function of the user's."""

    # ``step(module, batch)`` gives the loss, a scalar mean or one value per sample, or a dict with
    # ``"loss"``, an ``"output"`` for metrics if there is one, and further scalars (means over the batch) to
    # report. ``"divisor"`` says what a scalar loss has been divided by, if that is not the number of rows. It
    # calls neither ``backward`` nor ``zero_grad``.
    step: Step

    def __call__(self, module: nn.Module, batch: Batch) -> Evaluated:
        """Return the step's loss and further scalars."""
        return replace(self.evaluate(module, batch), output=None)

    def evaluate(self, module: nn.Module, batch: Batch) -> Evaluated:
        """Return the loss, further scalars, and the step's ``"output"`` or ``None``."""
        result, watch = watched(self.step, module, batch)
        return read_step(result, batch, watch)

    def explain(self, module: nn.Module, batch: Batch, error: Exception) -> ModelError:
        """Say whether a layer or the step's own code failed."""
        return explain_step(module, batch, self.step, error)


def explain_step(
    module: nn.Module, batch: Batch, step: Step, error: Exception, name: str = "the step"
) -> ModelError:
    """Say whether a layer or the step's own code failed with ``error``."""
    check = f"The batch has inputs {describe(batch.inputs)} and label {describe(batch.label)}"
    return explain_failure(
        module, batch.inputs, lambda module, _: step(module, batch), error, otherwise=(name, check)
    )


def read_step(result: Any, batch: Batch, watch: DivisorWatch, name: str = "the step") -> Evaluated:
    """Return loss, extras, output and divisor from a step's result."""
    result = with_loss(result)
    if not isinstance(result, Mapping):
        return Evaluated(_scalar_mean(result, batch, name), divisor=watch.divisor_of(result))
    if "loss" not in result:
        raise ModelError(
            f"{name} returned a dict with the keys {list(result)}; it needs 'loss', the tensor to minimise",
            code="model-output",
        )
    extras = {
        key: as_scalar(value, f"{name} returned {key!r}")
        for key, value in result.items()
        if key not in ("loss", "output", "divisor")
    }
    loss = _scalar_mean(result["loss"], batch, name)
    divisor = watch.divisor_of(result["loss"])
    if "divisor" in result:
        divisor = _checked_divisor(result["divisor"], result["loss"], name)
    divisors = watch.divisors_of({key: result[key] for key in extras})
    return Evaluated(loss, extras, result.get("output"), divisor, divisors)


def _checked_divisor(value: Any, loss: Tensor, name: str) -> float:
    divisor = as_scalar(value, f"{name} returned 'divisor'")
    if loss.dim():
        raise ModelError(
            f"{name} returned one loss per row, and a 'divisor' of their mean; return only one of them: the "
            "mean of the rows, or a scalar that has been divided",
            code="model-output",
        )
    if not 0 <= divisor < math.inf:
        raise ModelError(
            f"{name} returned 'divisor' {divisor}; expected what the loss has been divided by, at least 0, "
            "such as the number of labels that count",
            code="model-output",
        )
    return divisor


def as_scalar(value: Any, what: str) -> float:
    """Return a number that is to be reported."""
    if isinstance(value, int | float | np.number | np.bool_):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value.detach())
    raise ModelError(
        f"{what}, {describe(value)}; what is reported must be a scalar: a number, or a tensor with one "
        "element (the key 'output' is for predictions)",
        code="model-output",
    )


def _scalar_mean(found: Any, batch: Batch, name: str) -> Tensor:
    if not isinstance(found, Tensor):
        raise ModelError(
            f"{name} returned a {type(found).__name__}; expected a torch.Tensor", code="model-output"
        )
    if not found.is_floating_point():
        remedy = "take its .abs() or .real" if found.is_complex() else "a count cannot be minimised"
        raise ModelError(
            f"{name} returned {describe(found)}; expected a real floating-point tensor: {remedy}",
            code="model-output",
        )
    if found.is_meta:
        raise ModelError(
            f"{name} returned a tensor on the meta device, which has no values; build what it is made of on "
            "the CPU",
            code="model-output",
        )
    # A mean over many samples needs the digits.
    value: Tensor = found.float() if found.dtype in _LOW_PRECISION else found
    if value.dim() == 0:
        if batch.weight is not None:
            remedy = "build the loss with reduction='none'" if name == "the loss" else "return those"
            raise ModelError(
                f"the Dataset has a weight column, but {name} returned a scalar: sample weights "
                f"need one loss per sample, so {remedy}",
                code="model-output",
            )
        return value
    if value.shape[0] != batch.rows:
        raise ModelError(
            f"{name} returned shape {tuple(value.shape)} for {batch.rows} rows; expected a scalar "
            f"mean or one loss per row, shape ({batch.rows},)",
            code="model-output",
        )
    per_sample = value.reshape(batch.rows, -1).mean(dim=1)
    if batch.weight is None:
        return per_sample.mean()
    # In double precision first: float32 knows neither weights of 1e-50 nor the sum of ten of 1e38.
    weight = batch.weight.double()
    return (per_sample * (weight / weight.sum()).to(per_sample.dtype)).sum()


def parts_of(objective: Objective) -> dict[str, Any]:
    """Return the loss or step of the user's, by the name of its option."""
    return {name: getattr(objective, name) for name in ("loss", "step") if hasattr(objective, name)}
