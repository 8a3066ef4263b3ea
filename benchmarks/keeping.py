"""Keep what a benchmark has measured, also when it is cut off."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def write(path: str | Path | None, found: Any) -> None:
    """Write rows, or another value, as JSON, all or nothing; without a path do nothing."""
    if path is None:
        return
    draft = Path(f"{path}.{os.getpid()}")
    draft.write_text(json.dumps(found, indent=1) + "\n")
    draft.replace(path)


def add(path: str | Path | None, rows: list[Row], row: Row) -> None:
    """Tell a row as soon as it is measured, and write it with those before."""
    print(json.dumps(row), file=sys.stderr, flush=True)
    rows.append(row)
    write(path, rows)


@contextmanager
def cut_off() -> Iterator[list[str]]:
    """Let the block end early by SIGTERM or Ctrl-C; yields a list that then names the cause.

    SIGTERM becomes a KeyboardInterrupt, which runs the ``finally`` blocks and stops Spark.
    """
    causes: list[str] = []

    def handler(number: int, _: object) -> None:
        causes.append(signal.Signals(number).name)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield causes
    except (KeyboardInterrupt, Exception) as error:
        if not causes and not isinstance(error, KeyboardInterrupt):
            raise
        # Spark's jobs fail, too, in blocks that clean up.
        if not causes:
            causes.append("SIGINT")
        print(f"cut off by {causes[0]}: what follows was measured before", file=sys.stderr, flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)
