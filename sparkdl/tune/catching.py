"""Exceptions of trials over which a search goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkdl.exceptions import ConfigError

Catch = type[Exception] | Sequence[type[Exception]]
"""A class of exceptions, or several."""


def classes_of(catch: Any) -> tuple[type[Exception], ...]:
    """Return the classes of ``catch``.

    Raises:
        ConfigError: if one is no class of exceptions.
    """
    found = tuple(catch) if isinstance(catch, Sequence) and not isinstance(catch, str) else (catch,)
    for each in found:
        if not isinstance(each, type) or not issubclass(each, Exception):
            raise ConfigError(
                f"catch={each!r:.100}: expected classes of exceptions such as (ValueError, ModelError)"
            )
    return found
