"""Packages of the extra ``transformers``, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sparkdl.exceptions import ConfigError


def need(package: str, what: str) -> Any:
    """Import a package of the extra; raises ConfigError naming the extra, if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs the package {package} ({error}): pip install 'sparkdl[transformers]'",
            code="config-package",
        ) from error
