"""Temporal convolutional networks for series."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkdl.nn.models.arguments import check_share, check_sizes, with_features


class TCN(nn.Module):
    """Dilated causal convolutions over a series, and a linear layer on the last step.

    Bai, Kolter and Koltun, "An Empirical Evaluation of Generic Convolutional and Recurrent Networks for
    Sequence Modeling", 2018, section 3. Each level is a residual block of two convolutions with weight
    normalisation; level i looks at every 2^i-th step. The last step sees :attr:`receptive_field` steps, so
    the series should have about that many.

    Args:
        features: values of each step.
        horizon: steps to forecast; the number of classes for a classifier of series.
        targets: values of each step to forecast.
        channels: channels of each level; eight times 25 for the paper's sequential MNIST, which makes
            about 70,000 parameters with ten outputs.
        kernel: steps that a convolution looks at; 7 for sequential MNIST.
        dropout: share of the channels that training sets to zero after each convolution, in all steps at
            once.

    Shapes:
        input: (rows, steps, features), or (rows, steps) with one feature; float.
        output: (rows, horizon, targets), or (rows, horizon) with one target.

    Parameters of a level with a channels before and c after it: c (k a + 2) + c (k c + 2), and c (a + 1)
    if a and c differ; those of the head: (channels[-1] + 1) * horizon * targets.

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if the input has another shape.
    """

    def __init__(
        self,
        features: int = 1,
        horizon: int = 1,
        targets: int = 1,
        channels: Sequence[int] = (25,) * 8,
        kernel: int = 7,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.channels = tuple(channels)
        name = type(self).__name__
        check_sizes(name, features=features, horizon=horizon, targets=targets, channels=self.channels)
        check_sizes(name, least=2, kernel=kernel)
        check_share(name, dropout=dropout)
        self.features, self.horizon, self.targets = features, horizon, targets
        self.kernel, self.dropout = kernel, dropout
        before = (features, *self.channels)
        self.levels = nn.Sequential(
            *(
                _TemporalBlock(before[i], width, kernel, 2**i, dropout)
                for i, width in enumerate(self.channels)
            )
        )
        self.head = nn.Linear(before[-1], horizon * targets)

    @property
    def receptive_field(self) -> int:
        """How many of the newest steps the output depends on."""
        return 1 + 2 * (self.kernel - 1) * ((1 << len(self.channels)) - 1)

    def forward(self, series: Tensor) -> Tensor:
        """Return the forecast of each row."""
        x = with_features(series, self.features)
        last = self.levels(x.transpose(1, 2))[:, :, -1]
        forecast: Tensor = self.head(last)
        return forecast if self.targets == 1 else forecast.reshape(-1, self.horizon, self.targets)


class _TemporalBlock(nn.Module):
    """Two convolutions around a shortcut, which is a convolution over one step if the width changes."""

    def __init__(self, before: int, after: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.first = _CausalConv(before, after, kernel, dilation)
        self.second = _CausalConv(after, after, kernel, dilation)
        self.drop = nn.Dropout1d(dropout)
        self.shortcut = nn.Conv1d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(torch.relu(self.first(x)))
        y = self.drop(torch.relu(self.second(y)))
        return torch.relu(y + self.shortcut(x))


class _CausalConv(nn.Module):
    """A convolution with weight normalisation that looks back only.

    Salimans and Kingma, "Weight Normalization", 2016. torch's own changes the layer's class, so that the
    module could not be pickled for the executors.
    """

    def __init__(self, before: int, after: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.padding = (kernel - 1) * dilation
        self.direction = nn.Parameter(0.01 * torch.randn(after, before, kernel))
        self.length = nn.Parameter(_lengths(self.direction.detach()))
        self.bias = nn.Parameter(torch.zeros(after))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.direction * (self.length / _lengths(self.direction))
        return F.conv1d(F.pad(x, (self.padding, 0)), weight, self.bias, dilation=self.dilation)


def _lengths(weight: Tensor) -> Tensor:
    """Return the norm of each output channel's weights, shape (channels, 1, 1)."""
    norm: Tensor = torch.linalg.vector_norm(weight, dim=(1, 2), keepdim=True)
    return norm
