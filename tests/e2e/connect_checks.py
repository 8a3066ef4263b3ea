"""What ``connect_whole.py`` is to find."""

from __future__ import annotations

from typing import Any

import pytest
from connect_whole import SLEEP


def check_whole(found: dict[str, Any]) -> None:
    """Check the README's program, its progress bar and history, resume, and one and two Ctrl-C."""
    assert found["line"] == pytest.approx([3, 1], abs=0.01)
    assert "epoch 10" in found["bar"]
    assert found["losses"][-1] < found["losses"][0]
    assert found["stopped by"] == "interrupt"
    assert sorted(set(found["epochs"])) == [1, 2, 3, 4]
    assert found["second"] == "raised"
    assert found["rows"] == 4
    assert found["seconds"] < SLEEP / 2
    assert not found["py4j"]
