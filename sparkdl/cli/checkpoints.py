"""``sparkdl checkpoints PATH``: what checkpoints a folder holds, whether they are sound, plain weights.

It needs neither Spark nor the module's code, and unpickles nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from sparkdl import redaction
from sparkdl.cli.arguments import command_error
from sparkdl.exceptions import ConfigError, SparkdlError

_EXAMPLES = """examples:
  sparkdl checkpoints runs/lenet
  sparkdl checkpoints runs/lenet --verify
  sparkdl checkpoints s3://bucket/runs/lenet --json
  sparkdl checkpoints runs/lenet --export lenet.safetensors --iteration 1200
"""


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "checkpoints",
        help="list, verify and export the checkpoints of a run",
        description="List the complete checkpoints in a folder, oldest first.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", help="folder that a Checkpoint hook writes to, or its URL")
    parser.add_argument("--verify", action="store_true", help="read all files and compare their checksums")
    parser.add_argument("--json", action="store_true", help="print one JSON object per checkpoint")
    parser.add_argument(
        "--export",
        metavar="FILE",
        help="write a checkpoint's state_dict as safetensors, and its checksum beside it",
    )
    parser.add_argument("--iteration", type=int, help="checkpoint to export (the newest)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List, verify or export; return 1 if something is damaged or missing."""
    if args.iteration is not None and args.export is None:
        raise command_error(
            "--iteration says which checkpoint to export: give --export FILE, or leave it out"
        )
    if args.json and args.export is not None:
        raise command_error("--export writes a checkpoint, and --json is about the list: give one of them")
    from sparkdl.train.checkpoint import CheckpointFolder

    try:
        folder = CheckpointFolder(args.path)
        found = folder.complete()
        if not found:
            print(redaction.text(f"no complete checkpoint in {args.path}"), file=sys.stderr)
            return 1
        if args.export is not None:
            return _export(found, args)
        rows = [folder.describe(path, verify=args.verify) for path in found.values()]
    except (SparkdlError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if args.json:
        for row in rows:
            print(redaction.text(json.dumps(row)))
    else:
        _print_table(rows)
    return 1 if any(row["problem"] for row in rows) else 0


def _export(found: dict[int, str], args: argparse.Namespace) -> int:
    iteration = max(found) if args.iteration is None else args.iteration
    if iteration not in found:
        known = ", ".join(map(str, found))
        print(f"there is no checkpoint of iteration {iteration}; there are {known}", file=sys.stderr)
        return 1
    from sparkdl.train.checkpoint import export_weights
    from sparkdl.train.checkpoint.exported import write_checksum

    export_weights(found[iteration], args.export)
    try:
        write_checksum(args.export)
    except OSError as error:
        raise ConfigError(f"cannot write the checksum of {args.export}: {error}") from error
    print(f"wrote {args.export}: the state_dict after iteration {iteration}")
    return 0


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    print(f"{'iteration':>9}  {'epoch':>5}  {'loss':>10}  {'best score':>10}  {'MiB':>8}  state")
    for row in rows:
        state = row["state"]
        print(
            f"{row['iteration']:>9}  {_number(state.get('epoch')):>5}  {_number(state.get('loss')):>10}  "
            f"{_number(state.get('best_score')):>10}  {row['bytes'] / 2**20:>8.1f}  "
            f"{row['problem'] or ('sound' if row['verified'] else 'complete')}"
            f"{'' if row['base'] is None else ', rows changed since ' + str(row['base'])}"
        )


def _number(value: Any) -> str:
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError):
        return "?"
