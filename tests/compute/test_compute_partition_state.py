import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from sparkdl.compute.local_store import LocalStore
from sparkdl.compute.partition_state import PartitionState
from sparkdl.wire import frame
from sparkdl.wire.frame import Parts
from sparkdl.wire.held import Owned, Shared


@pytest.fixture
def files(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "files"))


def at(files: LocalStore, iteration: int, since: int = 0) -> PartitionState:
    return PartitionState(files, 3, iteration, since)


def state(values: object) -> Parts:
    return frame.pack({"kind": "state"}, {"v": np.asarray(values, np.float32)})


def written(files: LocalStore) -> list[str]:
    return sorted(os.listdir(files._folder)) if os.path.isdir(files._folder) else []


def test_each_iteration_has_a_version_for_those_that_run_again(files: LocalStore) -> None:
    assert at(files, 0).take() is None
    for iteration in range(4):
        at(files, iteration, since=1).write([state([iteration + 1])])
    assert written(files) == ["3-1", "3-3", "3-4"]
    for _ in range(2):
        found = at(files, 3).take()
        assert found is not None
        assert isinstance(found["state"], Shared)  # with others who read the file
        assert found["state"].value.arrays["v"] == [3]


def test_a_group_in_one_process_writes_its_last_version_alone(files: LocalStore) -> None:
    at(files, 3).write([state([0])])
    values = np.zeros(1, np.float32)
    with files.holding():
        for iteration in range(5, 9):
            found = at(files, iteration - 1, since=4).take()
            assert found is not None
            if iteration > 5:  # what was left is the caller's, and the same memory
                assert isinstance(found["state"], Owned)
                values = found["state"].value.arrays["v"]
            values += 1
            at(files, iteration - 1, since=4).write([state(values)])
            assert written(files) == ["3-4"]
    assert written(files) == ["3-4", "3-8"]
    found = at(files, 8).take()
    assert found is not None
    assert found["state"].value.arrays["v"] == [4]


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("taken", [True, False])
def test_an_iteration_may_leave_it_as_it_is(files: LocalStore, held: bool, taken: bool) -> None:
    at(files, 0).write([state([7])])
    with files.holding() if held else nullcontext():
        if held:
            at(files, 1).write([state([7])])
        iteration = 2 if held else 1
        at(files, iteration).pass_on(at(files, iteration).take() if taken else None)
        found = at(files, iteration + 1).take()
    assert found is not None
    assert found["state"].value.arrays["v"] == [7]


def test_nothing_is_lost_where_nothing_was(files: LocalStore) -> None:
    with files.holding():
        at(files, 0).pass_on(None)
        assert at(files, 1).take() == {}
    assert at(files, 2).take() is None
    at(files, 2).pass_on(None)
    assert at(files, 3).take() is None
