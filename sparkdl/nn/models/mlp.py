"""A multilayer perceptron that scales its inputs and outputs itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.arguments import check_share
from sparkdl.nn.models.parts import perceptron

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
"""Activations by name."""


def check_layers(owner: str, activation: str, dropout: float, limit: float | None) -> None:
    """Check options of fully connected layers."""
    if activation not in ACTIVATIONS:
        raise ConfigError(f"{owner}: activation={activation!r}: expected one of {', '.join(ACTIVATIONS)}")
    check_share(owner, dropout=dropout)
    if limit is not None and not limit > 0:
        raise ConfigError(f"{owner}: limit={limit!r}: expected a number above 0")


class ScaledOutputs(nn.Module):
    """A module that scales its outputs, from what :meth:`scale_outputs` tells of the labels."""

    output_mean: Tensor
    output_scale: Tensor

    def _begin_unscaled(self, outputs: int) -> None:
        self.register_buffer("output_mean", torch.zeros(outputs))
        self.register_buffer("output_scale", torch.ones(outputs))

    def scale_outputs(self, mean: Tensor, deviation: Tensor) -> None:
        """Give values of about this mean and standard deviation from the start."""
        self.output_mean.copy_(mean)
        self.output_scale.copy_(not_zero(deviation))

    def _scaled(self, outputs: Tensor) -> Tensor:
        return outputs * self.output_scale + self.output_mean


class MLP(ScaledOutputs):
    """Fully connected layers between a scaling of the inputs and one of the outputs.

    Args:
        inputs: number of features, all inputs together.
        outputs: number of values to give.
        hidden: sizes of the hidden layers; may be empty.
        activation: after each hidden layer: ``"relu"``, ``"gelu"``, ``"silu"``, ``"tanh"`` or ``"sigmoid"``.
        dropout: share of each hidden layer's values that training sets to zero.
        limit: scaled inputs further from 0 are set to it: a feature that is nearly always the same has rare
            values thousands of deviations away, which would drown all others.

    Shapes:
        input: one or more tensors (rows, ...) of any number type with ``inputs`` values per row together.
        output: (rows, outputs).

    Attributes:
        input_mean: what is taken off each feature; zeros unless set by :meth:`scale_inputs`.
        input_scale: what each is divided by afterwards; ones.
        output_mean: what is added to each output, after
        output_scale: what it is multiplied by; zeros and ones unless set by :meth:`scale_outputs`.

    Raises:
        ConfigError: if an argument cannot work.
    """

    input_mean: Tensor
    input_scale: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int] = (64, 64),
        activation: str = "relu",
        dropout: float = 0.0,
        limit: float | None = None,
    ) -> None:
        super().__init__()
        sizes = [inputs, *hidden, outputs]
        if any(not isinstance(size, int) or size < 1 for size in sizes):
            raise ConfigError(f"MLP: found layers of {sizes} values; expected positive integers")
        check_layers("MLP", activation, dropout, limit)
        self.limit = limit
        self.register_buffer("input_mean", torch.zeros(inputs))
        self.register_buffer("input_scale", torch.ones(inputs))
        self._begin_unscaled(outputs)
        layers = perceptron(sizes[:-1], dropout, ACTIVATIONS[activation])
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-2], outputs))

    def scale_inputs(self, mean: Tensor, deviation: Tensor) -> None:
        """Bring features of this mean and standard deviation to 0 and 1; constant ones to 0."""
        self.input_mean.copy_(mean)
        self.input_scale.copy_(not_zero(deviation))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the outputs of each row."""
        x = torch.cat([tensor.reshape(tensor.shape[0], -1).to(self.input_mean.dtype) for tensor in inputs], 1)
        x = (x - self.input_mean) / self.input_scale
        y: Tensor = self.layers(x if self.limit is None else x.clamp(-self.limit, self.limit))
        return self._scaled(y)


def not_zero(deviation: Tensor) -> Tensor:
    """Return deviations to divide by: 1 for those of constant values."""
    return torch.where((deviation > 0) & deviation.isfinite(), deviation, torch.ones_like(deviation))
