"""Continuation of an estimator's run (``warmStartFrom``): encoding, labels and batch of the one before it.

A table's encoding and the numbers of labels are learned from the rows of the first fit. Weights mean nothing
with others, so they are in the checkpoints, and a run on other rows takes them from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml.params.columns import value_of
from sparkdl.table.encoding import TableEncoding
from sparkdl.train.checkpoint import CheckpointFolder, latest, read_told
from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.checkpoint import Checkpoint, of_attempt

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What a checkpoint tells of the run that goes on from it."""

    start: int  # iteration at which the run takes, or took, its rows; 0 for the first rows
    batch_size: int  # rows of one iteration
    encoding: TableEncoding | None  # of the table's columns, if they were encoded
    labels: tuple[str, ...]  # the names of the classes, if labels were strings


class Learned(Hook):
    """Keeps in checkpoints what an estimator has learned of the rows before its first iteration."""

    def __init__(self, encoding: TableEncoding | None, labels: tuple[str, ...]) -> None:
        self._state = {
            "encoding": json.dumps(None if encoding is None else encoding.to_json()),
            "labels": json.dumps(labels),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return encoding and labels, as JSON."""
        return dict(self._state)


def earlier(estimator: Any) -> Earlier | None:
    """Return what the checkpoint tells from which an estimator's fit will go on.

    It is ``None`` if the fit begins, or a Trainer, an earlier release, or an estimator that had nothing to
    learn wrote it. Raises ConfigError if it cannot be read.
    """
    return _first(estimator, _read)


def start(estimator: Any) -> int:
    """Return the iteration at which a run takes, or took, its rows; 0 for the first ones.

    Raises ConfigError if the checkpoint cannot be read from which the fit will go on.
    """
    return _first(estimator, lambda path, rows: _start(read_told(path), rows)) or 0


def _first(estimator: Any, read: Callable[[str, str], T | None]) -> T | None:
    """Return what is read of the checkpoint from which an estimator's fit will go on, if it does."""
    folder: str | None = value_of(estimator, estimator.checkpointPath)
    warm = warm_start(estimator)
    if not warm and not estimator.getResume():
        return None
    hooks = [Checkpoint(folder)] if folder else []
    resume, rows = of_attempt(warm or True, "new" if warm else "same", hooks)
    if warm is None or (resume is True and folder):
        if not folder:
            return None
        sound = reversed(CheckpointFolder(folder).complete().values())  # damaged ones will be set aside
        return next((found for path in sound if (found := _sound(path, read)) is not None), None)
    return read(latest(warm) or warm, rows)


def warm_start(estimator: Any) -> str | None:
    """Return from where an estimator goes on with other rows.

    ``None`` if it begins, also if there are no checkpoints of its own to go on from, as on the first day.
    """
    warm: str | None = value_of(estimator, estimator.warmStartFrom)
    first = warm and warm == value_of(estimator, estimator.checkpointPath) and latest(warm) is None
    return None if first else warm


def learned(rows: Any) -> list[Hook]:
    """Return the hook that keeps what was learned of the rows of a fit, if anything was."""
    found = rows.encoding is not None or rows.labels
    return [Learned(rows.encoding, rows.labels)] if found else []


def check_told(estimator: Any, before: Earlier | None, what: str) -> None:
    """Check that a run on other rows knows what the weights mean."""
    warm = warm_start(estimator)
    if warm and before is None:
        raise ConfigError(
            f"warmStartFrom={warm!r}: the checkpoint does not tell {what}, and its weights mean nothing "
            "without: a Trainer or an earlier release wrote it. Fit once without warmStartFrom",
            code="config-resume",
        )


def other_labels(name: str, before: Earlier) -> DataError:
    """Return the error that labels are strings where they were numbers, or the other way round."""
    were = f"strings ({', '.join(before.labels):.300})" if before.labels else "numbers"
    now = "no strings" if before.labels else "strings"
    return DataError(
        f"label column {name!r} holds {now}, but in the run before the labels were {were}: they would mean "
        "other classes; give it such labels, or fit anew",
        code="data-type",
    )


def _sound(path: str, read: Callable[[str, str], T | None]) -> T | None:
    try:
        return read(path, "same")
    except ConfigError:
        return None  # the fit says it, or takes an older one


def _start(state: Mapping[str, Any], rows: str) -> int:
    changes = state.get("new_rows") or [{"iteration": 0}]
    return int(state["state"]["iteration"] if rows == "new" else changes[-1]["iteration"])


def _read(path: str, rows: str) -> Earlier | None:
    told = read_told(path)
    try:
        learned = told["hooks"].get(f"{Learned.__name__}.0")
        if learned is None:
            return None
        encoding = json.loads(learned["encoding"])
        return Earlier(
            start=_start(told, rows),
            batch_size=int(told["batch_size"]),
            encoding=None if encoding is None else TableEncoding.from_json(encoding),
            labels=tuple(map(str, json.loads(learned["labels"]))),
        )
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"checkpoint {path} does not tell what became of the columns ({error!r:.200})",
            code="config-resume",
        ) from error
