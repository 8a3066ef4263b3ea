"""Distillation needs no JVM: most of its tests run in this process."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def spark(request: pytest.FixtureRequest) -> Any:
    """A session without a JVM; a real one for tests that are marked ``jvm``, and for all with ``--jvm``."""
    with_jvm = request.node.get_closest_marker("jvm") is not None or request.config.getoption("jvm")
    return request.getfixturevalue("real" if with_jvm else "in_process")
