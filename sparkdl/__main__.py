"""The command line: ``python -m sparkdl COMMAND``, also installed as ``sparkdl``.

A command is a module with ``register(subparsers)``, which adds its parser and sets ``run`` to a
function from the parsed arguments to the exit code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sparkdl import __version__
from sparkdl.cli import checkpoints, init, notebook, plan, profile, serve
from sparkdl.cli.doctor import command as doctor
from sparkdl.cli.runs import command as runs
from sparkdl.cli.submit import command as submit
from sparkdl.exceptions import SparkdlError

_INTERRUPTED = 130  # as shells say that SIGINT has ended a command
_COMMANDS = (init, submit, plan, profile, notebook, serve, runs, doctor, checkpoints)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="sparkdl",
        description="Deep learning on plain Apache Spark.",
        epilog="sparkdl COMMAND --help shows the options of a command, and examples.",
    )
    parser.add_argument("--version", action="version", version=f"sparkdl {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.register(subparsers)
    args = parser.parse_args(argv)
    try:
        code: int = args.run(args)
    except SparkdlError as error:
        print(f"sparkdl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("sparkdl: stopped by Ctrl-C", file=sys.stderr)
        return _INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
