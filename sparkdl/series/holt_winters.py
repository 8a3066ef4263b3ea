"""Exponential smoothing of one series, by statsmodels: a baseline."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from sparkdl.series.scaling import scale_of
from sparkdl.wire.frame import Array


@dataclass(frozen=True, slots=True)
class HoltWinters:
    """Forecasts a series by additive trend, damped, and additive season (Winters, 1960), fitted to it alone.

    A series shorter than two seasons has no season, one of less than five values continues its last one.
    """

    season: int
    horizon: int

    def __call__(self, values: Array) -> Array:
        """Return the forecast; called in tasks."""
        from statsmodels.tsa.holtwinters import ExponentialSmoothing

        size = float(scale_of(values, "standard")[1])  # the fit's tolerances are absolute
        if len(values) < 5 or size == 0:
            return np.full(self.horizon, values[-1])
        seasonal = self.season > 1 and 2 * self.season <= len(values)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits that have not converged: their forecast counts as it is
            fitted = ExponentialSmoothing(
                values / size,
                trend="add",
                damped_trend=True,
                seasonal="add" if seasonal else None,
                seasonal_periods=self.season if seasonal else None,
                initialization_method="estimated",
            ).fit()
            found: Array = np.asarray(fitted.forecast(self.horizon)) * size
        return found if np.isfinite(found).all() else np.full(self.horizon, values[-1])


def is_installed() -> bool:
    """Return whether statsmodels is there, and can be imported."""
    try:
        import statsmodels.tsa.holtwinters  # noqa: F401
    except ImportError:  # its data may be there without what its code needs
        return False
    return True
