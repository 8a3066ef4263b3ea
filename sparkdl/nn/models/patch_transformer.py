"""A transformer over patches of a series."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.arguments import check_share, check_sizes, with_features


class PatchTransformer(nn.Module):
    """Forecasts a series from its patches: short stretches of steps, each a token of an encoder.

    Nie et al., "A Time Series is Worth 64 Words: Long-term Forecasting with Transformers", ICLR 2023,
    section 3.1: patches that overlap by half, a linear layer and learned positions, an encoder with batch
    normalisation, and a linear head over all tokens. The last value is repeated once more for the last patch.
    With one feature this is PatchTST without its instance normalisation; more features, such as covariates,
    are values of the same patch, where the paper forecasts each channel by itself.

    Args:
        steps: steps of the past.
        horizon: steps to forecast.
        features: values of each step.
        targets: values of each step to forecast.
        patch: steps of a patch; 16 in the paper.
        width: size of a token; ``heads`` divides it; 16 in the paper for small data sets, 128 for large ones.
        heads: attention heads.
        layers: encoder layers; 3 in the paper.
        feed_forward: size of a layer's hidden values.
        dropout: share of the values that training sets to zero.

    Shapes:
        input: (rows, steps, features), or (rows, steps) with one feature; float, about zero mean and unit
            deviation.
        output: (rows, horizon, targets), or (rows, horizon) with one target.

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if the input has another shape.
    """

    def __init__(
        self,
        steps: int,
        horizon: int,
        features: int = 1,
        targets: int = 1,
        patch: int = 16,
        width: int = 64,
        heads: int = 4,
        layers: int = 3,
        feed_forward: int = 128,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, steps=steps, horizon=horizon, features=features, targets=targets, heads=heads)
        check_sizes(name, patch=patch, width=width, layers=layers, feed_forward=feed_forward)
        check_share(name, dropout=dropout)
        if width % heads:
            raise ConfigError(f"{name}: width={width}, heads={heads}: expected heads that divide the width")
        if patch > steps:
            raise ConfigError(f"{name}: patch={patch}: expected at most steps={steps}")
        self.steps, self.horizon, self.features, self.targets = steps, horizon, features, targets
        self.patch, self.width, self.heads, self.layers = patch, width, heads, layers
        self.feed_forward, self.dropout = feed_forward, dropout
        self.stride = max(1, patch // 2)
        self.tokens = (steps - patch) // self.stride + 2
        self.embed = nn.Linear(patch * features, width)
        self.positions = nn.Parameter(0.02 * torch.randn(self.tokens, width))
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(_Layer(width, heads, feed_forward, dropout) for _ in range(layers))
        self.head = nn.Linear(self.tokens * width, horizon * targets)

    def forward(self, series: Tensor) -> Tensor:
        """Return the forecast of each row."""
        x = with_features(series, self.features, self.steps)
        x = torch.cat([x, x[:, -1:].expand(-1, self.stride, -1)], 1)
        patches = x.unfold(1, self.patch, self.stride).flatten(2)
        tokens = self.drop(self.embed(patches) + self.positions)
        for layer in self.encoder:
            tokens = layer(tokens)
        forecast: Tensor = self.head(tokens.flatten(1))
        return forecast if self.targets == 1 else forecast.reshape(-1, self.horizon, self.targets)


class _Layer(nn.Module):
    """Self-attention and a feed-forward network, each followed by batch normalisation over all tokens."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.feed = nn.Sequential(
            nn.Linear(width, feed_forward), nn.GELU(), nn.Dropout(dropout), nn.Linear(feed_forward, width)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(2))
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        attended, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        x = self._norm(0, tokens + self.drop(attended))
        return self._norm(1, x + self.drop(self.feed(x)))

    def _norm(self, number: int, x: Tensor) -> Tensor:
        found: Tensor = self.norms[number](x.flatten(0, 1)).view_as(x)
        return found
