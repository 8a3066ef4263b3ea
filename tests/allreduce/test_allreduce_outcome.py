"""What the driver makes of the times that tasks report."""

from __future__ import annotations

from typing import Any

import pytest

from sparkdl.allreduce.outcome import _phases, within

ROWS = {
    "rows": 4,
    "weight": 4.0,
    "divisor": 4.0,
    "loss": 1.0,
    "dropped": 0,
    "lost": 0,
    "other": None,
    "extras": {},
}


def told(task: dict[str, float], update: float) -> dict[str, Any]:
    report = {**ROWS, "source": 0, "task": {"seconds": sum(task.values()), "phases": task, "file_bytes": 0}}
    updated = {"received": 0, "state_bytes": 0, "task": {"seconds": update, "phases": {"update": update}}}
    return {"reports": [report], "updates": [updated]}


def test_an_update_counts_once_whichever_task_makes_it() -> None:
    apart = {"weights_in": 1.0, "data": 1.0, "compute": 4.0}
    for task in (apart, {"update": 2.0, **apart}):
        found = _phases([told(task, 2.0)], {"broadcast": 0.5, "job": 10.0})
        assert found == {
            **apart,
            "gradient_out": 0.0,
            "update": 2.0,
            "launch": pytest.approx(2.0),
            "shuffle": 0.0,
            "broadcast": 0.5,
        }


def test_a_slow_step_is_divided_among_those_of_its_job() -> None:
    """Of a job of 6 seconds the steps' updates took 4, 1 and 0 seconds: each has 5/3 in its 2."""
    steps = [told({"compute": 0.0}, update) for update in (4.0, 1.0, 0.0)]
    found = _phases(steps, {"broadcast": 0.0, "job": 2.0})
    assert found["update"] == pytest.approx(5 / 3)
    assert found["launch"] == pytest.approx(1 / 3)


def test_the_slowest_task_is_one_task() -> None:
    """Of two, one waits for rows where the other computes."""
    step = told({"data": 3.0, "compute": 1.0}, 0.0)
    step["reports"] += told({"data": 0.5, "compute": 4.0}, 0.0)["reports"]
    found = _phases([step], {"broadcast": 0.0, "job1": 5.0, "job2": 1.0})
    assert (found["data"], found["compute"], found["launch"], found["shuffle"]) == (0.5, 4.0, 0.5, 1.0)


def test_what_overlaps_counts_once() -> None:
    assert within({"a": 3.0, "b": 1.0}, 2.0, "rest") == {"a": 1.5, "b": 0.5, "rest": 0.0}
    assert within({"a": 3.0, "b": 1.0}, 5.0, "b") == {"a": 3.0, "b": 2.0}
    assert within({}, 5.0, "rest") == {"rest": 5.0}
    assert within({"a": 3.0}, 0.0, "rest") == {"a": 0.0, "rest": 0.0}
