"""Parts that several commands share: arguments of the command line, the error of one that cannot work."""

from __future__ import annotations

import argparse

from sparkdl.exceptions import ConfigError


def key_value(text: str) -> tuple[str, str]:
    """Return what ``KEY=VALUE`` says; for argparse."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE")
    return name, value


def command_error(message: str) -> ConfigError:
    """Return the error of a command that cannot work."""
    return ConfigError(message, code="config-command")
