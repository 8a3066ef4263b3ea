"""What was trained is not lost with the exception that ends a fit: it is the exception's ``result``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from sparkdl.train.result import FitResult

_log = logging.getLogger("sparkdl")


class ErrorsCarryResult:
    """Gives whatever exception leaves its block the result that was set.

    Of any class: errors of sparkdl, of a hook, of the disk, KeyboardInterrupt.

    Attributes:
        result: what to give; ``None`` as long as nothing was trained.
    """

    result: FitResult | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self.result is not None:
            _attach(error, self.result)


@contextmanager
def unless_under_way(error: BaseException | None, what: str) -> Iterator[None]:
    """Let the block fail unless an error is under way, which wins and gets the failure as a note.

    Args:
        error: what has failed before, if anything has.
        what: what it means that the block fails.
    """
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
