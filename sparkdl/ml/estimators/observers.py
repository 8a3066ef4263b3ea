"""The observer of every fit of an estimator in this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pyspark.sql import DataFrame

Note = Callable[[Any], None]
"""Is told the fitted model."""

Observer = Callable[[Any, DataFrame], AbstractContextManager[Note]]
"""Is entered with estimator and rows before a fit, and left after it."""

_observer: Observer | None = None


def observe_every_fit(observer: Observer | None) -> None:
    """Enter an observer, in place of the one before, around every fit that begins from now on."""
    global _observer
    _observer = observer


def observed(estimator: Any, dataset: DataFrame) -> AbstractContextManager[Note]:
    """Return what to enter around a fit: it gives the function that is told the model."""
    return nullcontext(lambda _: None) if _observer is None else _observer(estimator, dataset)
