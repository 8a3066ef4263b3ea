"""Command-line arguments that several commands take."""

from __future__ import annotations

import argparse


def key_value(text: str) -> tuple[str, str]:
    """Return what ``KEY=VALUE`` says; for argparse."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE")
    return name, value
