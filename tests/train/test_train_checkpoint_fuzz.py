"""Checkpoints that disks, networks and strangers have changed: an error of ours, or the right weights."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkpoints import ITERATION, LAYOUT, MODULE, STATE, point, save, setting
from support.models import Everything
from support.mutations import (
    Damage,
    Tree,
    damaged_json,
    damaged_safetensors,
    damaged_tree,
    damaged_value,
    read_tree,
    write_tree,
)

from sparkdl.exceptions import SparkdlError
from sparkdl.train import Checkpoint
from sparkdl.train.checkpoint import CheckpointFolder, load_weights, read_point
from sparkdl.train.checkpoint.mark import sealed
from sparkdl.train.checkpoint.resume import ResumePoint

NAME = f"iteration-{ITERATION:08d}"
DAMAGES: dict[str, Damage] = {".json": damaged_json, ".safetensors": damaged_safetensors}


@pytest.fixture(scope="module")
def tree() -> Iterator[Tree]:
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = CheckpointFolder(folder)
        path = save(checkpoints, MODULE, STATE, {"valid/loss": 0.25}, point())
        yield read_tree(Path(path))


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder to write damaged checkpoints to, with files of others around it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "others").mkdir()
        (place / "others" / "model.safetensors").write_bytes(b"mine")
        yield place


def fuzz(examples: int) -> Any:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
        ],
    )


def look(tree: Tree, place: Path) -> tuple[Any, Any, Any]:
    """Read a checkpoint in all ways, and return weights, point and what a run would go on from.

    ``None`` stands for an error of ours; another one fails the test, as do files elsewhere that changed.
    """
    folder = place / "run"
    shutil.rmtree(folder, ignore_errors=True)
    path = write_tree(tree, folder / NAME)
    found = [_or_error(load, path), _or_error(read_point, path)]
    checkpoints = CheckpointFolder(folder)
    for complete in checkpoints.complete().values():
        row = checkpoints.describe(complete, verify=True)
        assert json.dumps(row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found.append(_or_error(lambda _: Checkpoint(folder).resume_point(), path))
    (kept,) = folder.iterdir()  # under its name, or set aside
    assert sorted(p.name for p in kept.iterdir()) == sorted({name.split("/")[0] for name in tree})
    assert {str(p.relative_to(place)) for p in place.iterdir()} == {"others", "run"}
    assert read_tree(place / "others") == {"model.safetensors": b"mine"}
    return found[0], found[1], found[2]


def load(path: Path) -> dict[str, torch.Tensor]:
    module = Everything(seed=2)
    load_weights(path, module)
    return module.state_dict()


def _or_error(read: Any, path: Path) -> Any:
    try:
        return read(path)
    except SparkdlError:
        return None


def as_plain(point: ResumePoint) -> Any:
    meta, arrays = point.to_arrays()
    return json.dumps(meta), {name: a.tobytes() for name, a in arrays.items()}, point.states


def check_damaged(data: st.DataObject, tree: Tree, place: Path) -> None:
    weights, whole, resumed = look(data.draw(damaged_tree(tree, DAMAGES)), place)
    if weights is not None:
        expected = MODULE.state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in weights.items())
    for one in (whole, resumed):
        assert one is None or as_plain(one) == as_plain(point())


def check_forged(data: st.DataObject, tree: Tree, place: Path) -> None:
    """With checksums that fit, as somebody would write them who wants to do harm."""
    forged = data.draw(damaged_tree(tree, DAMAGES))
    mark = json.loads(tree["state.json"])  # type: ignore[arg-type]
    for name in mark["sha256"]:
        content = forged.get(name)
        if isinstance(content, bytes):
            mark["sha256"][name] = hashlib.sha256(content).hexdigest()
    if data.draw(st.booleans()):
        mark = data.draw(damaged_value(mark))
    if isinstance(mark, dict) and isinstance(forged.get("state.json"), bytes):
        try:
            forged["state.json"] = sealed({key: v for key, v in mark.items() if key != "seal"})
        except ValueError:  # NaN
            forged["state.json"] = json.dumps(mark).encode()
    _, whole, _ = look(forged, place)
    if whole is not None:
        _or_error(lambda _: whole.check(setting()), place)
        whole.states_for(LAYOUT, 3)


@fuzz(80)
@given(data=st.data())
def test_damage(data: st.DataObject, tree: Tree, place: Path) -> None:
    check_damaged(data, tree, place)


@fuzz(80)
@given(data=st.data())
def test_forgery(data: st.DataObject, tree: Tree, place: Path) -> None:
    check_forged(data, tree, place)


@pytest.mark.slow
@fuzz(1000)
@given(data=st.data())
def test_damage_a_thousand_times(data: st.DataObject, tree: Tree, place: Path) -> None:
    check_damaged(data, tree, place)


@pytest.mark.slow
@fuzz(1000)
@given(data=st.data())
def test_forgery_a_thousand_times(data: st.DataObject, tree: Tree, place: Path) -> None:
    check_forged(data, tree, place)


def test_what_is_sound_comes_back(tree: Tree, place: Path) -> None:
    weights, whole, resumed = look(tree, place)
    expected = MODULE.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in weights.items())
    assert as_plain(whole) == as_plain(resumed) == as_plain(point())
    whole.check(setting())
