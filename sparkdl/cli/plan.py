"""``sparkdl plan script.py``: what a training would take on larger clusters, from a rehearsal."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sparkdl.cli import rehearse
from sparkdl.cli.document import write

_EXAMPLES = """\
examples:
  sparkdl plan train.py
  sparkdl plan --rows 1000000 --executors 2..64 --price 0.05 train.py
  sparkdl plan --master 'local[2]' --executors 1,2,4 --job job-resources.toml train.py
  sparkdl plan --rows 1000000 --json train.py

Runs the script as far as its first fit, which trains for some seconds on a sample instead, and then ends the
script. Rehearse with two executors or more where you can: with one, the network is assumed.
"""
_MOST = 10_000


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "plan",
        help="forecast time, memory and cost of a script by number of executors",
        description="Forecast time, memory and cost of a training script, and what to ask of a cluster.",
        usage="sparkdl plan [options] script.py [arguments]",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=count, metavar="N", help="rows of an epoch (those of the script)")
    parser.add_argument(
        "--executors",
        type=numbers,
        default=numbers("1..64"),
        metavar="N..M",
        help="numbers to forecast for: 2..64, or 1,2,4 (1..64)",
    )
    parser.add_argument("--price", type=price, default=0.0, metavar="P", help="of a core hour")
    parser.add_argument(
        "--gigabits",
        type=rehearse.positive,
        default=10.0,
        metavar="G",
        help="per second, of a machine's network, where none is measured (10)",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--job",
        type=Path,
        metavar="FILE",
        help="write the table [resources] of a job file for the best number",
    )
    rehearse.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Rehearse, and print the plan."""
    status, found = rehearse.answer_of(
        args, kind="plan", rows=args.rows, executors=args.executors, price=args.price, gigabits=args.gigabits
    )
    if status:
        return status
    print(json.dumps(found["plan"]) if args.json else found["text"])
    if args.job is not None:
        write("--job", args.job, found["job"])
        print(f"wrote {args.job}", file=sys.stderr)
    return 0


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers that ``2..64`` or ``1,2,4`` says; for argparse."""
    first, dots, last = text.partition("..")
    try:
        found = (
            range(int(first), min(int(last), int(first) + _MOST) + 1)
            if dots
            else sorted({int(part) for part in text.split(",")})
        )
    except ValueError:
        found = range(0)
    if not found or found[0] < 1 or len(found) > _MOST:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers such as 2..64 or 1,2,4")
    return tuple(found)


def count(text: str) -> int:
    """Return a whole number of at least 1; for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)


def price(text: str) -> float:
    """Return a number of at least 0; for argparse."""
    return 0.0 if text in ("0", "0.0") else rehearse.positive(text)
