"""An anomaly detector: a forecast, and the error that is still normal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, DataError
from sparkdl.nn.models.arguments import check_share, check_sizes, with_features


class AnomalyDetector(nn.Module):
    """Recurrent layers that forecast the next value; a value far from its forecast is an anomaly.

    The approach is that of Malhotra et al., "Long Short Term Memory Networks for Anomaly Detection in Time
    Series", ESANN 2015; three LSTM layers of 8, 32 and 15 units are Analytics Zoo's. Train it like any
    forecaster on series with few anomalies, then call :meth:`set_threshold` with its errors on such series.

    Args:
        features: values of each step.
        hidden: units of each LSTM layer.
        dropout: share of each layer's outputs that training sets to zero.

    Shapes:
        input: (rows, steps, features), or (rows, steps) with one feature; float, about zero mean and unit
            deviation.
        output: (rows,), the forecast of the next value.

    Parameters: 4 h (f + h + 2) for a layer with f values before it and h units, and hidden[-1] + 1; 8,684
    for one feature and the default layers.

    Attributes:
        threshold: buffer, the largest error that is no anomaly; infinite before :meth:`set_threshold`.

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if the input has another shape.
    """

    threshold: Tensor

    def __init__(self, features: int = 1, hidden: Sequence[int] = (8, 32, 15), dropout: float = 0.2) -> None:
        super().__init__()
        self.hidden = tuple(hidden)
        name = type(self).__name__
        check_sizes(name, features=features, hidden=self.hidden)
        check_share(name, dropout=dropout)
        if not self.hidden:
            raise ConfigError(f"{name}: hidden=(): expected at least one layer")
        self.features, self.dropout = features, dropout
        widths = (features, *self.hidden)
        self.layers = nn.ModuleList(nn.LSTM(a, b, batch_first=True) for a, b in pairwise(widths))
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(widths[-1], 1)
        self.register_buffer("threshold", torch.tensor(torch.inf))

    def forward(self, series: Tensor) -> Tensor:
        """Return the forecast of the value after each row's steps."""
        x = with_features(series, self.features)
        for layer in self.layers:
            x = self.drop(layer(x)[0])
        forecast: Tensor = self.head(x[:, -1])
        return forecast.squeeze(1)

    def set_threshold(self, forecast: Tensor, value: Tensor, share: float = 0.01) -> None:
        """Let this share of known values be anomalies: the ones that are farthest from their forecasts.

        Args:
            forecast: shape (rows,), output of :meth:`forward` in evaluation mode.
            value: shape (rows,), the values that came.
            share: of the rows, from 0 to below 1; 0 if there are no anomalies among them.

        Raises:
            ConfigError: if the share is something else, or there are no rows.
            DataError: if a forecast or a value is NaN or infinite.
        """
        if not 0 <= share < 1 or not len(forecast):
            raise ConfigError(
                f"share={share!r} of {len(forecast)} errors: expected a share from 0 to below 1, and errors"
            )
        errors = (forecast - value).abs()
        unusable = int((~errors.isfinite()).sum())
        if unusable:
            raise DataError(
                f"forecast - value: {unusable} of {len(errors)} errors are NaN or infinite, and no threshold "
                "would be above them; leave these rows out",
                code="data-value",
            )
        allowed = len(errors) - int(round(share * len(errors), 6))  # 0.29 of 100 are 29
        self.threshold.copy_(errors.kthvalue(allowed).values)

    def detect(self, forecast: Tensor, value: Tensor) -> Tensor:
        """Return which values are anomalies, bool, shape (rows,).

        Args:
            forecast: shape (rows,), output of :meth:`forward` in evaluation mode.
            value: shape (rows,), the values that came.

        Raises:
            DataError: if a forecast or a value is NaN.
        """
        errors = (forecast - value).abs()
        unknown = int(errors.isnan().sum())
        if unknown:
            raise DataError(
                f"forecast - value: {unknown} of {len(errors)} errors are NaN, which are neither normal nor "
                "anomalies; leave these rows out",
                code="data-value",
            )
        return errors > self.threshold
