"""The command that lists runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from support.checkpoints import save
from support.models import mlp
from support.runs import FakeRun

from sparkdl.__main__ import main
from sparkdl.cli.runs.command import read_lines, runs
from sparkdl.exceptions import ConfigError
from sparkdl.summary import JsonLines
from sparkdl.train.checkpoint import CheckpointFolder
from sparkdl.train.state import TrainState


def checkpoint(folder: Path, iteration: int, best: float) -> None:
    checkpoints = CheckpointFolder(folder)
    checkpoints.create()
    state = TrainState(epoch=1, iteration=iteration, step=1, loss=0.125, best_score=best)
    save(checkpoints, mlp(), state, {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run with checkpoints, two in one file, a killed one, and one with checkpoints only."""
    FakeRun(steps=2, name="digits").train(JsonLines(tmp_path / "digits" / "history.jsonl"), iterations=4)
    checkpoint(tmp_path / "digits" / "checkpoints", 4, 0.7)
    for _ in range(2):
        FakeRun(name="twice").train(JsonLines(tmp_path / "logs" / "twice.jsonl"), iterations=1)
    killed = tmp_path / "logs" / "killed.jsonl"
    FakeRun(name="killed").train(JsonLines(killed), iterations=3)
    killed.write_text("notes\n" + "\n".join(killed.read_text().splitlines()[:-2]) + '\n{"kind": "itera')
    os.utime(killed, (0, 0))
    checkpoint(tmp_path / "old", 7, float("nan"))
    return tmp_path


def test_it_lists(folder: Path, capsys: Any) -> None:
    assert main(["runs", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[0].split()) == "name started iterations epochs loss best score state path"
    assert len(lines) == 6
    (digits,) = [line for line in lines if line.startswith("digits")]
    assert "0.8 (val/accuracy)  finished     digits/history.jsonl" in digits
    assert " 4           2 " in digits


def test_files_without_a_suffix_are_runs_if_they_begin_like_one(tmp_path: Path) -> None:
    FakeRun(name="plain").train(JsonLines(tmp_path / "name"), iterations=3)
    (tmp_path / "_SUCCESS").write_bytes(b"")
    (tmp_path / "LICENSE").write_text("do as you like\n")
    assert [(run.name, run.path, run.iterations) for run in runs(str(tmp_path))] == [("plain", "name", 3)]


def test_it_says_the_same_in_json(folder: Path, capsys: Any) -> None:
    assert main(["runs", str(folder), "--json"]) == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows["killed"]["state"] == "unfinished"
    assert rows["killed"]["iterations"] == 2
    assert rows["old"] | {"path": "old", "iterations": 7, "epochs": 2, "loss": 0.125} == rows["old"]
    assert (rows["old"]["state"], rows["old"]["best_score"]) == ("checkpoints", None)
    assert (rows["digits"]["state"], rows["digits"]["reason"]) == ("finished", "end_when")


def test_a_run_that_writes_now_is_running(tmp_path: Path) -> None:
    hook, run = JsonLines(tmp_path / "now.jsonl"), FakeRun()
    hook.on_train_begin(run)
    run.iterate(hook)
    assert [found.state for found in runs(str(tmp_path))] == ["running"]
    hook.on_train_end(run)


def test_a_resumed_run_is_one_run() -> None:
    rows = [
        {"kind": "begin", "name": "a", "time": "2026-01-01", "iteration": 0},
        {"kind": "iteration", "iteration": 5, "epoch": 1, "loss": 0.5},
        {"kind": "end", "status": "FAILED"},
        {"kind": "begin", "name": "a", "time": "2026-01-02", "iteration": 4},
        {"kind": "iteration", "iteration": 6, "epoch": 2, "loss": 0.25},
    ]
    (found,) = read_lines("a.jsonl", map(json.dumps, rows))
    assert (found.started, found.iterations, found.loss, found.state) == ("2026-01-01", 6, 0.25, "unfinished")


def test_an_empty_folder_and_a_missing_one_are_told(tmp_path: Path, capsys: Any) -> None:
    assert main(["runs", str(tmp_path)]) == 1
    assert "no run in" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="is not a folder"):
        list(runs(str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="cannot be read"):
        list(runs("carrier-pigeon://x"))


FOREIGN: dict[str, bytes] = {
    "binary.jsonl": bytes(range(256)) * 10,
    "numbers.jsonl": b'{"kind": "begin", "iteration": "x", "time": 3, "name": ["a"]}\n'
    b'{"kind": "iteration", "iteration": "many", "epoch": null, "loss": {}}\n'
    b'{"kind": "begin", "iteration": "2"}\n{"kind": "end", "status": 5, "best_score": "high"}\n',
    "huge.jsonl": b'{"kind": "iteration", "iteration": 1e999, "loss": 1' + b"0" * 4000 + b"}\n",
    "deep.jsonl": b"[" * 200_000 + b"\n",
    "odd.ndjson": rb'{"kind": "begin", "name": "\ud800\u001b[2J\n", "time": "\u0000"}',
    "run/iteration-00000001/state.json": b"\xff\xfe",
    "run2/iteration-00000001/state.json": b'{"state": {"iteration": "x", "loss": [], "best_score": "?"}}',
    "run3/iteration-00000001/state.json": b'{"state": 1}',
}


def test_foreign_files_do_not_hide_the_runs(folder: Path, capsys: Any) -> None:
    for name, content in FOREIGN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "gone.jsonl").symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.jsonl")).write_text('{"kind": "begin", "name": "é"}\n')
    for arguments in ([], ["--json"]):
        assert main(["runs", str(folder), *arguments]) == 0
        out = capsys.readouterr().out
        out.encode()  # there are no halves of characters
        assert "\x1b" not in out
        assert {"digits", "twice", "killed"} <= set(out.replace('"', " ").replace(",", " ").split())


def test_a_file_that_cannot_be_read_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    opened = LocalFileSystem.open

    def refuse(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        if "twice" in path:
            raise PermissionError(13, "Permission denied", path)
        return opened(self, path, *args, **kwargs)

    monkeypatch.setattr(LocalFileSystem, "open", refuse)
    assert main(["runs", str(folder)]) == 0
    found = capsys.readouterr()
    assert "passed over logs/twice.jsonl: " in found.err
    assert "digits" in found.out


def test_pipes_and_devices_are_passed_over(folder: Path, capsys: Any) -> None:
    assert main(["runs", str(folder), "--json"]) == 0
    before = capsys.readouterr().out
    os.mkfifo(folder / "a.jsonl")
    (folder / "b.jsonl").symlink_to(folder / "a.jsonl")
    (folder / "c.ndjson").symlink_to("/dev/zero")
    (folder / "iteration-1").mkdir()
    os.mkfifo(folder / "iteration-1" / "state.json")
    assert main(["runs", str(folder), "--json"]) == 0
    assert capsys.readouterr().out == before
    (folder / "linked").mkdir()
    (folder / "linked" / "link.jsonl").symlink_to(folder / "digits" / "history.jsonl")
    assert main(["runs", str(folder), "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(before.splitlines()) + 1
