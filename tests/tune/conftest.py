"""A Tuner needs no JVM: most of its tests run in this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

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
def spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session without a JVM; a real one for tests that are marked ``jvm``, and for all with ``--jvm``."""
    if request.node.get_closest_marker("jvm") is not None or request.config.getoption("jvm"):
        return request.getfixturevalue("real")
    monkeypatch.setattr(tuner, "pool", lambda _: Inline())
    return request.getfixturevalue("in_process")
