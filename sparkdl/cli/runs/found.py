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
    """The curves and settings of a run."""

    # values by iteration, by name: ``loss``, ``lr``, and scores such as ``val/accuracy``. Of an iteration
    # that ran again the last value counts.
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    # options of the Trainer as text, by name; empty for runs of earlier releases
    settings: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0  # of all iterations

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
    """A run as its files tell it; ``None`` where they do not."""

    path: str  # its file of JSON lines, or its folder of checkpoints, relative to the folder searched
    name: str | None = None  # the Trainer's name for it
    started: str | None = None  # time in UTC
    iterations: int = 0  # completed ones
    epochs: int = 0  # the last one begun
    loss: float | None = None  # of the last iteration
    monitored: str | None = None  # score that triggers look at
    best_score: float | None = None  # its best value
    # ``finished``, ``failed``, ``killed``; ``running`` if a line was written in the last minutes,
    # ``unfinished`` if not; ``checkpoints`` if there is nothing else
    state: str = "unfinished"
    reason: str | None = None  # what ended it
    # which driver of its job came that far, from 1; ``None`` without ``submit --retries``
    attempt: int | None = None
    course: Course | None = None  # curves and settings, if they were asked for


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
