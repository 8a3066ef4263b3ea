"""The times of all tasks and of their parts, for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sparkdl.exceptions import ConfigError
from sparkdl.train.history import without_nan
from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.target import Target
from sparkdl.train.options.triggers import Trigger

if TYPE_CHECKING:
    from sparkdl.train.run import Run

_WINDOW = 100
_DRIVER = 1  # process number in the trace; hosts follow
_SHARDS = 1_000_000  # thread numbers: partitions from 1, shards from here
_JOBS = {
    "job": "share of a job of many iterations",
    "job1": "forward-backward job",
    "job2": "parameter-sync job",
    "broadcast": "publish weights",
}

Event = dict[str, Any]


class Timeline(Hook):
    """Writes a trace of the tasks that opens at https://ui.perfetto.dev and in chrome://tracing.

    The driver is a row with its jobs, validations and the loss; each host is a group of rows, one per
    partition and one per shard of the weights, with the tasks and their phases. Times are those of the
    machines' own clocks: where these differ, rows of different hosts are shifted.

    The file grows while the run goes on and may be opened before it ends. An iteration takes about
    a kilobyte per partition, and half of one per shard.

    Args:
        path: local file, or an address that fsspec opens; a remote file is copied there once a minute,
            at most, and at the end.
        first: first iteration to record, from 1.
        last: last iteration to record; by default the 100th recorded at most, or no end with ``every``.
        every: records only iterations after which this trigger fires.

    Raises:
        ConfigError: if ``first`` and ``last`` are no range, or the address cannot be opened.
    """

    def __init__(
        self, path: str | Path, *, first: int = 1, last: int | None = None, every: Trigger | None = None
    ) -> None:
        if first < 1 or (last is not None and last < first):
            raise ConfigError(f"Timeline(first={first}, last={last}): expected 1 <= first <= last")
        self._target = Target("timeline", path)
        self._first = first
        self._last = last if last is not None else first + _WINDOW - 1 if every is None else sys.maxsize
        self._every = every
        self._file: IO[str] | None = None
        self._named: set[tuple[int, int | None]] = set()
        self._hosts: dict[str, int] = {}
        self._validation_began = 0.0

    def on_train_begin(self, run: Run) -> None:
        """Open the file."""
        self._named, self._hosts = set(), {}
        self._file = self._target.open().open("w", encoding="utf-8")
        self._file.write(f"[\n{_json(_meta('process_labels', _DRIVER, labels=run.name))}")
        self._write(self._names(_DRIVER, "driver", 1, "jobs"))
        self._target.push(strict=True)

    def on_iteration_end(self, run: Run) -> None:
        """Write the tasks of an iteration."""
        if not self._recorded(run) or (self._every and not self._every(run.previous, run.state)):
            return
        tasks: Sequence[Mapping[str, Any]] = getattr(run.outcome, "tasks", None) or ()
        row = run.history[-1]
        numbers = {key: row[key] for key in ("epoch", "iteration", "samples", "loss", "lr")}
        for task in tasks:
            if task["kind"] == "driver":
                self._write(self._driver_events(task, numbers))
            else:
                self._write(self._task_events(task, row["iteration"]))
        if self._target.due():
            self._target.push()

    def on_validation_begin(self, run: Run, name: str) -> None:
        """Note the time."""
        self._validation_began = time.time()

    def on_validation_end(self, run: Run, name: str, scores: Mapping[str, float]) -> None:
        """Write the validation, if the iteration before it is in the range."""
        if self._recorded(run):
            seconds = time.time() - self._validation_began
            self._write(
                [_shard(f"validation {name}", _DRIVER, 1, self._validation_began, seconds, dict(scores))]
            )

    def on_train_end(self, run: Run) -> None:
        """End and close the file."""
        if self._file is None:
            return
        self._file.write("\n]\n")
        self._file.close()
        self._file = None
        self._target.close()

    def _recorded(self, run: Run) -> bool:
        return self._file is not None and self._first <= run.state.iteration <= self._last

    def _driver_events(self, task: Mapping[str, Any], numbers: Event) -> Iterator[Event]:
        start = task["start"]
        yield _shard(f"iteration {numbers['iteration']}", _DRIVER, 1, start, task["seconds"], numbers)
        yield from _phases(task, _DRIVER, 1, _JOBS)
        loss = numbers["loss"]
        if math.isfinite(loss):
            yield {"name": "loss", "ph": "C", "pid": _DRIVER, "ts": _micros(start), "args": {"loss": loss}}

    def _task_events(self, task: Mapping[str, Any], iteration: int) -> Iterator[Event]:
        process = self._hosts.setdefault(task["host"], _DRIVER + 1 + len(self._hosts))
        if task["kind"] == "parameter-sync":
            thread, name = _SHARDS + task["shard"], f"shard {task['shard']}"
        else:
            thread, name = 1 + task["partition"], f"partition {task['partition']}"
        yield from self._names(process, f"host {task['host']}", thread, name)
        found = {"iteration": iteration, "process": task["pid"]}
        yield _shard(task["kind"], process, thread, task["start"], task["seconds"], found)
        yield from _phases(task, process, thread, {})

    def _names(self, process: int, process_name: str, thread: int, thread_name: str) -> Iterator[Event]:
        """Name rows that appear for the first time."""
        if (process, None) not in self._named:
            self._named.add((process, None))
            yield _meta("process_name", process, name=process_name)
            yield _meta("process_sort_index", process, sort_index=process)
        if (process, thread) not in self._named:
            self._named.add((process, thread))
            yield _meta("thread_name", process, thread, name=thread_name)
            yield _meta("thread_sort_index", process, thread, sort_index=thread)

    def _write(self, events: Iterable[Event]) -> None:
        """Add events; the file is a list that lacks its end only."""
        if self._file is not None:
            self._file.writelines(f",\n{_json(event)}" for event in events)
            self._file.flush()


def _meta(kind: str, process: int, thread: int = 0, **args: Any) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": args}


def _shard(name: str, process: int, thread: int, start: float, seconds: float, args: Event) -> Event:
    begin = _micros(start)
    return {
        "name": name,
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": begin,
        "dur": max(_micros(start + seconds) - begin, 0),
        "args": args,
    }


def _phases(task: Mapping[str, Any], process: int, thread: int, titles: Mapping[str, str]) -> Iterator[Event]:
    """Shards of a task's phases, one after the other; none reaches beyond the task, for they are nested."""
    start = task["start"]
    end = start + task["seconds"]
    for name, seconds in task["phases"].items():
        length = min(seconds, end - start)
        if length <= 0:
            continue
        yield _shard(titles.get(name, name), process, thread, start, length, {})
        start += length


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def _json(event: Event) -> str:
    return json.dumps(without_nan(event), allow_nan=False)
