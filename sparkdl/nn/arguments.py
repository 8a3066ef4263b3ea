"""Checks that the constructors of models share."""

from __future__ import annotations

from sparkdl.exceptions import ConfigError


def check_share(model: str, **shares: float) -> None:
    """Check shares, such as that of the values which dropout sets to zero.

    Raises:
        ConfigError: naming the first one that is not a number from 0 to below 1.
    """
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ConfigError(f"{model}: {name}={share!r}: expected a number from 0 to below 1")


def check_choice(model: str, name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Check that an argument is one of few.

    Raises:
        ConfigError: naming those that are allowed.
    """
    if value not in allowed:
        raise ConfigError(f"{model}: {name}={value!r}: expected one of {', '.join(map(repr, allowed))}")
