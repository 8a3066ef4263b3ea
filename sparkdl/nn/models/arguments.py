"""Checks of arguments and inputs that models share."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from torch import Tensor

from sparkdl.exceptions import ConfigError, ModelError


def check_sizes(owner: str, least: int = 1, **sizes: int | Sequence[int]) -> None:
    """Check that sizes, or all elements of a sequence of them, are integers from ``least``."""
    for name, value in sizes.items():
        found = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(size, bool) or not isinstance(size, Integral) or size < least for size in found):
            expected = (
                f"integers of at least {least}" if found is value else f"an integer of at least {least}"
            )
            raise ConfigError(f"{owner}: {name}={value!r}: expected {expected}")


def check_share(model: str, **shares: float) -> None:
    """Check shares, such as that of the values which dropout sets to zero."""
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ConfigError(f"{model}: {name}={share!r}: expected a number from 0 to below 1")


def check_choice(model: str, name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Check that an argument is one of few."""
    if value not in allowed:
        raise ConfigError(f"{model}: {name}={value!r}: expected one of {', '.join(map(repr, allowed))}")


def with_features(series: Tensor, features: int, steps: int | None = None) -> Tensor:
    """Return series as (rows, steps, features); one feature need not have a dimension."""
    x = series.unsqueeze(2) if series.dim() == 2 else series
    if x.dim() != 3 or x.shape[2] != features or (steps is not None and x.shape[1] != steps):
        length = "steps" if steps is None else steps
        raise ModelError(
            f"the series has shape {tuple(series.shape)}; expected (rows, {length}, {features})"
            + (f" or (rows, {length})" if features == 1 else ""),
            code="model-input",
        )
    return x
