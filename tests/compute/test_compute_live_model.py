"""Files of versions of the model stay as long as a process of the executor may need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkdl.compute.live_model import LiveModel, changes_to_keep, delete_outdated
from sparkdl.compute.local_store import LocalStore
from sparkdl.compute.start import ModelVersion, Start
from sparkdl.data.store.manifest import Manifest


def left(folder: Path, start: ModelVersion, version: ModelVersion, changes: int, *names: str) -> set[str]:
    """Return which files are left once a group has made a version."""
    files = LocalStore(str(folder))
    for name in names:
        files.write(name, [b""])
    group = Start(start, version.generation, None, False, Manifest({}))
    delete_outdated(files, group, version, changes)
    return set(os.listdir(folder))


def test_the_start_of_the_group_stays_and_those_before_it_go(tmp_path: Path) -> None:
    start, version = ModelVersion(0, 10), ModelVersion(0, 14)
    assert left(tmp_path, start, version, 2, "0-5", "0-9", "0-10", "0-14") == {"0-10", "0-14"}


def test_the_last_changes_stay(tmp_path: Path) -> None:
    names = [f"0-{n}.change" for n in range(1, 15)]
    found = left(tmp_path, ModelVersion(0, 0), ModelVersion(0, 14), 5, *names)
    assert found == set(names[-6:])  # that to the version, and five before it


@pytest.mark.parametrize("slots", range(1, 8))
def test_processes_that_take_turns_find_all_changes_that_they_have_missed(tmp_path: Path, slots: int) -> None:
    """Of changes of some rows each is needed; Spark gives a task to who has been idle for longest."""
    keeps, start = changes_to_keep(slots, rows=True), ModelVersion(0, 0)
    for made in range(1, 4 * slots):
        version = ModelVersion(0, made)
        there = left(tmp_path, start, version, keeps, version.part("change"))
        had = max(0, made + 1 - slots)  # what the next process had when it ran last
        assert {ModelVersion(0, n).part("change") for n in range(had + 1, made + 1)} <= there
    assert len(there) <= slots + 2


def test_whole_changes_need_none_before_them_and_nobody_keeps_many() -> None:
    assert {changes_to_keep(slots, rows=False) for slots in (1, 8, 1000)} == {2}
    assert 32 <= changes_to_keep(1000, rows=True) == changes_to_keep(32, rows=True) < 40


def test_gradients_go_once_the_next_version_has_taken_them(tmp_path: Path) -> None:
    names = [f"0-{n}.gradient-{rank}" for n in range(10, 15) for rank in range(2)]
    found = left(tmp_path, ModelVersion(0, 10), ModelVersion(0, 13), 5, *names)
    # A rank may be tried again in the phase in which others are.
    assert found == {name for name in names if name.startswith(("0-12", "0-13", "0-14"))}


def test_versions_of_another_generation_go_but_for_the_one_from_which_it_went_on(tmp_path: Path) -> None:
    names = ("0-9", "0-10", "0-11", "0-11.change", "1-11.change", "1-12.change", "2-12.change")
    found = left(tmp_path, ModelVersion(0, 10), ModelVersion(1, 12), 5, *names)
    assert found == {"0-10", "1-11.change", "1-12.change"}


def test_a_model_that_is_half_changed_is_no_version() -> None:
    """A task that ends in the middle of an update leaves its process to others."""
    live, version = LiveModel.__new__(LiveModel), ModelVersion(0, 3)
    live._shares, live.reports = False, []
    live._set(version)
    group = Start(version, 0, None, False, Manifest({}))
    assert live.is_between(group, version)
    assert live.begin_change() == version
    assert live.version is None
    assert not live.is_between(group, version)
    live.give_up_change(version)
    assert live.is_between(group, version)
