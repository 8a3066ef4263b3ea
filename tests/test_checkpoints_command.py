"""The command that looks at checkpoints."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.checkpoints import save
from support.models import mlp

from sparkdl.__main__ import main
from sparkdl.exceptions import ConfigError
from sparkdl.train.checkpoint import CheckpointFolder, load_weights
from sparkdl.train.state import TrainState


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoints = CheckpointFolder(tmp_path / "run")
    checkpoints.create()
    for iteration in (5, 10):
        state = TrainState(epoch=iteration // 5, iteration=iteration, loss=1 / iteration)
        save(checkpoints, mlp(seed=iteration), state, {"val/accuracy": 0.5})
    return tmp_path / "run"


def test_it_lists(folder: Path, capsys: Any) -> None:
    assert main(["checkpoints", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:3] == ["5", "1", "0.2"]
    assert lines[2].endswith("complete")


def test_it_verifies(folder: Path, capsys: Any) -> None:
    assert main(["checkpoints", str(folder), "--verify", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["iteration"], row["problem"]) for row in rows] == [(5, ""), (10, "")]
    weights = folder / "iteration-00000010" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    assert main(["checkpoints", str(folder), "--verify"]) == 1
    assert "damaged: model.safetensors" in capsys.readouterr().out
    assert main(["checkpoints", str(folder), "--export", str(folder / "x")]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--iteration", "5"], "--iteration says which"), (["--json", "--export", "x"], "give one of them")],
)
def test_options_that_would_do_nothing(folder: Path, options: list[str], message: str, capsys: Any) -> None:
    assert main(["checkpoints", str(folder), *options]) == 1
    assert message in capsys.readouterr().err


def test_it_exports_a_plain_state_dict(folder: Path, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "weights.safetensors"
    assert main(["checkpoints", str(folder), "--export", str(file), "--iteration", "5"]) == 0
    module = mlp(seed=1)
    module.load_state_dict(load_file(file))
    for name, value in mlp(seed=5).state_dict().items():
        assert torch.equal(module.state_dict()[name], value)
    assert main(["checkpoints", str(folder), "--export", str(file), "--iteration", "7"]) == 1
    assert "there are 5, 10" in capsys.readouterr().err


def test_what_was_exported_is_verified_when_it_is_loaded(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    assert main(["checkpoints", str(folder), "--export", str(file)]) == 0
    beside = tmp_path / "weights.safetensors.sha256"
    sound = file.read_bytes()
    assert beside.read_text() == f"{hashlib.sha256(sound).hexdigest()}  weights.safetensors\n"
    module = mlp(seed=1)
    load_weights(file, module)
    for name, value in mlp(seed=10).state_dict().items():
        assert torch.equal(module.state_dict()[name], value)
    for damaged in (sound[:-1] + bytes([sound[-1] ^ 1]), sound[:-5], b""):
        file.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"weights\.safetensors is damaged: the checksum is") as caught:
            load_weights(file, module)
        assert caught.value.code == "config-damaged"
    file.write_bytes(sound)
    for text in ("", "zz", "\xff", "0" * 64):
        beside.write_text(text)
        with pytest.raises(ConfigError, match="is damaged"):
            load_weights(file, module)
    beside.unlink()  # as other programs write it: only the structure is checked
    load_weights(file, module)
    for damaged in (sound[:-5], b"", sound[:8] + b"x" + sound[9:]):
        file.write_bytes(damaged)
        with pytest.raises(ConfigError, match="cannot be read"):
            load_weights(file, module)
    with pytest.raises(ConfigError):
        load_weights(tmp_path / "nothing.safetensors", module)


def test_odd_values_are_no_traceback(folder: Path, capsys: Any) -> None:
    mark = folder / "iteration-00000010" / "state.json"
    content = json.loads(mark.read_text())
    del content["seal"]
    mark.write_text(json.dumps({**content, "state": {"epoch": [1], "loss": {}, "best_score": "\x1b[2J"}}))
    (folder / "iteration-00000005" / "state.json").write_text(
        json.dumps({**content, "sha256": {"../x": "y"}})
    )
    assert main(["checkpoints", str(folder)]) == 1
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert "names the file '../x', which no checkpoint has" in first
    assert second.split()[:4] == ["10", "?", "?", "?"]
    (folder / "iteration-00000005" / "state.json").write_bytes(b"[" * 100_000)
    assert main(["checkpoints", str(folder), "--verify", "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "state.json is not what was written" in rows[0]["problem"]


def test_an_empty_folder_is_told(tmp_path: Path, capsys: Any) -> None:
    assert main(["checkpoints", str(tmp_path)]) == 1
    assert "no complete checkpoint" in capsys.readouterr().err
