"""``sparkdl runs PATH``: the runs of a folder, and their last iterations."""

from __future__ import annotations

import argparse
import json
import math
import posixpath
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparkdl import redaction
from sparkdl.attempts import count
from sparkdl.cli.arguments import command_error, say
from sparkdl.cli.document import write
from sparkdl.cli.runs import page
from sparkdl.cli.runs.found import Course, RunSummary, finite, text
from sparkdl.exceptions import ConfigError

_EXAMPLES = """\
examples:
  sparkdl runs runs
  sparkdl runs runs --json
  sparkdl runs runs --html runs.html
  sparkdl runs s3://bucket/runs

Lists what JsonLines and Checkpoint hooks have written under the folder.
"""
_QUIET_SECONDS = 300.0
_BEGINNING = b'{"kind": "begin"'


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "runs",
        help="list the runs in a folder",
        description="List the runs in a folder: started, iterations, epochs, loss, best score, state.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", help="folder of summaries and checkpoints, or its URL")
    parser.add_argument("--json", action="store_true", help="print one JSON object per run")
    parser.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="write a page with the list, curves and settings, to compare runs",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List the runs; return 1 if there is none."""
    found = sorted(
        runs(args.path, courses=args.html is not None), key=lambda run: (run.started or "", run.path)
    )
    if not found:
        where = redaction.text(args.path)
        print(f"no run in {where}: expected files of JsonLines or Checkpoint hooks", file=sys.stderr)
        return 1
    if args.json:
        for row in found:
            print(json.dumps({name: value for name, value in asdict(row).items() if name != "course"}))
    elif args.html is None:
        _print_table(found)
    if args.html is not None:
        write("--html", args.html, page.page(found, redaction.text(args.path)))
        print(f"wrote {args.html}", file=sys.stderr if args.json else sys.stdout)
    return 0


def runs(path: str, *, courses: bool = False) -> Iterator[RunSummary]:
    """Find the runs in a folder.

    Checkpoints belong to the JSON lines beside or above them, if that is one file.
    """
    from fsspec.core import url_to_fs

    try:
        fs, root = url_to_fs(path)
        files: dict[str, dict[str, Any]] = fs.find(root, detail=True)
    except (ImportError, ValueError, OSError) as error:
        raise command_error(f"path={path!r} cannot be read: {error}") from error
    if not files and not fs.isdir(root):
        raise command_error(f"path={path!r} is not a folder")
    # A pipe would be waited for, a device might have no end.
    local = "file" in fs.protocol
    files = {
        name: info
        for name, info in files.items()
        if info["type"] == "file" or (local and Path(name).is_file())  # a link is neither for fsspec
    }
    checkpoints = _checkpoints(fs, files)
    logs = [
        name
        for name in files
        if name.endswith((".jsonl", ".ndjson"))
        or ("." not in posixpath.basename(name) and _begins_a_run(fs, name))
    ]
    homes = [posixpath.dirname(name) for name in logs]
    for name, home in zip(logs, homes, strict=True):
        try:
            # Somebody else's file may hold anything.
            with fs.open(name, "r", encoding="utf-8", errors="replace") as file:
                found = list(read_lines(_relative(name, root), file, courses=courses))
        except OSError as error:
            _pass_over(_relative(name, root), error)
            continue
        if found and homes.count(home) == 1:
            for folder in [folder for folder in checkpoints if f"{folder}/".startswith(f"{home}/")]:
                found[-1] = _completed(found[-1], checkpoints.pop(folder))
        if found and found[-1].state == "unfinished" and _age(files[name]) < _QUIET_SECONDS:
            found[-1] = replace(found[-1], state="running")
        yield from found
    for folder, state in checkpoints.items():
        summary = RunSummary(_relative(folder, root), posixpath.basename(folder), state="checkpoints")
        yield _completed(summary, state)


def read_lines(path: str, lines: Iterable[str], *, courses: bool = False) -> Iterator[RunSummary]:
    """Yield the runs of a file of JSON lines: one, or more if several were appended to it.

    Lines that are not those of :class:`sparkdl.summary.JsonLines` are passed over. A run that was resumed
    is one run.
    """
    current: RunSummary | None = None

    def new(started: str | None = None) -> RunSummary:
        return RunSummary(path, started=started, course=Course() if courses else None)

    for line in lines:
        row = _row(line)
        kind = row.get("kind")
        if kind == "begin":
            if current is not None and not 0 < count(row.get("iteration")) <= current.iterations:
                yield current
                current = None
            current = replace(
                current or new(text(row.get("time"))),
                name=text(row.get("name")),
                state="unfinished",
                attempt=count(row.get("attempt")) or None,
            )
        elif kind == "iteration":
            current = replace(
                current or new(),
                iterations=count(row.get("iteration")),
                epochs=count(row.get("epoch")),
                loss=finite(row.get("loss")),
            )
        elif kind == "end" and current is not None:
            current = replace(
                current,
                state=(text(row.get("status")) or "finished").lower(),
                reason=text(row.get("reason")),
                monitored=text(row.get("monitored")) or None,
                best_score=finite(row.get("best_score")),
            )
        if current is not None and current.course is not None:
            current.course.add(row)
    if current is not None:
        yield current


def _row(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # somebody else's, or cut off by a full disk
        return {}
    return row if isinstance(row, dict) else {}


def _checkpoints(fs: Any, files: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the state that the newest checkpoint of each folder holds, by folder."""
    newest: dict[str, str] = {}
    for name in sorted(files):
        step, file = posixpath.split(name)
        if file == "state.json" and posixpath.basename(step).startswith("iteration-"):
            newest[posixpath.dirname(step)] = name
    if not newest:
        return {}
    from sparkdl.train.checkpoint.mark import Mark  # which takes torch along

    found = {}
    for folder, name in newest.items():
        try:
            found[folder] = dict(Mark.parse(posixpath.dirname(name), fs.cat_file(name)).state)
        except (OSError, ConfigError) as error:
            _pass_over(name, error)
    return found


def _begins_a_run(fs: Any, name: str) -> bool:
    """Return whether a file that may hold anything begins with a line of JsonLines."""
    try:
        with fs.open(name, "rb") as file:
            return bool(file.read(len(_BEGINNING)) == _BEGINNING)
    except OSError:
        return False


def _completed(run: RunSummary, state: Mapping[str, Any]) -> RunSummary:
    """Add what a checkpoint knows to what the lines say, which go further."""
    best = run.best_score if run.best_score is not None else finite(state.get("best_score"))
    if run.iterations >= count(state.get("iteration")):
        return replace(run, best_score=best)
    return replace(
        run,
        iterations=count(state["iteration"]),
        epochs=count(state.get("epoch")) + (count(state.get("step")) > 0),
        loss=finite(state.get("loss")),
        best_score=best,
    )


def _pass_over(name: str, error: Exception) -> None:
    say(f"passed over {text(name)}: {text(str(error))}")


def _relative(name: str, root: str) -> str:
    return text(posixpath.relpath(name, root)) or ""


def _age(info: Mapping[str, Any]) -> float:
    """Return the seconds since a file was written; infinity where its store does not say."""
    changed = info.get("mtime") or info.get("LastModified")
    if isinstance(changed, datetime):
        return (datetime.now(UTC) - changed).total_seconds()
    return time.time() - changed if isinstance(changed, float | int) else math.inf


def _print_table(found: Iterable[RunSummary]) -> None:
    columns = ("name", "started", "iterations", "epochs", "loss", "best score", "state", "path")
    rows = [columns, *([page.facts(run)[name] for name in columns] for run in found)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(columns))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
