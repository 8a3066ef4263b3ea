"""What the driver makes of the times that tasks report."""

from __future__ import annotations

from typing import Any

import pytest

from sparkdl.allreduce.outcome import _outcome

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


def launch(task: dict[str, float], update: float, job: float) -> float:
    report = {**ROWS, "source": 0, "task": {"seconds": sum(task.values()), "phases": task}}
    updated = {"received": 0, "state_bytes": 0, "task": {"seconds": update, "phases": {"update": update}}}
    found: Any = _outcome(
        {"reports": [report], "updates": [updated]},
        started=0.0,
        seconds={"job": job, "broadcast": 0.0},
        moved={"weights": 0, "shards": 0},
        gradient=None,
        direct=True,
    )
    return float(found.phases["launch"])


def test_an_update_counts_once_whichever_task_makes_it() -> None:
    apart = {"weights_in": 1.0, "data": 1.0, "compute": 4.0}
    assert launch(apart, 2.0, 10.0) == pytest.approx(2.0)
    assert launch({"update": 2.0, **apart}, 2.0, 10.0) == pytest.approx(2.0)


def test_a_step_that_is_slower_than_its_groups_mean_has_no_negative_phase() -> None:
    assert launch({"compute": 4.0}, 1.0, 3.0) == 0.0
