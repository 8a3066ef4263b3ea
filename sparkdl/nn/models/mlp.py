"""A multilayer perceptron that scales its inputs and outputs itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
"""Activations by name."""


class MLP(nn.Module):
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
    output_mean: Tensor
    output_scale: Tensor

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
        if activation not in ACTIVATIONS:
            raise ConfigError(f"MLP: activation={activation!r}: expected one of {', '.join(ACTIVATIONS)}")
        if not 0 <= dropout < 1:
            raise ConfigError(f"MLP: dropout={dropout!r}: expected a number from 0 to below 1")
        if limit is not None and not limit > 0:
            raise ConfigError(f"MLP: limit={limit!r}: expected a number above 0")
        self.limit = limit
        for name, size in (("input", inputs), ("output", outputs)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes[:-1]):
            layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
            layers += [nn.Dropout(dropout)] if dropout else []
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-2], outputs))

    def scale_inputs(self, mean: Tensor, deviation: Tensor) -> None:
        """Bring features of this mean and standard deviation to 0 and 1; constant ones to 0."""
        self.input_mean.copy_(mean)
        self.input_scale.copy_(not_zero(deviation))

    def scale_outputs(self, mean: Tensor, deviation: Tensor) -> None:
        """Give values of about this mean and standard deviation from the start."""
        self.output_mean.copy_(mean)
        self.output_scale.copy_(not_zero(deviation))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the outputs of each row."""
        x = torch.cat([tensor.reshape(tensor.shape[0], -1).to(self.input_mean.dtype) for tensor in inputs], 1)
        x = (x - self.input_mean) / self.input_scale
        y: Tensor = self.layers(x if self.limit is None else x.clamp(-self.limit, self.limit))
        return y * self.output_scale + self.output_mean


def not_zero(deviation: Tensor) -> Tensor:
    """Return deviations to divide by: 1 for those of constant values."""
    return torch.where((deviation > 0) & deviation.isfinite(), deviation, torch.ones_like(deviation))
