"""N-BEATS: forecasts as sums of basis functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.models.arguments import check_sizes
from sparkdl.nn.models.parts import perceptron

_LAYERS = 4  # fully connected layers of a block, in all configurations of the paper


class NBeats(nn.Module):
    """The generic N-BEATS: blocks that each explain a part of the past and add to the forecast.

    Oreshkin et al., "N-BEATS: Neural basis expansion analysis for interpretable time series
    forecasting", ICLR 2020, section 3. A block sees what the blocks before it left unexplained. The
    generic basis is linear; it and the layer that gives its coefficients are one layer, as in the
    authors' code.

    Args:
        steps: steps of the past; two to seven times the horizon in the paper.
        horizon: steps to forecast.
        blocks: number of blocks; 30 in the paper.
        width: width of each block's four layers; 512 in the paper.

    Shapes:
        input: (rows, steps), float. The level is not taken off: divide each row by its own scale, or
            train on series of one scale.
        output: (rows, horizon).

    Parameters, with S = ``steps``, H = ``horizon``, W = ``width``:
    blocks * (W (S + 1) + 3 W (W + 1) + (W + 1) (S + H)).

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if the input has another shape.
    """

    def __init__(self, steps: int, horizon: int, blocks: int = 30, width: int = 512) -> None:
        super().__init__()
        check_sizes(type(self).__name__, steps=steps, horizon=horizon, blocks=blocks, width=width)
        self.steps, self.horizon, self.width = steps, horizon, width
        self.blocks = blocks
        self.stack = nn.ModuleList(
            _NBeatsBlock(steps, horizon, width, steps + horizon) for _ in range(blocks)
        )

    def forward(self, series: Tensor) -> Tensor:
        """Return the forecast of each row."""
        _check_shape(series, self.steps)
        rest, forecast = series, series.new_zeros(len(series), self.horizon)
        for block in self.stack:
            past, future = block(rest)
            rest, forecast = rest - past, forecast + future
        return forecast


class InterpretableNBeats(nn.Module):
    """N-BEATS whose forecast is the sum of a trend and a seasonality.

    Oreshkin et al. 2020, section 3.3: a stack of blocks gives polynomials of low degree, the next one
    Fourier series. The blocks of a stack share their weights. The harmonics are those of the horizon, so
    it should be at least one season long.

    Args:
        steps: steps of the past.
        horizon: steps to forecast.
        degree: of the trend's polynomials; 2 in the paper.
        harmonics: periods per horizon of the fastest wave; by default, and at most, one less than half of
            the horizon.
        blocks: blocks of each stack; 3 in the paper.
        trend_width: width of the trend blocks' layers; 256 in the paper.
        seasonality_width: width of the seasonality blocks' layers; 2048 in the paper.

    Shapes: as in :class:`NBeats`.

    Parameters, with S = ``steps`` and W = ``trend_width``: W (S + 1) + 3 W (W + 1) + 2 (W + 1) (degree + 1),
    and the same for the seasonality's width with 2 * harmonics + 1 instead of degree + 1.

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if the input has another shape.
    """

    def __init__(
        self,
        steps: int,
        horizon: int,
        degree: int = 2,
        harmonics: int | None = None,
        blocks: int = 3,
        trend_width: int = 256,
        seasonality_width: int = 2048,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, steps=steps, blocks=blocks)
        check_sizes(name, trend_width=trend_width, seasonality_width=seasonality_width)
        check_sizes(name, least=4, horizon=horizon)
        check_sizes(name, least=0, degree=degree)
        most = horizon // 2 - 1
        if harmonics is not None and not 1 <= harmonics <= most:
            raise ConfigError(
                f"{name}: harmonics={harmonics!r}: expected a number from 1 to {most} for horizon={horizon}"
            )
        self.steps, self.horizon, self.degree, self.harmonics = steps, horizon, degree, harmonics
        self.blocks, self.trend_width, self.seasonality_width = blocks, trend_width, seasonality_width
        self.trend = _NBeatsBlock.with_basis(_polynomials(steps, horizon, degree), steps, trend_width)
        waves = _waves(steps, horizon, harmonics or most)
        self.seasonality = _NBeatsBlock.with_basis(waves, steps, seasonality_width)

    def forward(self, series: Tensor) -> Tensor:
        """Return the forecast of each row."""
        return self.components(series).sum(1)

    def components(self, series: Tensor) -> Tensor:
        """Return trend and seasonality of the forecast, shape (rows, 2, horizon)."""
        _check_shape(series, self.steps)
        rest, forecasts = series, []
        for block in (self.trend, self.seasonality):
            forecast = series.new_zeros(len(series), self.horizon)
            for _ in range(self.blocks):
                past, future = block(rest)
                rest, forecast = rest - past, forecast + future
            forecasts.append(forecast)
        return torch.stack(forecasts, 1)


class _NBeatsBlock(nn.Module):
    """Four layers, coefficients of past and future together, and the basis that turns them into both.

    The basis has shapes (coefficients of each, steps) and (.., horizon); without it the coefficients are the
    values.
    """

    past: Tensor | None
    future: Tensor | None

    def __init__(
        self,
        steps: int,
        horizon: int,
        width: int,
        coefficients: int,
        basis: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.parts = [steps, horizon] if basis is None else [coefficients // 2, coefficients // 2]
        self.layers = perceptron([steps, *[width] * _LAYERS])
        self.coefficients = nn.Linear(width, coefficients)
        past, future = basis or (None, None)
        self.register_buffer("past", past, persistent=False)
        self.register_buffer("future", future, persistent=False)

    @classmethod
    def with_basis(cls, basis: tuple[Tensor, Tensor], steps: int, width: int) -> _NBeatsBlock:
        past, future = basis
        return cls(steps, future.shape[1], width, 2 * len(past), basis)

    def forward(self, series: Tensor) -> tuple[Tensor, Tensor]:
        past, future = self.coefficients(self.layers(series)).split(self.parts, 1)
        if self.past is None or self.future is None:
            return past, future
        return past @ self.past, future @ self.future


def _polynomials(steps: int, horizon: int, degree: int) -> tuple[Tensor, Tensor]:
    """Return powers of the time, which runs from 0 to below 1 in the past, and again in the future."""
    powers = torch.arange(degree + 1).unsqueeze(1)
    return (torch.arange(steps) / steps) ** powers, (torch.arange(horizon) / horizon) ** powers


def _waves(steps: int, horizon: int, harmonics: int) -> tuple[Tensor, Tensor]:
    """Return a constant, cosines and sines with up to ``harmonics`` periods per horizon."""

    def at(time: Tensor) -> Tensor:
        angles = 2 * math.pi * torch.arange(harmonics + 1).unsqueeze(1) * time / horizon
        return torch.cat([angles.cos(), angles[1:].sin()])

    return at(torch.arange(-steps, 0)), at(torch.arange(horizon))


def _check_shape(series: Tensor, steps: int) -> None:
    if series.dim() != 2 or series.shape[1] != steps:
        raise ModelError(
            f"the series has shape {tuple(series.shape)}; expected (rows, {steps})", code="model-input"
        )
