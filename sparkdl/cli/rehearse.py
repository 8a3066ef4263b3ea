"""Starting a user's script so that its first fit answers a request instead; for ``plan`` and ``profile``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl.cli.arguments import add_conf, command_error
from sparkdl.cli.process import forwarding
from sparkdl.cli.submit import command as submit

if TYPE_CHECKING:
    from sparkdl.train.planning.request import Request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options by which the script is started."""
    parser.add_argument("--master", help="Spark master, if the script leaves it open: local[N], yarn, ...")
    parser.add_argument("--conf-file", metavar="job.toml", type=Path, help="job file, as of sparkdl submit")
    add_conf(parser)
    parser.add_argument(
        "--seconds", type=positive, default=4.0, metavar="S", help="of each short fit, about (4)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the script and its arguments")


def positive(text: str) -> float:
    """Return a number above 0; for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return value


def answer_of(args: argparse.Namespace, **asked: Any) -> tuple[int, dict[str, Any]]:
    """Run the script as far as its first fit; return its exit status, and the answer.

    With a master or a job file the script is submitted as by ``sparkdl submit``; otherwise it is a Python
    program that makes its own session.
    """
    from sparkdl.train.planning.request import Request  # loads torch, which no other command's parser needs

    with tempfile.TemporaryDirectory(prefix="sparkdl-rehearsal-") as name, forwarding() as child:
        folder = Path(name)
        request = Request(answer=str(folder / "answer.json"), seconds=args.seconds, **asked)
        status = child.run(*_command(args, folder, request))
        if status or child.stopped:
            return status or 1, {}
        try:
            found: dict[str, Any] = json.loads(Path(request.answer).read_bytes())
        except OSError:
            raise command_error(
                "the script ended without a fit: expected one that calls Trainer.fit, or fits an estimator"
            ) from None
        return 0, found


def _command(
    args: argparse.Namespace, folder: Path, request: Request
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command line that runs the script, and its variables."""
    if args.master is not None or args.conf_file is not None or args.conf:
        for name in ("env", "pack_env"):
            setattr(args, name, None)
        job = submit.job_of(args)
        submission = submit.plan(job, folder)
        if submission.remote:
            raise command_error(
                "deploy-mode is 'cluster': expected 'client', for the driver writes its answer here"
            )
        submission.prepare()
        return submission.command, submission.environment | request.variable()
    script = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not script or not Path(script[0]).is_file():
        found = repr(script[0]) if script else "nothing"
        raise command_error(f"no script: found {found}; expected a Python file after the options")
    return (sys.executable, *script), request.variable()
