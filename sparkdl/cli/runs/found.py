"""The files of a run: its summary, its curves and its settings. Anybody may have written them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkdl import redaction
from sparkdl.attempts import count

_SETTINGS = 500


@dataclass(slots=True)
class Course:
    """The curves and settings of a run.

    Attributes:
        series: values by iteration, by name: ``loss``, ``lr``, and scores such as ``val/accuracy``. Of an
            iteration that ran again the last value counts.
        settings: options of the Trainer as text, by name; empty for runs of earlier releases.
        seconds: of all iterations.
    """

    series: dict[str, dict[int, float]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, row: Mapping[str, Any]) -> None:
        """Read a line."""
        kind, iteration = row.get("kind"), count(row.get("iteration"))
        if kind == "begin" and isinstance(row.get("settings"), dict):
            found = {text(name): text(str(value)) for name, value in row["settings"].items()}
            plain = {name or "": value or "" for name, value in list(found.items())[:_SETTINGS]}
            self.settings = redaction.confs(plain)
        elif kind == "iteration" and iteration:
            self.seconds += finite(row.get("seconds")) or 0.0
            for name in ("loss", "lr"):
                self._put(name, iteration, row.get(name))
        elif kind == "validation" and iteration:
            group = text(row.get("name")) or "validation"
            for name, value in row.items():
                if name not in ("kind", "epoch", "iteration", "name"):
                    self._put(f"{group}/{text(name)}", iteration, value)

    def _put(self, name: str, iteration: int, value: Any) -> None:
        number = finite(value)
        if number is not None:
            self.series.setdefault(name, {})[iteration] = number


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run as its files tell it; ``None`` where they do not.

    Attributes:
        path: its file of JSON lines, or its folder of checkpoints, relative to the folder searched.
        name: the Trainer's name for it.
        started: time in UTC.
        iterations: completed ones.
        epochs: the last one begun.
        loss: of the last iteration.
        monitored: score that triggers look at.
        best_score: its best value.
        state: ``finished``, ``failed``, ``killed``; ``running`` if a line was written in the last minutes,
            ``unfinished`` if not; ``checkpoints`` if there is nothing else.
        reason: what ended it.
        attempt: which driver of its job came that far, from 1; ``None`` without ``submit --retries``.
        course: curves and settings, if they were asked for.
    """

    path: str
    name: str | None = None
    started: str | None = None
    iterations: int = 0
    epochs: int = 0
    loss: float | None = None
    monitored: str | None = None
    best_score: float | None = None
    state: str = "unfinished"
    reason: str | None = None
    attempt: int | None = None
    course: Course | None = None


def finite(value: Any) -> float | None:
    """Return a number that is one, also as text such as ``"nan"``, which checkpoints have."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def text(value: Any) -> str | None:
    """Return a text that can be printed on one line."""
    if not isinstance(value, str):
        return None
    return redaction.text("".join(c if c.isprintable() else "\ufffd" for c in value))
