"""Checks of options that hooks and rules share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkdl.exceptions import ConfigError
from sparkdl.train.options.triggers import Trigger


def integer_option(owner: str, name: str, value: object, least: int) -> int:
    """Return an option that is an integer of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{owner}({name}={value!r:.100}): expected an integer of at least {least}")
    return value


def trigger_option(owner: str, value: object) -> Trigger:
    """Return the option ``every``."""
    if not isinstance(value, Trigger):
        raise ConfigError(f"{owner}(every={value!r}): expected a trigger such as EveryEpoch()")
    return value


def sequence_option(name: str, value: object, expected: str) -> Sequence[Any]:
    """Return an option that is a list."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{name}={value!r:.100}: expected a list of {expected}")
    return value
