"""Checkpoints with embedding variables: changes between complete ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.data import as_dataset
from test_train_keyed import PARTS, data, keyed, rows_of, trainer

from sparkdl import Dataset
from sparkdl.__main__ import main
from sparkdl.exceptions import ConfigError
from sparkdl.train import Checkpoint, EveryIterations, MaxIteration, load_weights
from sparkdl.train.checkpoint import CheckpointFolder, read_point

__all__ = ["data"]  # a fixture

CHANGING: dict[str, Any] = {"min_count": 2, "max_age": 4, "min_norm": 0.09, "evict_every": 3}


def fit(data: Dataset, end: int, *hooks: Checkpoint, resume: Any = False) -> Any:
    options: dict[str, Any] = {"iterations_per_job": 2, "batch_size": 20, "end_when": MaxIteration(end)}
    return trainer(keyed(**CHANGING), hooks=hooks, **options).fit(data, resume=resume)


def checkpoint(path: Path, **options: Any) -> Checkpoint:
    return Checkpoint(path, EveryIterations(2), **{"full_every": 3, "keep": None, **options})


def bases(path: Path) -> dict[int, int | None]:
    return {n: CheckpointFolder(path).describe(p, verify=True)["base"] for n, p in _complete(path).items()}


def problems(path: Path) -> list[str]:
    folder = CheckpointFolder(path)
    return [folder.describe(p, verify=True)["problem"] for p in folder.complete().values()]


def _complete(path: Path) -> dict[int, str]:
    return CheckpointFolder(path).complete()


@pytest.mark.parametrize("shared", [False, True])
def test_a_run_resumes_from_changes_with_the_bits_of_complete_ones(
    data: Dataset, tmp_path: Path, shared: bool
) -> None:
    path = tmp_path / "run"
    whole = fit(data, 16, checkpoint(tmp_path / "whole", full_every=1))
    hook = checkpoint(path, shared=shared)
    fit(data, 12, hook)
    assert bases(path) == {2: None, 4: 2, 6: 4, 8: None, 10: 8, 12: 10}
    assert problems(path) == [""] * 6
    for number in (6, 12):
        copy, complete = keyed(**CHANGING), keyed(**CHANGING)
        load_weights(_complete(path)[number], copy)
        load_weights(_complete(tmp_path / "whole")[number], complete)
        assert rows_of(copy) == rows_of(complete)
    resumed = fit(data, 16, hook, resume=True)
    assert rows_of(resumed.module) == rows_of(whole.module)
    assert bases(path)[14] is None


def test_changes_are_restored_to_any_number_of_partitions(data: Dataset, spark: Any, tmp_path: Path) -> None:
    complete, changes = tmp_path / "complete", tmp_path / "changes"
    fit(data, 6, checkpoint(complete, full_every=1))
    fit(data, 6, checkpoint(changes))
    found = []
    with as_dataset(spark, [PARTS[0], PARTS[2]]) as other:
        for path in (complete, changes):
            options: dict[str, Any] = {"batch_size": 20, "end_when": MaxIteration(4)}
            training = trainer(keyed(**CHANGING), **options)
            found.append(rows_of(training.fit(other, resume=_complete(path)[6], rows="new").module))
            hook = checkpoint(path, full_every=8)
            training = trainer(keyed(**CHANGING), hooks=[hook], **options)
            found.append(rows_of(training.fit(other, resume=True, rows="new").module))
            copy = keyed(**CHANGING)
            load_weights(_complete(path)[10], copy)
            assert rows_of(copy) == found[-1]
    assert len(set(map(str, found))) == 1
    assert [bases(path)[n] for path in (complete, changes) for n in (8, 10)] == [6, 8, 6, 8]
    assert read_point(_complete(changes)[10]).state.iteration == 10


def test_older_checkpoints_are_kept_as_long_as_they_are_needed(data: Dataset, tmp_path: Path) -> None:
    fit(data, 12, checkpoint(tmp_path, keep=1))
    assert bases(tmp_path) == {8: None, 10: 8, 12: 10}
    fit(data, 14, checkpoint(tmp_path, keep=1), resume=True)
    assert bases(tmp_path) == {14: None}


def test_a_missing_or_damaged_link_is_named(
    data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    fit(data, 6, checkpoint(path))
    shutil.copytree(path, tmp_path / "copy")
    (shard,) = (path / "iteration-00000004").glob("shard-00000*")
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    with pytest.raises(ConfigError, match="iteration-00000004 is damaged: shard-00000-of-00003"):
        read_point(_complete(path)[6])
    assert "iteration-00000004" in problems(path)[2]
    with pytest.warns(UserWarning, match="set aside"):
        point = checkpoint(path).resume_point()
    assert point is not None
    assert point.state.iteration == 2
    other = tmp_path / "copy"
    shutil.rmtree(other / "iteration-00000004")
    with pytest.raises(ConfigError, match="iteration-00000004 is not what was written.*not there"):
        load_weights(_complete(other)[6], keyed(**CHANGING))
    assert main(["checkpoints", str(other)]) == 1
    assert "needs" in capsys.readouterr().out


def test_changes_are_listed_and_exported(
    data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = fit(data, 6, checkpoint(tmp_path / "run"))
    assert main(["checkpoints", str(tmp_path / "run"), "--verify"]) == 0
    assert "sound, rows changed since 4" in capsys.readouterr().out
    assert main(["checkpoints", str(tmp_path / "run"), "--json"]) == 0
    assert [json.loads(line)["base"] for line in capsys.readouterr().out.splitlines()] == [None, 2, 4]
    file = tmp_path / "weights.safetensors"
    assert main(["checkpoints", str(tmp_path / "run"), "--export", str(file)]) == 0
    found, expected = load_file(file), result.module.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
