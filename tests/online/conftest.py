"""Learning from batches needs no JVM; streams do."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def spark(request: pytest.FixtureRequest) -> Any:
    """A session without a JVM; a real one for tests that are marked ``jvm``, and for all with ``--jvm``."""
    real = request.node.get_closest_marker("jvm") is not None or request.config.getoption("jvm")
    return request.getfixturevalue("real" if real else "in_process")
