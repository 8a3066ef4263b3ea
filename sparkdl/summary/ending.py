"""The end of a run, in the words of summaries."""

from __future__ import annotations

from typing import Literal

from sparkdl import redaction
from sparkdl.train.run import Run

Status = Literal["FINISHED", "FAILED", "KILLED"]


def ending(run: Run) -> tuple[Status, str]:
    """Return how a run ended, and the reason; for ``on_train_end``."""
    error = run.error
    if error is not None:
        killed = isinstance(error, KeyboardInterrupt)
        reason = redaction.text(f"{type(error).__name__}: {error}".split("\n")[0])
        return "KILLED" if killed else "FAILED", reason
    if run.stopped == "interrupt":
        return "KILLED", "interrupt"
    return "FINISHED", run.stopped or "end_when"
