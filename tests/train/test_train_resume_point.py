"""What a run goes on from: what is damaged is set aside, all else raises; another optimizer is refused."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import torch
from support.checkpoints import LAYOUT, MODULE, STATE, point, save, setting
from support.models import Everything, mlp
from torch import nn

from sparkdl.allreduce import shard_files
from sparkdl.allreduce.shard_files import decode, encode
from sparkdl.exceptions import ConfigError
from sparkdl.nn.parameters import layout_of
from sparkdl.optim import LAMB, ParamGroup, Staleness
from sparkdl.train import Checkpoint, Trainer
from sparkdl.train.checkpoint import CheckpointFolder, read_point
from sparkdl.train.checkpoint.mark import sealed
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.checkpoint.setting import check_inside_epoch, check_setting, setting_of
from sparkdl.wire import frame

NAME = f"iteration-{STATE.iteration:08d}"


@pytest.fixture(params=["local", "memory"])
def folder(request: Any, tmp_path: Path) -> Iterator[str]:
    """A folder with a checkpoint, as a path and as a URL."""
    path = str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    save(CheckpointFolder(path), MODULE, STATE, {}, point())
    yield path
    if request.param == "memory":
        fs = fsspec.filesystem("memory")
        for file in fs.find(path):
            fs.rm_file(file)


def change(folder: str, name: str, how: Any) -> None:
    fs, root = fsspec.core.url_to_fs(folder)
    path = f"{root}/{NAME}/{name}"
    fs.pipe_file(path, how(fs.cat_file(path)))


def contents(folder: str) -> dict[str, bytes]:
    fs, root = fsspec.core.url_to_fs(folder)
    return {os.path.relpath(path, root): fs.cat_file(path) for path in fs.find(root)}


def reformat(data: bytes) -> bytes:
    mark = json.loads(data)
    del mark["seal"]
    return sealed({**mark, "format": 7, "sparkdl": "9.0"})


def without_training(data: bytes) -> bytes:
    mark = json.loads(data)
    del mark["seal"]
    return sealed({**mark, "sha256": {"model.safetensors": mark["sha256"]["model.safetensors"]}})


@contextmanager
def full_disk(monkeypatch: Any, target: Any, name: str) -> Iterator[None]:
    """Let a function fail as on a full disk."""
    with monkeypatch.context() as patched:
        patched.setattr(target, name, no_space)
        yield


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (reformat, r"has format 7, written by sparkdl 9.0; .* install a newer one"),
        (without_training, "holds weights only"),
        (lambda _: b"{}", "is not a checkpoint: its state.json has format=None"),
        (lambda _: b"[]", "is not a checkpoint: its state.json is a list"),
    ],
)
def test_a_checkpoint_that_is_not_damaged_stays_and_the_error_says_why(
    folder: str, how: Any, words: str
) -> None:
    change(folder, "state.json", how)
    before = contents(folder)
    with pytest.raises(ConfigError, match=words):
        Checkpoint(folder).resume_point()
    assert contents(folder) == before


def test_a_full_disk_while_reading_is_no_damage(monkeypatch: Any) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    save(CheckpointFolder(url), MODULE, STATE, {}, point())
    before = contents(url)
    memory = fsspec.filesystem("memory")
    with full_disk(monkeypatch, memory, "get_file"), pytest.raises(ConfigError, match="No space left"):
        Checkpoint(url).resume_point()
    assert contents(url) == before
    found = Checkpoint(url).resume_point()
    assert found is not None
    assert found.state.iteration == STATE.iteration


def test_files_that_cannot_be_read_are_no_damage(tmp_path: Path, monkeypatch: Any) -> None:
    save(CheckpointFolder(tmp_path), MODULE, STATE, {}, point())
    before = contents(str(tmp_path))
    with (
        full_disk(monkeypatch, shard_files, "digest_of"),
        pytest.raises(ConfigError, match="cannot be read: OSError"),
    ):
        Checkpoint(tmp_path).resume_point()
    (tmp_path / NAME / "training.safetensors").rename(tmp_path / "gone")
    with pytest.raises(ConfigError, match="is not a complete checkpoint"):
        Checkpoint(tmp_path).resume_point()
    (tmp_path / "gone").rename(tmp_path / NAME / "training.safetensors")
    assert contents(str(tmp_path)) == before


@pytest.mark.parametrize("name", ["model.safetensors", "shard-00001-of-00002.safetensors", "state.json"])
def test_what_is_damaged_is_set_aside(folder: str, name: str) -> None:
    def flip(data: bytes) -> bytes:
        return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]

    change(folder, name, flip)
    before = contents(folder)
    words = (
        rf"{NAME} is damaged: {name} is not what was written.* it is set aside as .*damaged-{NAME}, an older"
    )
    with pytest.warns(UserWarning, match=words):
        assert Checkpoint(folder).resume_point() is None
    assert contents(folder) == {f"damaged-{path}": data for path, data in before.items()}


def test_checkpoints_of_earlier_releases_can_be_read(tmp_path: Path) -> None:
    """Their marks have no checksum of themselves, and their settings no optimizer."""
    whole = point()
    old = {
        k: v
        for k, v in whole.setting.items()
        if k not in ("optimizer", "inner_optimizer", "dtype", "buffers", "dealt")
    }
    earlier = ResumePoint(**{**{f: getattr(whole, f) for f in whole.__slots__}, "setting": old})
    save(CheckpointFolder(tmp_path), MODULE, STATE, {}, earlier)
    path = tmp_path / NAME / "state.json"
    mark = json.loads(path.read_text())
    del mark["seal"]
    path.write_text(json.dumps(mark, indent=1))
    inside = read_point(tmp_path / NAME)
    with pytest.raises(ConfigError, match="batches depended on the number of partitions.*rows='new'"):
        inside.check(setting())
    found = replace(inside, state=replace(inside.state, step=0))
    found.check(setting())
    for other in (partial(torch.optim.SGD, lr=0.1), partial(torch.optim.RMSprop, lr=0.1)):
        with pytest.raises(
            ConfigError, match=r"keeps .* now, and the checkpoint has exp_avg, .*load_weights"
        ):
            found.check(setting(other))


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        ({"dealt": True, "partitions": [5, 5]}, {"dealt": True, "partitions": [4, 3, 3]}, ""),
        ({"dealt": False, "partitions": [5, 5]}, {"dealt": False, "partitions": [5, 5]}, ""),
        ({"partitions": [5, 5]}, {"dealt": False, "partitions": [5, 5]}, ""),
        ({"partitions": [5, 5]}, {"dealt": True, "partitions": [5, 5]}, "depended on the number"),
        ({"dealt": True, "partitions": [9]}, {"dealt": False, "partitions": [9]}, "did not depend on"),
        ({"partitions": [5, 5]}, {"dealt": False, "partitions": [4, 6]}, "partitions of 5, 5 rows"),
        (
            {"dealt": True, "partitions": [9], "positions": 1},
            {"dealt": True, "partitions": [5, 4], "positions": 2},
            "at other places",
        ),
    ],
)
def test_what_goes_on_inside_an_epoch(then: Any, now: Any, words: str) -> None:
    if not words:
        check_inside_epoch(then, now, since=0)
    else:
        with pytest.raises(ConfigError, match=words) as error:
            check_inside_epoch(then, now, since=0)
        assert error.value.code == "config-resume"
    if not now["dealt"]:  # an earlier release has moved its rows in this epoch
        with pytest.raises(ConfigError, match="partitions of"):
            check_inside_epoch({**then, "dealt": False}, now, since=3)


# -- the optimizer ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (partial(torch.optim.SGD, lr=0.1), "the optimizer is SGD now and was Adam when"),
        (partial(torch.optim.RMSprop, lr=0.1), "the optimizer is RMSprop now and was Adam when"),
        (partial(torch.optim.AdamW, lr=0.1, amsgrad=True), "is AdamW now and was Adam"),
        (partial(LAMB, lr=0.1), "is LAMB now and was Adam"),
        (
            {
                "head.*": partial(torch.optim.Adam, lr=0.1, amsgrad=True),
                "*": partial(torch.optim.SGD, lr=0.1),
            },
            r"first\.weight is in parameter group 1 now and was in group 0",
        ),
    ],
)
def test_another_optimizer_is_refused(optimizer: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        point().check(setting(optimizer))
    assert caught.value.code == "config-resume"


def test_late_gradients_cannot_come_or_go() -> None:
    """Those that waited would be lost, or never have been sent."""

    def of(staleness: Staleness | None) -> dict[str, Any]:
        trainer = Trainer(
            MODULE,
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.SGD, lr=0.1),
            staleness=staleness,
        )
        return trainer._recipe.setting([], SimpleNamespace(columns=[]))  # type: ignore[arg-type]

    none, half, third = of(None), of(Staleness(share=0.5)), of(Staleness(share=0.3))
    for then in (none, half, {name: value for name, value in none.items() if name != "staleness"}):
        check_setting(then, half if then is half else none)
    for then, now, words in (
        (half, none, r"staleness is None now and was \{.*0\.5"),
        (none, half, r"staleness is \{.*0\.5.*\} now and was None"),
        (half, third, r"staleness is \{.*0\.3.* now and was \{.*0\.5"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            check_setting(then, now)
        assert caught.value.code == "config-resume"


def test_options_may_change_that_leave_the_state_as_it_is() -> None:
    point().check(
        setting(partial(torch.optim.Adam, lr=0.5, betas=(0.5, 0.9), weight_decay=0.1, amsgrad=True))
    )
    point().check(setting(partial(torch.optim.Adam, lr=1e-3)))  # keeps less


def test_state_that_is_missing_is_named() -> None:
    def of(optimizer: Any) -> ResumePoint:
        whole = point()
        names = setting(optimizer)["optimizer"]["state"][0]
        kept = []
        for frames in whole.states:
            state = frame.unpack(frames[0])
            arrays = {name: a for name, a in state.arrays.items() if name.partition(".")[2] in names}
            kept.append([frame.join(frame.pack(state.meta, arrays)), frames[1]])
        values = {f: getattr(whole, f) for f in whole.__slots__}
        return ResumePoint(**{**values, "states": kept, "setting": setting(optimizer)})

    plain = of(partial(torch.optim.Adam, lr=1e-3))
    plain.check(setting(partial(torch.optim.Adam, lr=0.1)))
    words = (
        r"Adam keeps .*max_exp_avg_sq.* now, and the checkpoint has exp_avg, exp_avg_sq, step of .* group 0"
    )
    with pytest.raises(ConfigError, match=words):
        plain.check(setting())


def test_other_groups_are_refused_by_name() -> None:
    adam = partial(torch.optim.Adam, lr=1e-3, amsgrad=True)
    with pytest.raises(
        ConfigError, match=r"another module: first\.bias is in parameter group 1 now and was in group 0;"
    ):
        point().check(setting(adam, [ParamGroup("*.bias", lr=0.1)]))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (mlp(), r"0\.weight has shape \(32, 64\) now and is not in the checkpoint; .*; \.\.\."),
        (Everything(outputs=9), r"head\.weight has shape \(9, 24\) now and had \(10, 24\); head\.bias"),
        (Everything().double(), r"dtype is 'float64' now and was 'float32'"),
    ],
)
def test_another_module_is_refused_by_name(module: nn.Module, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        point().check(setting(module=module))


def test_other_buffers_are_refused_by_name() -> None:
    module = Everything()
    module.register_buffer("more", torch.zeros(3))
    with pytest.raises(ConfigError, match=r"more has shape \(3,\) now and is not in the checkpoint"):
        point().check(setting(module=module))


def test_weights_of_another_length_are_refused() -> None:
    other = setting_of(
        layout_of(nn.Linear(2, 1), lambda _: 0), [90, 110], batch_size=60, seed=3, shuffle=True
    )
    values = {f: getattr(point(), f) for f in point().__slots__}
    forged = ResumePoint(**{**values, "setting": other})
    with pytest.raises(
        ConfigError, match=rf"has weights of shape \({LAYOUT.numel},\) and float32; the module has 3"
    ):
        forged.check(other)


# -- shards' files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [b"", b"\0" * 7, b"\0" * 100, b"\xff" * 8, b"{}", b"\x02" + b"\0" * 7 + b"{}"]
)
def test_what_is_no_shard_is_a_value_error(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="not the file of a shard"):
        decode(wrong)


def test_states_without_dimensions_stay_so() -> None:
    """A step counter of one element would be taken for the state of a parameter of one element."""
    frames = point().states[0]
    assert decode(encode(frames)) == frames
    state = frame.unpack(decode(encode(frames))[0])
    assert state.arrays["0.step"].shape == ()
