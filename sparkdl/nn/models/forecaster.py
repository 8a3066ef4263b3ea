"""One interface to the models of series: covariates in, points or quantiles out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.models.arguments import check_sizes
from sparkdl.nn.models.nbeats import NBeats
from sparkdl.nn.models.parts import perceptron
from sparkdl.nn.models.patch_transformer import PatchTransformer
from sparkdl.nn.models.tcn import TCN

ARCHITECTURES = ("linear", "nbeats", "tcn", "patch", "naive")
LEVELS = ("last", "mean", "none", "standard")
_FUTURE_WIDTH = 64
_LEAST = 1e-5  # deviation of a window, on the scale of its series, below which it counts as constant


class Forecaster(nn.Module):
    """Forecasts a series with its covariates, by a linear map, N-BEATS, a TCN or a patch transformer.

    The core sees the past of target and covariates: the linear map and N-BEATS all values of a row one after
    the other, the others as values of each step. What is known of the future, and static values, pass a small
    perceptron whose output is added to the core's. Quantiles are sorted, so they never cross.

    Args:
        steps: steps of the past.
        horizon: steps to forecast.
        architecture: ``"linear"`` (each step of the horizon from all values of the past: Zeng et al., "Are
            Transformers Effective for Time Series Forecasting?", 2023), ``"nbeats"`` (:class:`NBeats`),
            ``"tcn"`` (:class:`TCN`), ``"patch"`` (:class:`PatchTransformer`), or ``"naive"``: the value of a
            ``season`` ago, without parameters.
        quantiles: levels of the quantiles to forecast, ascending; none for one value per step.
        past: covariates that are known up to the present.
        known: covariates whose future is known.
        static: numbers of a series.
        level: what is subtracted from the target's past and added to the forecast: the ``"last"`` value, the
            ``"mean"`` of the past, or ``"none"``. ``"standard"`` is the mean, and also divides by the past's
            deviation and multiplies the forecast by it, as in reversible instance
            normalisation (Kim et al., 2022).
        **core: arguments of the core, such as ``width`` or ``channels``; ``season`` of ``"naive"``.

    Shapes:
        target: (rows, steps); float.
        past: (rows, steps, past).
        known: (rows, steps + horizon, known).
        static: (rows, static).
        output: (rows, horizon), or (rows, horizon, quantiles).

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if an input is missing or has another shape.
    """

    def __init__(
        self,
        steps: int,
        horizon: int,
        architecture: str = "nbeats",
        quantiles: Sequence[float] = (),
        past: int = 0,
        known: int = 0,
        static: int = 0,
        level: str = "standard",
        **core: Any,
    ) -> None:
        super().__init__()
        check_sizes("Forecaster", steps=steps, horizon=horizon)
        check_sizes("Forecaster", least=0, past=past, known=known, static=static)
        for name, value, known_values in (
            ("architecture", architecture, ARCHITECTURES),
            ("level", level, LEVELS),
        ):
            if value not in known_values:
                raise ConfigError(f"Forecaster: {name}={value!r}: expected one of {', '.join(known_values)}")
        check_quantiles(quantiles)
        self.steps, self.horizon, self.architecture = steps, horizon, architecture
        self.quantiles, self.level = tuple(quantiles), level
        self.past, self.known, self.static = past, known, static
        self.core_arguments = dict(core)
        targets = max(1, len(quantiles))
        features = 1 + past + known
        given = {"architecture": architecture, **core}
        try:
            if architecture == "linear":
                self.core: nn.Module = _Linear(steps, features, horizon * targets, **core)
            elif architecture == "nbeats":
                core = {"blocks": 4, "width": 128, **core}
                self.core = NBeats(steps * features, horizon * targets, **core)
            elif architecture == "tcn":
                core = {"channels": _channels(steps, core.get("kernel", 3)), "kernel": 3, **core}
                self.core = TCN(features, horizon, targets, **core)
            elif architecture == "patch":
                core = {"patch": max(1, min(16, steps // 2)), **core}
                self.core = PatchTransformer(steps, horizon, features, targets, **core)
            else:
                self.core = _Naive(steps, horizon, **core)
        except TypeError as error:
            raise ConfigError(f"Forecaster: {given!r:.200}: {error}") from error
        extra = known * horizon + static
        self.future: nn.Module | None = None
        if extra and architecture != "naive":
            self.future = nn.Sequential(
                perceptron([extra, _FUTURE_WIDTH]), nn.Linear(_FUTURE_WIDTH, horizon * targets)
            )

    def forward(
        self,
        target: Tensor,
        past: Tensor | None = None,
        known: Tensor | None = None,
        static: Tensor | None = None,
    ) -> Tensor:
        """Return the forecast of each row."""
        rows = len(target)
        self._check("target", target, rows, (self.steps,))
        self._check("past", past, rows, (self.steps, self.past) if self.past else None)
        self._check("known", known, rows, (self.steps + self.horizon, self.known) if self.known else None)
        self._check("static", static, rows, (self.static,) if self.static else None)
        level, size = self._level(target), self._size(target)
        x = ((target - level) / size).unsqueeze(2)
        future = []
        if past is not None:
            x = torch.cat([x, past], 2)
        if known is not None:
            x = torch.cat([x, known[:, : self.steps]], 2)
            future.append(known[:, self.steps :].flatten(1))
        if static is not None:
            future.append(static)
        forecast: Tensor = self.core(x.flatten(1) if self.architecture in ("linear", "nbeats") else x)
        forecast = forecast.reshape(rows, self.horizon, -1)
        if self.future is not None:
            forecast = forecast + self.future(torch.cat(future, 1)).view_as(forecast)
        forecast = forecast * size.unsqueeze(2) + level.unsqueeze(2)
        if not self.quantiles:
            return forecast.squeeze(2)
        if self.architecture == "naive":
            return forecast.expand(-1, -1, len(self.quantiles))
        return forecast.sort(2).values

    def _level(self, target: Tensor) -> Tensor:
        if self.level == "none" or self.architecture == "naive":
            return torch.zeros_like(target[:, -1:])
        return target[:, -1:] if self.level == "last" else target.mean(1, keepdim=True)

    def _size(self, target: Tensor) -> Tensor:
        if self.level != "standard" or self.architecture == "naive":
            return torch.ones_like(target[:, -1:])
        square = target.var(1, correction=0, keepdim=True)
        return torch.where(square > _LEAST**2, square, 1.0).sqrt()

    def _check(self, name: str, values: Tensor | None, rows: int, shape: tuple[int, ...] | None) -> None:
        expected = None if shape is None else (rows, *shape)
        found = None if values is None else tuple(values.shape)
        if found != expected:
            raise ModelError(f"{name} has shape {found}; expected {expected}", code="model-input")


class _Linear(nn.Linear):
    """Each output from all values of a row; it begins halfway between the level and the last value."""

    def __init__(self, steps: int, features: int, outputs: int) -> None:
        super().__init__(steps * features, outputs)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.constant_(self.weight[:, (steps - 1) * features], 0.5)


class _Naive(nn.Module):
    """The value of a season ago."""

    def __init__(self, steps: int, horizon: int, season: int = 1) -> None:
        super().__init__()
        if not 1 <= season <= steps:
            raise ConfigError(f"season={season!r}: expected a number from 1 to steps={steps}")
        self.season, self.horizon = season, horizon

    def forward(self, series: Tensor) -> Tensor:
        last = series[:, -self.season :, 0]
        return last.repeat(1, -(-self.horizon // self.season))[:, : self.horizon]


class Pinball(nn.Module):
    """Mean pinball loss of quantiles; one value per row, so that sample weights work with it.

    Koenker and Bassett, "Regression Quantiles", 1978. Half the absolute error is the loss of the median.

    Args:
        quantiles: their levels.

    Shapes:
        output: (rows, horizon, quantiles).
        label: (rows, horizon).

    Raises:
        ConfigError: if a level is not between 0 and 1.
    """

    levels: Tensor

    def __init__(self, quantiles: Sequence[float]) -> None:
        super().__init__()
        check_quantiles(quantiles, least=1)
        self.quantiles = tuple(quantiles)
        self.register_buffer("levels", torch.tensor(self.quantiles), persistent=False)

    def forward(self, output: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row."""
        error = label.unsqueeze(2) - output
        return torch.maximum(self.levels * error, (self.levels - 1) * error).flatten(1).mean(1)


def absolute_error(output: Tensor, label: Tensor) -> Tensor:
    """Return the mean absolute error of each row."""
    return (output - label).abs().flatten(1).mean(1)


def check_quantiles(quantiles: Sequence[float], least: int = 0) -> None:
    """Check the levels of quantiles."""
    ordered = sorted(set(quantiles)) == list(quantiles)
    if len(quantiles) < least or not ordered or not all(0 < level < 1 for level in quantiles):
        raise ConfigError(f"quantiles={list(quantiles)}: expected ascending numbers between 0 and 1")


def _channels(steps: int, kernel: int) -> tuple[int, ...]:
    """Return as many levels as it takes to see all steps."""
    levels = 1
    while 1 + 2 * (kernel - 1) * ((1 << levels) - 1) < steps and levels < 10:
        levels += 1
    return (32,) * levels
