"""Checkpoints of format 1, whose shards were called slices, can be read and resumed from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import ITERATION, LAYOUT, MODULE, STATE, point, save, setting
from support.models import Everything

from sparkdl.allreduce.shard_states import unpacked
from sparkdl.exceptions import ConfigError
from sparkdl.train import latest, load_weights
from sparkdl.train.checkpoint import CheckpointFolder, read_point

HERE = Path(__file__).parents[1] / "fixtures" / "checkpoint_format_1"
NAME = f"iteration-{ITERATION:08d}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the recorded checkpoint, with its folder."""
    return Path(shutil.copytree(HERE, tmp_path / "checkpoints"))


def test_a_run_goes_on_from_it(folder: Path) -> None:
    assert latest(folder) == str(folder / NAME)
    found, expected = read_point(folder / NAME), point()
    with pytest.raises(ConfigError, match="in the middle of an epoch"):  # its batches were others
        found.check(setting())
    replace(found, state=replace(found.state, step=0)).check(setting())
    for mine, other in zip(unpacked(found.states), unpacked(expected.states), strict=True):
        assert mine.meta == other.meta
        for name, array in mine.arrays.items():
            np.testing.assert_allclose(array, other.arrays[name], rtol=1e-6, err_msg=name)
    assert (found.state.iteration, found.state.samples) == (STATE.iteration, STATE.samples)
    np.testing.assert_array_equal(found.snapshot.params, expected.snapshot.params)
    assert len(found.states_for(LAYOUT, 3)) == 3


def test_bytes_of_its_history_have_the_names_of_today(folder: Path) -> None:
    history = read_point(folder / NAME).history
    assert history.column("bytes.shards") == [12] * ITERATION
    assert "slices" not in history[0]["bytes"]
    assert history[ITERATION - 1]["phases"]["other"] == 0.0  # a phase of later releases
    assert history[ITERATION - 1]["bytes"]["files"] == 0


def test_its_weights_can_be_loaded(folder: Path) -> None:
    module = Everything(seed=2)
    load_weights(folder / NAME, module)
    for name, value in MODULE.state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name


def test_damage_is_found(folder: Path) -> None:
    path = folder / NAME / "slice-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ConfigError, match="slice-00001-of-00002") as error:
        read_point(folder / NAME)
    assert error.value.code == "config-damaged"


def test_files_of_today_are_no_part_of_it(folder: Path) -> None:
    path = folder / NAME / "state.json"
    mark: dict[str, Any] = json.loads(path.read_text())
    del mark["seal"]
    mark["sha256"] = {name.replace("slice", "shard"): value for name, value in mark["sha256"].items()}
    path.write_text(json.dumps(mark))
    with pytest.raises(ConfigError, match="names the file 'shard-"):
        read_point(folder / NAME)


def test_its_files_are_deleted_with_it(folder: Path) -> None:
    later = CheckpointFolder(folder)
    save(later, MODULE, replace(STATE, iteration=ITERATION + 1), {}, point())
    later.prune(1)
    assert not (folder / NAME).exists()
