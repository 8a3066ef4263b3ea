"""The matrix of ``benchmarks/characterise.py`` is well-formed, and recordings are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import characterise
import keeping
import pytest
from characterise_cases import ALL, matrix
from characterise_parts import LAYOUTS, MAKES, ROWS

from sparkdl.exceptions import ConfigError
from sparkdl.train import TrainConfig

CASES = matrix()


def names_of_this_tree() -> str:
    try:
        TrainConfig(exchange="driver")  # type: ignore[arg-type]
    except ConfigError:
        return "old"
    return "new"


def test_names_are_unique_and_say_what_a_case_is() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert all(case.name.startswith(f"{case.plan}/{case.layout}/") for case in CASES)


def test_rows_fill_their_partitions() -> None:
    assert {sum(sizes) for sizes in LAYOUTS.values()} == {ROWS}
    assert all(len(make()) == ROWS for make in MAKES.values())


def test_each_plan_meets_each_layout() -> None:
    met = {(case.plan, case.layout) for case in CASES}
    assert met >= {(plan, layout) for plan in ALL for layout in LAYOUTS}


def test_options_are_accepted() -> None:
    names = names_of_this_tree()
    for case in CASES:
        options = characterise.options_of(case, names)
        TrainConfig(**{name: value for name, value in options.items() if name not in ("loss", "optimizer")})


def recording(**cases: Any) -> dict[str, Any]:
    return {"about": {"torch": "2", "names": "old"}, "cases": cases}


def test_differences_are_told_by_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "before.json"
    before = recording(
        a={"weights": "1", "seconds": 1}, b={"weights": "1", "losses": "1"}, c={"weights": "1"}
    )
    path.write_text(json.dumps(before))
    after = recording(a={"weights": "1", "seconds": 2}, b={"weights": "2", "losses": "3"}, d={"weights": "1"})
    after["about"] |= {"torch": "3", "names": "new"}
    assert characterise.compare(path, after, "abcd") == 3
    assert capsys.readouterr().out.splitlines() == [
        "caution: torch is 3, was 2",
        "b: weights, losses",
        "c: not recorded now",
        "d: not recorded before",
        "1 of 4 cases are equal to the bit",
    ]


def test_a_recording_is_whole_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    keeping.write(path, recording(a={}))
    keeping.write(path, recording(a={}, b={}))
    assert list(json.loads(path.read_text())["cases"]) == ["a", "b"]
    assert [each.name for each in tmp_path.iterdir()] == ["found.json"]


def test_cases_that_failed_are_due_again() -> None:
    fine = next(case for case in CASES if not case.fails)
    fails = next(case for case in CASES if case.fails)
    assert characterise.ended_well(fine, {fine.name: {"weights": "1"}})
    assert not characterise.ended_well(fine, {fine.name: {"error": "ModelError"}})
    assert not characterise.ended_well(fine, {})
    assert characterise.ended_well(fails, {fails.name: {"error": "NonFiniteError"}})
    assert not characterise.ended_well(fails, {fails.name: {"weights": "1"}})
