"""A Tuner needs no JVM: most of its tests run in this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from support import no_jvm

from sparkdl.tune import tuner


class Inline(Executor):
    """Runs at once what is submitted: without a JVM, tasks are calls and share torch's generator."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session without a JVM runs trials one after the other."""
    if isinstance(spark, no_jvm.Session):
        monkeypatch.setattr(tuner, "pool", lambda _: Inline())
    return spark
