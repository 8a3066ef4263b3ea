"""Files that tasks leave for later tasks: on disk, or in the memory of the one process that there is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sparkdl import frame
from sparkdl.train import executor_files
from sparkdl.train.executor_files import (
    delete_files,
    delete_fit,
    fit_folder,
    forget_frames,
    hold_files,
    hold_frames,
    keep_lent,
    read_file,
    read_frames,
    take_frames,
    write_file,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    yield f"{fit_folder('fit')}/some"
    hold_files(False)
    delete_fit("fit")


@pytest.mark.parametrize("parts", [[], [b""], [b"a", b"", b"b" * 100], [b"x" * 300_000], [b"1"] * 3000])
def test_what_is_written_is_read(folder: str, parts: list[bytes]) -> None:
    write_file(f"{folder}/file", list(parts))
    data = read_file(f"{folder}/file")
    assert data is not None
    assert bytes(data) == b"".join(parts)
    assert os.listdir(folder) == ["file"]


def test_what_is_not_there_is_none(folder: str) -> None:
    assert read_file(f"{folder}/file") is None
    delete_files(folder, lambda name: True)


def test_who_has_read_a_file_keeps_it(folder: str) -> None:
    write_file(f"{folder}/file", [b"y" * 300_000])
    data = read_file(f"{folder}/file")
    delete_files(folder, lambda name: name == "file")
    assert data is not None
    assert bytes(data[:3]) == b"yyy"
    assert read_file(f"{folder}/file") is None


def read(path: str) -> list[bytes] | None:
    frames = read_frames(path)
    return None if frames is None else [frame.join(frame.parts(one)) for one in frames]


@pytest.mark.parametrize("held", [True, False])
def test_held_frames_behave_as_files(folder: str, held: bool) -> None:
    hold_files(held)
    for name in ("one", "other"):
        hold_frames(f"{folder}/{name}", [[name.encode(), b"!"], b"whole"])
    assert os.path.exists(folder) is not held
    assert read(f"{folder}/one") == [b"one!", b"whole"]
    hold_files(not held)  # what is there stays there
    assert read(f"{folder}/other") == [b"other!", b"whole"]
    hold_frames(f"{folder}/one", [b"again"])
    assert read(f"{folder}/one") == [b"again"]
    delete_files(folder, lambda name: name == "one")
    assert read(f"{folder}/one") is None
    assert read(f"{folder}/other") == [b"other!", b"whole"]
    delete_fit("fit")
    assert read(f"{folder}/other") is None
    assert not executor_files._held


@pytest.mark.parametrize("held", [True, False])
def test_held_frames_are_copied_before_memory_that_was_lent_is_used(folder: str, held: bool) -> None:
    hold_files(held)
    array = np.arange(3)
    for name, lent in (("lent", True), ("given", False), ("read", True)):
        hold_frames(f"{folder}/{name}", [frame.pack({}, {"array": array})], lent=lent)
    forget_frames(f"{folder}/read")
    (data,) = read_frames(f"{folder}/lent") or []
    assert np.shares_memory(frame.unpack(data).arrays["array"], array) is held
    keep_lent()
    assert (read_frames(f"{folder}/read") is None) is held
    array[0] = 9
    for name, first in (("lent", 0), ("given", 9 if held else 0)):
        (data,) = read_frames(f"{folder}/{name}") or []
        assert frame.unpack(data).arrays["array"].tolist() == [first, 1, 2]
    assert not executor_files._lent


@pytest.mark.parametrize("held", [True, False])
def test_held_frames_can_be_taken_once(folder: str, held: bool) -> None:
    hold_files(held)
    hold_frames(f"{folder}/file", [b"data"])
    taken = take_frames(f"{folder}/file")
    assert taken is not None
    assert len(taken) == 1
    assert (take_frames(f"{folder}/file") is None) is held
    assert take_frames(f"{folder}/none") is None


def test_large_and_lasting_files_are_on_disk(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_files, "_MOST_HELD", 3)
    hold_files(True)
    hold_frames(f"{folder}/small", [b"123"])
    hold_frames(f"{folder}/large", [[b"12", b"34"]])
    write_file(f"{folder}/lasting", [b"1"])
    assert sorted(os.listdir(folder)) == ["large", "lasting"]
    assert read(f"{folder}/large") == [b"1234"]
