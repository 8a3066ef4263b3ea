"""Observers of every fit of an estimator in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from pyspark.sql import DataFrame

Note = Callable[[Any], None]
"""Is told the fitted model."""

Observer = Callable[[Any, DataFrame], AbstractContextManager[Note]]
"""Is entered with estimator and rows before a fit, and left after it."""

_of_every_fit: list[Observer] = []


def add_to_every_fit(observer: Observer) -> None:
    """Enter an observer around every fit that begins from now on in this process."""
    if observer not in _of_every_fit:
        _of_every_fit.append(observer)


def remove_from_every_fit(observer: Observer) -> None:
    """Undo :func:`add_to_every_fit`."""
    if observer in _of_every_fit:
        _of_every_fit.remove(observer)


@contextmanager
def observed(estimator: Any, dataset: DataFrame) -> Iterator[Note]:
    """Enter the observers around a fit, and give the function that tells them the model."""
    with ExitStack() as stack:
        notes = [stack.enter_context(observer(estimator, dataset)) for observer in _of_every_fit]

        def note(model: Any) -> None:
            for each in notes:
                each(model)

        yield note
