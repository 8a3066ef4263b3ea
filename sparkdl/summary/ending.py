"""The end of a run, in the words of summaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sparkdl import redaction

if TYPE_CHECKING:
    from sparkdl.train.run import Run


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended."""

    status: Literal["FINISHED", "FAILED", "KILLED"]
    reason: str


def ending(run: Run) -> Ending:
    """Return how a run ended; for ``on_train_end``."""
    error = run.error
    if error is not None:
        killed = isinstance(error, KeyboardInterrupt)
        reason = redaction.text(f"{type(error).__name__}: {error}".split("\n")[0])
        return Ending("KILLED" if killed else "FAILED", reason)
    if run.stopped == "interrupt":
        return Ending("KILLED", "interrupt")
    return Ending("FINISHED", run.stopped or "end_when")
