"""Files that hold rows, gradients or weights are for their owner alone, whatever the umask says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sparkdl.compute.local_store import LocalStore, fit_folder
from sparkdl.compute.partition_state import PartitionState
from sparkdl.compute.worker import forget_fit
from sparkdl.data.columns import ColumnPlan
from sparkdl.data.store.partition import delete_store, write_partition
from sparkdl.wire import private
from sparkdl.wire.frame import pack


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): oct(path.lstat().st_mode & 0o777)
        for path in (folder, *folder.rglob("*"))
    }


def assert_private(folder: Path) -> None:
    found = modes(folder)
    assert any((folder / name).is_file() for name in found)
    for name, mode in found.items():
        assert mode == ("0o700" if (folder / name).is_dir() else "0o600"), found


@pytest.fixture
def local(tmp_path: Path) -> Path:
    (tmp_path / "local").mkdir()  # by Spark
    return tmp_path / "local"


def test_partitions_of_the_store(local: Path) -> None:
    plans = (ColumnPlan("features", "x"), ColumnPlan("label", "y"))
    seen: list[dict[str, str]] = []

    def batches() -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        yield np.arange(3), {"features": np.zeros((3, 2), "float32"), "label": np.arange(3)}
        seen.append(modes(local / "sparkdl"))  # the draft, while it is written

    write_partition("store", 0, "executor", plans, batches())
    assert_private(local / "sparkdl")
    assert set(seen[0].values()) == {"0o700", "0o600"}
    delete_store("store")


def test_files_of_a_fit(local: Path) -> None:
    LocalStore(f"{fit_folder('fit')}/model").leave("0-3", [b"weights"])
    files = LocalStore(f"{fit_folder('fit')}/partitions")
    PartitionState(files, 1, 0, 0).write([pack({"kind": "optimizer"}, {"momentum": np.ones(3)})])
    PartitionState(files, 1, 1, 0).pass_on(None)
    assert_private(local / "sparkdl-fits")
    forget_fit("fit")
    assert modes(local / "sparkdl-fits") == {".": "0o700"}


def test_a_folder_and_those_above_it(tmp_path: Path) -> None:
    private.make_folder(tmp_path / "a" / "b" / "c")
    private.make_folder(tmp_path / "a" / "b" / "c")
    assert set(modes(tmp_path / "a").values()) == {"0o700"}
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        private.make_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        private.make_folder(tmp_path / "file" / "below")
