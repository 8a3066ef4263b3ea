"""Every command shows examples, and every example does what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tarfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import write_csv
from support.checkpoints import save
from support.models import mlp
from support.runs import FakeRun

from sparkdl import __main__
from sparkdl.cli import catalog, init, notebook, rehearse
from sparkdl.cli.doctor import command as doctor
from sparkdl.cli.files import Files
from sparkdl.cli.submit import packing
from sparkdl.summary import JsonLines
from sparkdl.train.checkpoint import CheckpointFolder
from sparkdl.train.state import TrainState

COMMANDS = ("init", "submit", "plan", "profile", "notebook", "serve", "runs", "doctor", "checkpoints")

PLAN = {"text": "best: 4 executors", "plan": {}, "job": "[resources]\n"}
PROFILE = {
    "name": "Net",
    "facts": {"step": 0.01},
    "parts": {"rows": 0.004, "exchange": 0.006},
    "layers": [{"name": "0", "kind": "Linear", "parameters": 9, "forward": 1e-3, "backward": 2e-3}],
    "bottleneck": "exchange",
    "advice": ["fewer executors"],
}


def help_of(command: str, capsys: Any) -> str:
    with pytest.raises(SystemExit) as exit_info:
        __main__.main([command, "--help"])
    assert exit_info.value.code == 0
    return str(capsys.readouterr().out)


def examples(text: str) -> list[list[str]]:
    lines = text[text.index("examples:") :].splitlines()
    found = [
        shlex.split(line, comments=True) for line in lines if line.startswith(("  sparkdl ", "  python "))
    ]
    return [words[1:] if words[0] == "sparkdl" else words[3:] for words in found]


def test_these_are_all_commands(capsys: Any) -> None:
    assert {
        re.sub(r"\.command$", "", module.__name__).split(".")[-1] for module in __main__._COMMANDS
    } == set(COMMANDS)
    with pytest.raises(SystemExit):
        __main__.main(["--help"])
    out = capsys.readouterr().out
    assert set(COMMANDS) <= set(out.split())
    assert "sparkdl COMMAND --help" in out


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the examples name."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    Path("job.toml").write_text('master = "yarn"\nscript = "train.py"\n')
    with tarfile.open("environment.tar.gz", "w:gz") as archive:
        archive.add("train.py")
    numbers = [float(n) for n in range(9)]
    species = {"species": ["a", "b", "c"] * 3, "width": numbers}
    homes = {"price": numbers, "rooms": numbers, "area": numbers}
    pq.write_table(pa.table(species), "iris.parquet")
    pq.write_table(pa.table(homes), "homes.parquet")
    pq.write_table(pa.table({"fare": numbers, "distance": numbers}), "rides.parquet")
    write_csv(pa.table(homes), "homes.csv")
    FakeRun().train(JsonLines("runs/a.jsonl"))
    Path("token").write_text("0123456789abcdef")
    Path("token").chmod(0o600)
    checkpoints = CheckpointFolder(tmp_path / "runs" / "lenet")
    checkpoints.create()
    save(checkpoints, mlp(), TrainState(iteration=1200), {})
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_run(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    here = init.read_table
    monkeypatch.setattr(packing, "packed_path", lambda prefix: folder / "packed.tar.gz")
    for check in ("check_driver", "check_session"):
        monkeypatch.setattr(doctor, check, lambda *_: None)
    monkeypatch.setattr(doctor, "render", lambda report: "it can train")
    monkeypatch.setattr(
        init, "read_table", lambda path, *rest, **options: here(_local(path), *rest, **options)
    )
    monkeypatch.setattr(catalog, "opened", lambda *_: nullcontext(Files("rides.parquet")))
    monkeypatch.setattr("sparkdl.serve.server.run.Server", lambda path, options, **_: (path, options))
    monkeypatch.setattr("sparkdl.serve.server.run.run", print)
    answers = {"plan": PLAN, "profile": PROFILE}
    monkeypatch.setattr(rehearse, "answer_of", lambda args, kind, **_: (0, answers[kind]))
    monkeypatch.setattr(notebook, "find_spec", lambda name: name)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(
        notebook, "forwarding", lambda: nullcontext(SimpleNamespace(run=lambda *_: 0, stopped=False))
    )
    Path("notebooks").mkdir()
    found = examples(help_of(command, capsys))
    assert len(found) >= 3
    for words in found:
        if any(word.startswith("s3://") for word in words):
            continue  # there is no such store here
        if command == "submit" and "--dry-run" not in words:
            words.insert(1, "--dry-run")
        assert __main__.main(words) == 0, words
        assert capsys.readouterr().out.strip(), words


def _local(path: str) -> str:
    """Return the table that stands for one on a cluster."""
    return "homes.parquet" if path.startswith("hdfs://") else path


def test_the_command_is_installed_under_its_name() -> None:
    script = Path(sys.executable).with_name("sparkdl")
    if not script.exists():
        pytest.skip("sparkdl is on the path only")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("sparkdl ")
