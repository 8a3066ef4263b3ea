"""The end of a fit before its time: exceptions that carry what was trained."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from torch import nn

from sparkdl import attempts
from sparkdl.train.result import FitResult, StoppedBy
from sparkdl.train.run import Run

_log = logging.getLogger("sparkdl")


class ErrorsCarryResult:
    """Attaches a result to every exception that leaves its block, of any kind, and KeyboardInterrupt."""

    result: FitResult | None = None  # the result to attach; ``None`` before the first iteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and (attempt := attempts.current()) is not None:
            attempt.look(error)
        if error is not None and self.result is not None:
            _attach(error, self.result)


@contextmanager
def unless_under_way(error: BaseException | None, what: str) -> Iterator[None]:
    """Raise the block's failure, or, if an earlier error is under way, add it to that error as a note."""
    try:
        yield
    except Exception as other:
        if error is None:
            raise
        note(error, f"{what}: {other}")


def note(error: BaseException, text: str) -> None:
    """Add a note to an error, and log it, for some classes take no notes."""
    _log.warning("%s", text)
    with suppress(Exception):
        error.add_note(text)


def _attach(error: BaseException, result: FitResult) -> None:
    """Set ``error.result``; an attribute of that name that the class uses itself stays."""
    with suppress(Exception):
        if not isinstance(getattr(error, "result", None), FitResult | None):
            note(error, "The exception has a `result` of its own; Trainer.result holds what was trained")
            return
    try:
        # Not by the class's own way: frozen dataclasses refuse attributes.
        BaseException.__setattr__(error, "result", result)
    except Exception:
        note(error, "The exception takes no attributes; Trainer.result holds what was trained")


def result_of(run: Run, stopped_by: StoppedBy) -> FitResult:
    """Return what a run has come to, with weights as far as they can be fetched."""
    current = run.trained_module()
    averaged: nn.Module | None = None
    if run.config.averaging is not None and not isinstance(run.error, KeyboardInterrupt):
        with unless_under_way(run.error, "The averaged weights cannot be fetched any more"):
            averaged = run.trained_module(run.averaged())
    return FitResult(
        module=averaged or current,
        history=run.history,
        state=run.state,
        stopped_by=stopped_by,
        scores=dict(run.scores),
        unaveraged=current if averaged is not None else None,
    )
