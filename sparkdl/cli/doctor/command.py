"""The command ``doctor``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from sparkdl import redaction
from sparkdl.cli.arguments import add_conf
from sparkdl.cli.doctor.driver import check_driver
from sparkdl.cli.doctor.report import DoctorReport, render
from sparkdl.cli.doctor.session import check_session

_EXAMPLES = """\
examples:
  python -m sparkdl doctor
  python -m sparkdl doctor --master 'local[4]'
  python -m sparkdl doctor --master spark://head:7077 --conf spark.executor.memory=4g
  python -m sparkdl doctor --plain --json     # what a session without sparkdl's confs lacks

The exit code is 0 if this setup can train, 1 if it cannot.
"""


def register(subparsers: Any) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "doctor",
        help="say whether this setup can train, and what to change",
        description="Check this machine, a Spark session and its executors.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--master", help="Spark master (spark-submit's, else local[*])")
    add_conf(parser, nargs="+", help="Spark confs of the session; may be repeated")
    parser.add_argument(
        "--plain", action="store_true", help="check a session without the confs of session.builder()"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Check this process, then a session of its own, then the executors."""
    report = DoctorReport()
    check_driver(report)
    if report.can_train:
        conf = dict(pair for pairs in args.conf for pair in pairs)
        check_session(report, args.master, conf, args.plain)
    found = json.dumps({"can_train": report.can_train, **asdict(report)}) if args.json else render(report)
    print(redaction.text(found))
    return 0 if report.can_train else 1
