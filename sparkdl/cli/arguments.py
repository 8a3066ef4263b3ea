"""Parts that several commands share: arguments of the command line, the error of one that cannot work."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from sparkdl import redaction
from sparkdl.exceptions import ConfigError


def add_conf(parser: argparse.ArgumentParser, help: str = "a Spark conf", **options: Any) -> None:
    """Add the option ``--conf``, a list of pairs."""
    options |= {"action": "append", "default": [], "type": key_value, "metavar": "KEY=VALUE"}
    parser.add_argument("--conf", help=help, **options)


def key_value(text: str) -> tuple[str, str]:
    """Return what ``KEY=VALUE`` says; for argparse."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE")
    return name, value


def command_error(message: str) -> ConfigError:
    """Return the error of a command that cannot work."""
    return ConfigError(message, code="config-command")


def say(text: str) -> None:
    """Print a remark, without secrets, to stderr: stdout is the command's."""
    print(redaction.text(f"sparkdl: {text}"), file=sys.stderr, flush=True)
