"""A Tuner needs no JVM: most of its tests run in this process."""

from __future__ import annotations

from typing import Any

import pytest
from support import no_jvm
from support.searches import Inline

from sparkdl.tune import tuner


@pytest.fixture
def spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session without a JVM runs trials one after the other."""
    if isinstance(spark, no_jvm.Session):
        monkeypatch.setattr(tuner, "pool", lambda _: Inline())
    return spark
