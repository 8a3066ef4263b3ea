"""What the suites leave out on Spark Connect is listed, and counted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import on_connect

from sparkdl.exceptions import ConfigError, DataError

ROOT = Path(__file__).parents[2]
LISTED = "tests/data/test_x.py::test_listed"


def report(nodeid: str, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the report of a test that has failed with an error."""
    monkeypatch.setattr(on_connect, "LISTED", {LISTED})
    item = SimpleNamespace(nodeid=nodeid, location=("test_x.py", 1, ""), user_properties=[])
    found = SimpleNamespace(failed=True, outcome="failed", longrepr="", sections=[], nodeid=nodeid)
    call = SimpleNamespace(when="call", excinfo=SimpleNamespace(value=error))
    on_connect.refused(item, call, found)  # type: ignore[arg-type]
    return found


def test_only_what_is_listed_may_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = ConfigError("elastic: not here; leave it out", code="config-connect")
    listed = report(f"{LISTED}[1]", refusal, monkeypatch)
    assert (listed.outcome, listed.longrepr[2]) == ("skipped", "not on Spark Connect: elastic: not here")
    other = report("tests/data/test_x.py::test_other", refusal, monkeypatch)
    assert other.outcome == "failed"
    ((title, told),) = other.sections
    assert title == "not on Spark Connect: elastic: not here"
    assert "tests/data/test_x.py::test_other" in told
    assert report(LISTED, DataError("wrong", code="data-type"), monkeypatch).outcome == "failed"


def test_numbers_are_told_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = ConfigError("elastic: not here; leave it out", code="config-connect")
    left = [report(f"{LISTED}[{n}]", refusal, monkeypatch) for n in range(2)]
    other = SimpleNamespace(nodeid="a::b", longrepr=("a", 1, "Skipped: no reason"))
    stats = {"skipped": [*left, other], "passed": [SimpleNamespace(nodeid="a::c")]}
    assert on_connect.summary(stats) == [
        "1 passed, 0 failed, 0 error, 2 left out, 1 skipped for other reasons",
        "   2 not on Spark Connect: elastic: not here",
        "   1 no reason",
    ]
    found = on_connect.summary({"passed": [SimpleNamespace(nodeid=f"{LISTED}[0]")]})
    assert found[1:] == [f"listed, but refused nothing: {LISTED}"]


def test_all_that_is_listed_is_there() -> None:
    for name in on_connect.LISTED | on_connect.LEFT_OUT.keys():
        path, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / path).read_text(), name
