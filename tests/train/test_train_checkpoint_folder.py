"""Folders of checkpoints: what is not theirs stays, and one run at a time writes there."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from support.checkpoints import save
from torch import nn

from sparkdl.exceptions import CheckpointError, ConfigError
from sparkdl.train.checkpoint import CheckpointFiles, CheckpointFolder, latest, load_weights, read_point
from sparkdl.train.state import TrainState


@pytest.fixture(params=["local", "memory"])
def base(request: Any, tmp_path: Path) -> Iterator[str]:
    """A folder as a path and as a URL; the memory file system stands for stores without renames."""
    if request.param == "local":
        yield str(tmp_path)
        return
    url = f"memory://{uuid.uuid4().hex}"
    yield url
    fs = fsspec.filesystem("memory")
    if fs.exists(url):
        for path in fs.find(url):
            fs.rm_file(path)


def put(path: str, content: bytes = b"mine") -> None:
    fs, inside = fsspec.core.url_to_fs(path)
    fs.makedirs(os.path.dirname(inside), exist_ok=True)
    fs.pipe_file(inside, content)


def files(folder: str) -> list[str]:
    fs, root = fsspec.core.url_to_fs(folder)
    return sorted(os.path.relpath(path, root) for path in fs.find(root))


def write(folder: CheckpointFolder, *iterations: int) -> None:
    for iteration in iterations:
        save(folder, nn.Linear(2, 1), TrainState(iteration=iteration), {})


def made(path: str, *iterations: int) -> CheckpointFolder:
    folder = CheckpointFolder(path)
    folder.create()
    write(folder, *iterations)
    return folder


# -- what is not theirs -----------------------------------------------------------------------------


def test_create_leaves_what_others_put_there(base: str) -> None:
    others = [
        "iteration-00000008/notes.txt",
        "iteration-00000009/model.safetensors",
        "iteration-9/draft.json",
        "iteration-best/state.json",
        f".iteration-00000007.{uuid.uuid4().hex}/deeper/notes.txt",
        ".iteration-00000007.backup/model.safetensors",
    ]
    for name in others:
        put(f"{base}/{name}")
    made(base)
    assert files(base) == sorted(others)


def test_pruning_leaves_what_others_put_into_a_checkpoint(base: str) -> None:
    folder = made(base, 1, 2, 3)
    put(f"{base}/iteration-00000001/notes.txt")
    folder.prune(1)
    assert [name for name in files(base) if "00000003" not in name] == ["iteration-00000001/notes.txt"]


@pytest.mark.parametrize("name", ["run[1]", "run*", "run?", "{x}", "run {1,2}", "[y]", "a%20b", "ä b"])
def test_names_are_taken_literally(base: str, name: str) -> None:
    others = [made(f"{base}/{other}", 1, 2, 3) for other in ("run1", "x", "y", "run 1", "runs", "a b")]
    before = files(base)
    folder = made(f"{base}/{name}", 1, 2, 3)
    path = latest(f"{base}/{name}")
    assert path is not None
    load_weights(path, nn.Linear(2, 1))
    folder.set_aside(path)
    folder.prune(1)
    folder.discard(folder.begin(9))
    assert list(folder.complete()) == [2]
    assert [list(other.complete()) for other in others] == [[1, 2, 3]] * len(others)
    assert set(before) < set(files(base))


def test_what_was_set_aside_before_stays(base: str) -> None:
    folder = made(base)
    for _ in range(3):
        write(folder, 5)
        folder.set_aside(folder.complete()[5])
    aside = ["damaged-iteration-00000005", "damaged-iteration-00000005-2", "damaged-iteration-00000005-3"]
    assert sorted({os.path.dirname(name) for name in files(base)}) == aside


def test_a_checkpoint_is_never_written_over_or_into_another(base: str) -> None:
    folder = made(base, 5)
    before = files(base)
    with pytest.raises(FileExistsError, match="iteration-00000005 is there already"):
        write(folder, 5)
    assert files(base) == before
    put(f"{base}/iteration-00000006/notes.txt")
    with pytest.raises(FileExistsError, match="iteration-00000006 is there already"):
        write(folder, 6)
    assert files(base) == sorted([*before, "iteration-00000006/notes.txt"])


def test_a_checkpoint_that_appears_meanwhile_is_not_written_into(tmp_path: Path, monkeypatch: Any) -> None:
    """Two runs that finish at the same time: the rename itself fails."""
    folder = made(str(tmp_path))
    monkeypatch.setattr("sparkdl.train.checkpoint.store.CheckpointStore.exists", lambda *_: False)
    write(folder, 5)
    with pytest.raises(OSError, match="not empty"):
        write(folder, 5)
    names = {"iteration-00000005/model.safetensors", "iteration-00000005/state.json"}
    assert set(files(str(tmp_path))) == names


def test_links_are_not_followed_to_delete(tmp_path: Path) -> None:
    elsewhere = made(str(tmp_path / "elsewhere"), 1)
    folder = made(str(tmp_path / "run"), 2, 3)
    os.symlink(elsewhere.complete()[1], tmp_path / "run" / "iteration-00000001")
    os.symlink(tmp_path / "elsewhere", tmp_path / "run" / f".iteration-00000009.{uuid.uuid4().hex}")
    folder.create()
    folder.prune(1)
    assert list(elsewhere.complete()) == [1]
    assert list(folder.complete()) == [1, 3]


# -- one run at a time ------------------------------------------------------------------------------


def test_a_second_run_in_a_local_folder_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    first, second = CheckpointFolder(tmp_path), CheckpointFolder(tmp_path)
    first.claim("alice")
    write(first, 1)
    with pytest.raises(
        CheckpointError, match=rf"the run 'alice' \(process {os.getpid()} on .*folder of its own"
    ):
        second.claim("bob")
    write(first, 2)
    first.release()
    second.claim("bob")
    write(second, 3)
    second.release()
    assert list(second.complete()) == [1, 2, 3]
    assert ".running.json" not in files(str(tmp_path))


def test_on_a_store_without_locks_the_newest_run_goes_on(caplog: Any) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    first, second = CheckpointFolder(url), CheckpointFolder(url)
    first.claim("alice")
    write(first, 1)
    place = first.begin(2)
    with caplog.at_level(logging.WARNING, "sparkdl"):
        second.claim("bob")
    assert "was not given back by the run 'alice'" in caplog.text
    second.create()
    with pytest.raises(
        CheckpointError, match=r"the run 'bob' \(process .* has taken over .*resume=True"
    ) as caught:
        first.begin(2)
    assert caught.value.code == "checkpoint-folder"
    with pytest.raises(CheckpointError, match="bob"):
        first.finish(place, CheckpointFiles.of(nn.Linear(2, 1), TrainState(iteration=2), {}, None), {})
    with pytest.raises(CheckpointError, match="bob"):
        write(first, 2)
    write(second, 2, 3)
    with pytest.raises(CheckpointError, match="bob"):
        first.prune(1)
    first.release()
    write(second, 4)
    second.release()
    assert list(second.complete()) == [1, 2, 3, 4]
    third = CheckpointFolder(url)
    third.claim("carol")
    fsspec.filesystem("memory").rm_file(f"{url}/.running.json")
    with pytest.raises(FileNotFoundError, match=r"another run has used it meanwhile"):
        third.begin(9)


def test_a_run_that_was_killed_holds_nothing_back(tmp_path: Path) -> None:
    """Nor does a child that it has left behind."""
    program = """
        import os, sys, time
        from torch import nn
        from sparkdl.train.checkpoint import CheckpointFiles, CheckpointFolder
        from sparkdl.train.state import TrainState
        folder = CheckpointFolder(sys.argv[1])
        folder.claim("killed")
        files = CheckpointFiles.of(nn.Linear(2, 1), TrainState(iteration=1), {}, None)
        folder.finish(folder.begin(1), files, {})
        folder.begin(2)
        child = os.fork()
        if child:
            print(child, flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        folder = CheckpointFolder(tmp_path)
        with pytest.raises(CheckpointError, match=rf"'killed' \(process {process.pid} on "):
            folder.claim("next")
        process.send_signal(signal.SIGKILL)
        process.wait()
        folder.claim("next")
        os.kill(child, signal.SIGKILL)
    folder.create()
    write(folder, 2)
    folder.release()
    assert {os.path.dirname(name) for name in files(str(tmp_path))} == {
        "iteration-00000001",
        "iteration-00000002",
    }


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"id": 1}', b"[" * 100_000])
def test_a_damaged_claim_holds_nothing_back(base: str, content: bytes) -> None:
    put(f"{base}/.running.json", content)
    folder = CheckpointFolder(base)
    folder.claim("next")
    put(f"{base}/.running.json", content)
    with pytest.raises(CheckpointError, match="has taken over"):
        folder.begin(1)
    folder.release()


