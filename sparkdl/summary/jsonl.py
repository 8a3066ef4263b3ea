"""The history as lines of JSON, written while the run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from sparkdl import attempts
from sparkdl.summary.params import ending, params
from sparkdl.train.history import json_line
from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.target import Target
from sparkdl.train.options.triggers import Trigger
from sparkdl.train.run import Run

_BEGINNING = b'{"kind": '
_LONGEST_LINE = 1 << 20


class JsonLines(Hook):
    """Appends one JSON object per iteration and per validation to a file.

    The lines are those of :meth:`History.to_jsonl <sparkdl.train.History.to_jsonl>`, between one of kind
    ``"begin"`` (name, time, iteration, settings, and ``attempt`` under ``sparkdl submit --retries``) and one
    of kind ``"end"`` (status, reason, time, best score); NaN is ``null``. ``sparkdl runs`` lists what such
    files say, if they are called ``*.jsonl`` or ``*.ndjson``, or have no suffix.

    Whatever ends the process, the file holds whole lines. A run that is resumed appends, so the last line
    of an iteration counts.

    Args:
        path: local file, or an address that fsspec opens; a remote file is copied there once a minute,
            at most, and at the end.
        every: when lines are written out; by default after each iteration. None is left out.

    Raises:
        ConfigError: if the address cannot be opened.
    """

    def __init__(self, path: str | Path, every: Trigger | None = None) -> None:
        self._target = Target("path", path)
        self._every = every
        self._file: IO[bytes] | None = None
        self._waiting: list[str] = []

    def on_train_begin(self, run: Run) -> None:
        """Open the file."""
        local = self._target.open()
        self._target.fetch()
        _mend(local)
        beginning: dict[str, Any] = {"name": run.name, "time": _now(), "iteration": run.state.iteration}
        if (attempt := attempts.number()) is not None:
            beginning["attempt"] = attempt
        beginning["settings"] = params(run)
        self._waiting = [json_line("begin", beginning)]
        self._file = local.open("ab", buffering=0)
        self._write()
        self._target.push(strict=True)

    def on_iteration_end(self, run: Run) -> None:
        """Add the iteration's line."""
        self._waiting.append(json_line("iteration", run.history[-1]))
        if self._every is None or self._every(run.previous, run.state):
            self._write()

    def on_validation_end(self, run: Run, name: str, scores: Mapping[str, float]) -> None:
        """Add the scores' line."""
        epoch = int(run.history[-1]["epoch"]) if len(run.history) else 1
        row = {"epoch": epoch, "iteration": run.state.iteration, "name": name, **scores}
        self._waiting.append(json_line("validation", row))
        self._write()

    def on_train_end(self, run: Run) -> None:
        """Write the remaining lines and close the file."""
        if self._file is None:
            return
        status, reason = ending(run)
        best = {"monitored": run.monitored, "best_score": run.state.best_score}
        end = {"status": status, "reason": reason, "time": _now(), **best}
        self._waiting.append(json_line("end", end))
        self._write()
        self._file.close()
        self._file = None
        self._target.close()

    def _write(self) -> None:
        if self._file is None or not self._waiting:
            return
        # Unbuffered and whole lines at a time: a process that is killed leaves all of them or none.
        lines = "".join(self._waiting).encode()
        while lines:
            lines = lines[self._file.write(lines) :]
        self._waiting = []
        if self._target.due():
            self._target.push()


def _now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _mend(path: Path) -> None:
    """End the last line of a file that a full disk or a power cut left in the middle of one."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - _LONGEST_LINE))
        tail = file.read()
        last = tail[tail.rfind(b"\n") + 1 :]
        if not last:
            return
        if last.startswith(_BEGINNING) and not _is_json(last):
            file.truncate(end - len(last))
        else:
            file.write(b"\n")


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
