"""Files that tasks leave for later tasks: on disk, or in the memory of the one process that there is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from support.peers import open_files

from sparkdl.compute import local_store
from sparkdl.compute.local_store import LocalStore, decode, encode, read_file, write_file
from sparkdl.wire import frame


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "fit" / "some")


def store(folder: str, held: bool = False) -> LocalStore:
    found = LocalStore(folder)
    found.in_memory = held
    return found


def test_frames_are_written_one_after_the_other() -> None:
    frames = [[b"a" * n, b"b"] for n in (0, 5, 63, 64)]
    encoded = b"".join(map(bytes, encode(frames)))
    assert [bytes(f) for f in decode(encoded)] == [b"a" * n + b"b" for n in (0, 5, 63, 64)]


@pytest.mark.parametrize("parts", [[], [b""], [b"a", b"", b"b" * 100], [b"x" * 300_000], [b"1"] * 3000])
def test_what_is_written_is_read(folder: str, parts: list[bytes]) -> None:
    write_file(f"{folder}/file", list(parts))
    data = read_file(f"{folder}/file")
    assert data is not None
    assert bytes(data) == b"".join(parts)
    assert os.listdir(folder) == ["file"]


def test_no_file_stays_open_whether_it_is_written_or_not(folder: str) -> None:
    write_file(f"{folder}/first", [b"1"])
    os.mkdir(f"{folder}/taken")
    before = open_files()
    write_file(f"{folder}/second", [b"2"])
    with pytest.raises(OSError, match="taken"):  # what cannot be replaced by a file
        write_file(f"{folder}/taken", [b"3"])
    assert not open_files() - before
    assert sorted(os.listdir(folder)) == ["first", "second", "taken"]


def test_files_are_private_whatever_the_umask(folder: str) -> None:
    before = os.umask(0)
    try:
        store(folder).leave("file", [b"data"])
    finally:
        os.umask(before)
    modes = [
        stat.S_IMODE(os.stat(path).st_mode) for path in (f"{folder}/file", folder, os.path.dirname(folder))
    ]
    assert modes == [0o600, 0o700, 0o700]


def test_what_is_not_there_is_none(folder: str) -> None:
    assert store(folder).read("file") is None
    store(folder).discard(lambda name: True)


def test_who_has_read_a_file_keeps_it(folder: str) -> None:
    files = store(folder)
    files.leave("file", [b"y" * 300_000])
    (data,) = files.read("file") or []
    files.discard(lambda name: name == "file")
    assert bytes(data[:3]) == b"yyy"  # type: ignore[arg-type, index]
    assert files.read("file") is None


def read(files: LocalStore, name: str) -> list[bytes] | None:
    frames = files.read(name)
    return None if frames is None else [frame.join(frame.parts(one)) for one in frames]


@pytest.mark.parametrize("held", [True, False])
def test_held_frames_behave_as_files(folder: str, held: bool) -> None:
    files = store(folder, held)
    for name in ("one", "other"):
        files.leave(name, [[name.encode(), b"!"], b"whole"])
    assert os.path.exists(folder) is not held
    assert read(files, "one") == [b"one!", b"whole"]
    files.in_memory = not held  # what is there stays there
    assert read(files, "other") == [b"other!", b"whole"]
    files.leave("one", [b"again"])
    assert read(files, "one") == [b"again"]
    files.discard(lambda name: name == "one")
    assert read(files, "one") is None
    assert read(files, "other") == [b"other!", b"whole"]
    files.delete()
    assert read(files, "other") is None
    assert not os.path.exists(folder)


@pytest.mark.parametrize("held", [True, False])
def test_held_frames_are_copied_before_memory_that_was_lent_is_used(folder: str, held: bool) -> None:
    files, array = store(folder, held), np.arange(3)
    for name, lent in (("lent", True), ("given", False), ("read", True)):
        files.leave(name, [frame.pack({}, {"array": array})], lent=lent)
    files.forget("read")
    (data,) = files.read("lent") or []
    assert np.shares_memory(frame.unpack(data).arrays["array"], array) is held
    files.keep_lent()
    assert (files.read("read") is None) is held
    array[0] = 9
    for name, first in (("lent", 0), ("given", 9 if held else 0)):
        (data,) = files.read(name) or []
        assert frame.unpack(data).arrays["array"].tolist() == [first, 1, 2]


@pytest.mark.parametrize("held", [True, False])
def test_held_frames_can_be_taken_once(folder: str, held: bool) -> None:
    files = store(folder, held)
    files.leave("file", [b"data"])
    taken = files.take("file")
    assert taken is not None
    assert len(taken) == 1
    assert (files.take("file") is None) is held
    assert files.take("none") is None


def test_large_and_lasting_files_are_on_disk(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_store, "_MOST_HELD", 3)
    files = store(folder, held=True)
    files.leave("small", [b"123"])
    files.leave("large", [[b"12", b"34"]])
    files.write("lasting", [b"1"])
    assert sorted(os.listdir(folder)) == ["large", "lasting"]
    assert read(files, "large") == [b"1234"]


def test_a_link_takes_the_place_of_an_earlier_one(folder: str) -> None:
    files = store(folder)
    assert not files.link("one", "two")
    files.write("one", [b"1"])
    files.write("two", [b"2"])
    assert files.link("one", "two")
    assert read(files, "two") == [b"1"]


def test_what_is_held_for_a_while_becomes_files(tmp_path: Path) -> None:
    for in_memory in (True, False):
        one, another = (store(str(tmp_path / str(in_memory)), in_memory) for _ in range(2))
        with one.holding():
            one.leave("a", [b"frame"])
            assert another.read("a") is None
        assert one.read("a") is not None
        assert (another.read("a") is None) is in_memory
        one.leave("b", [b"frame"])
        assert (another.read("b") is None) is in_memory


def test_what_is_held_is_renamed_and_taken_though_it_is_empty(folder: str) -> None:
    files = store(folder)
    with files.holding():
        files.leave("one", [])
        assert files.link("one", "two")
        assert files.take("one") is None
        assert files.take("two") == []