# -- what state.json may say ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../x/authorized_keys",
        "/tmp/x/authorized_keys",
        "memory://x/y",
        "shard-00000-of-00001.safetensors/../../x",
        "shard-00001-of-00002.safetensors",
        "shard-\u0660\u0660\u0660\u0660\u0660-of-00001.safetensors",
        "state.json",
        "draft.json",
        "",
        ".",
        "..",
    ],
)
def test_only_the_names_of_a_checkpoints_files_are_read(base: str, name: str, tmp_path: Path) -> None:
    folder = made(f"{base}/run", 1)
    path = folder.complete()[1]
    put(f"{base}/x/authorized_keys", b"secret")
    mark = json.loads(fsspec.core.url_to_fs(base)[0].cat_file(f"{path}/state.json"))
    del mark["seal"]
    for names in (
        {name: "0" * 64, **mark["sha256"]},
        {**mark["sha256"], "training.safetensors": "0" * 64, name: "0" * 64},
    ):
        put(f"{path}/state.json", json.dumps({**mark, "sha256": names}).encode())
        before = files(base)
        url = latest(f"{base}/run")
        assert url is not None
        for read in (read_point, lambda p: load_weights(p, nn.Linear(2, 1))):
            with pytest.raises(ConfigError, match=r"names the file .*, which no checkpoint has"):
                read(url)
        assert "which no checkpoint has" in folder.describe(path, verify=True)["problem"]
        assert files(base) == before
