import json
import math
import os
import pickle
import uuid
from dataclasses import asdict

import fsspec
import pytest
import safetensors.torch
import torch
from support.checkpoints import save
from support.models import Everything
from torch import nn

import sparkdl
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.train.checkpoint import CheckpointFolder, latest, load_weights
from sparkdl.train.checkpoint.store import CheckpointStore
from sparkdl.train.state import TrainState

SCORES = {"valid/accuracy": 0.5, "valid/loss": math.nan}


@pytest.fixture(params=["local", "file", "memory"])
def folder(request, tmp_path):
    """A folder as a path and as URLs; the memory file system stands for remote ones."""
    if request.param == "memory":
        url = f"memory://{uuid.uuid4().hex}/run"
        yield url
        fsspec.filesystem("memory").rm(os.path.dirname(url), recursive=True)
    else:
        yield f"{'file://' if request.param == 'file' else ''}{tmp_path}/deep/run"


def at(iteration):
    return TrainState(epoch=1, iteration=iteration, step=2, loss=0.25)


def write(folder, *iterations, module=None):
    checkpoints = CheckpointFolder(folder)
    checkpoints.create()
    return [save(checkpoints, module or nn.Linear(2, 1), at(i), SCORES) for i in iterations]


def names(folder):
    fs, root = fsspec.url_to_fs(folder)
    fs.invalidate_cache()
    return sorted(os.path.basename(path.rstrip("/")) for path in fs.ls(root, detail=False))


def put(fs, path, content):
    fs.makedirs(os.path.dirname(path), exist_ok=True)
    fs.pipe_file(path, content)


def read(path):
    with fsspec.open(path, "rb") as file:
        return file.read()


def test_what_is_saved_can_be_loaded(folder):
    module = Everything(seed=1)
    (path,) = write(folder, 7, module=module)
    assert path == latest(folder)
    loaded = Everything(seed=2)
    load_weights(path, loaded)
    expected = module.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
    assert loaded.tied_a.weight is loaded.tied_b.weight


def test_the_state_is_readable_json(folder):
    (path,) = write(folder, 7)
    assert names(path) == ["model.safetensors", "state.json"]

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    mark = json.loads(read(f"{path}/state.json"), parse_constant=refuse)
    assert (mark["format"], mark["sparkdl"]) == (2, sparkdl.__version__)
    assert {name: float(value) for name, value in mark["scores"].items()} == pytest.approx(
        SCORES, nan_ok=True
    )
    state = {name: float(value) for name, value in mark["state"].items()}
    assert state == pytest.approx(asdict(at(7)), nan_ok=True)


def test_other_tools_can_read_the_weights(tmp_path):
    module = Everything(seed=1)
    (path,) = write(tmp_path, 1, module=module)
    file = f"{path}/model.safetensors"
    tensors = safetensors.torch.load_file(file)
    assert set(tensors) == set(module.state_dict()) - {"tied_b.weight"}
    other = Everything(seed=2)
    safetensors.torch.load_model(other, file)
    assert torch.equal(other.tied_b.weight, module.tied_a.weight)


def test_the_newest_is_the_one_with_the_largest_number(folder):
    write(folder, 20, 100, 3)
    assert latest(folder).endswith("/iteration-00000100")
    write(folder, 123456789)
    assert latest(folder).endswith("/iteration-123456789")


def test_the_age_of_files_does_not_matter(tmp_path):
    for age, path in enumerate(write(tmp_path, 1, 2, 3)):
        for name in ("state.json", "model.safetensors", "."):
            os.utime(f"{path}/{name}", (10**9 - age, 10**9 - age))
    assert latest(tmp_path) == str(tmp_path / "iteration-00000003")


def test_there_may_be_none(folder):
    assert latest(folder) is None
    write(folder)
    assert latest(folder) is None


def test_pruning_keeps_the_newest_and_what_is_not_ours(folder):
    write(folder, 5, 30, 10, 200)
    fs, root = fsspec.url_to_fs(folder)
    put(fs, f"{root}/notes.txt", b"mine")
    put(fs, f"{root}/iteration-best/state.json", b"{}")
    CheckpointFolder(folder).prune(2)
    assert names(folder) == ["iteration-00000030", "iteration-00000200", "iteration-best", "notes.txt"]
    CheckpointFolder(folder).prune(2)
    assert len(names(folder)) == 4


def test_what_a_crash_leaves_is_ignored_and_removed(folder):
    write(folder, 5)
    fs, root = fsspec.url_to_fs(folder)
    put(fs, f"{root}/.iteration-00000009.{uuid.uuid4().hex}/model.safetensors", b"half")
    put(fs, f"{root}/iteration-00000008/model.safetensors", b"half")
    put(fs, f"{root}/iteration-00000008/draft.json", b"{}")  # as on stores that cannot rename
    assert latest(folder).endswith("/iteration-00000005")
    CheckpointFolder(folder).create()
    assert names(folder) == ["iteration-00000005"]


@pytest.mark.parametrize("written", [0, 1])
def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch, written):
    write(tmp_path, 5)
    write_file, done = CheckpointStore.write, []

    def fail(self, path, data):
        if len(done) == written:
            raise OSError("disk full")
        done.append(path)
        write_file(self, path, data)

    monkeypatch.setattr(CheckpointStore, "write", fail)
    with pytest.raises(OSError, match="disk full"):
        save(CheckpointFolder(tmp_path), nn.Linear(2, 1), at(6), {})
    assert names(str(tmp_path)) == ["iteration-00000005"]


def test_a_failed_remote_write_is_no_checkpoint(monkeypatch):
    folder = f"memory://{uuid.uuid4().hex}"
    write(folder, 5)
    memory = fsspec.filesystem("memory")
    pipe_file = memory.pipe_file

    def fail_at_the_mark(path, data, **options):
        if path.endswith("state.json"):
            raise OSError("connection lost")
        pipe_file(path, data, **options)

    monkeypatch.setattr(memory, "pipe_file", fail_at_the_mark)
    with pytest.raises(OSError, match="connection lost"):
        save(CheckpointFolder(folder), nn.Linear(2, 1), at(6), {})
    assert latest(folder).endswith("/iteration-00000005")
    memory.rm(folder, recursive=True)


def test_views_of_one_storage_are_saved_apart(tmp_path):
    module = nn.Module()
    both = torch.arange(6.0)
    module.register_buffer("all", both)
    module.register_buffer("tail", both[2:])
    module.register_buffer("expanded", torch.ones(1).expand(4))
    module.register_buffer("transposed", torch.arange(6.0).view(2, 3).t())
    module.register_buffer("empty", torch.empty(0, 3))
    module.register_buffer("nothing", torch.empty(0, 3))
    (path,) = write(tmp_path, 1, module=module)
    saved = safetensors.torch.load_file(f"{path}/model.safetensors")
    assert {n: v.tolist() for n, v in saved.items()} == {
        n: v.tolist() for n, v in module.state_dict().items()
    }


def test_half_precision_and_integers_survive(tmp_path):
    module = nn.Module()
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool):
        module.register_buffer(str(dtype).replace(".", "_"), torch.tensor([0, 1, 1]).to(dtype))
    (path,) = write(tmp_path, 1, module=module)
    expected = {name: value.clone() for name, value in module.state_dict().items()}
    for value in module.buffers():
        value.zero_()
    load_weights(path, module)
    assert all(torch.equal(value, expected[name]) for name, value in module.state_dict().items())


class WithExtraState(nn.Linear):
    def get_extra_state(self):
        return {"anything": object()}

    def set_extra_state(self, state):
        pass


def test_state_that_is_not_a_tensor_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"state_dict entry '_extra_state' is a dict; only tensors"):
        write(tmp_path, 1, module=WithExtraState(2, 1))
    assert latest(tmp_path) is None


class Wider(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)
        self.extra = nn.Parameter(torch.zeros(1))


def test_a_module_that_does_not_fit_is_left_alone(tmp_path):
    (path,) = write(tmp_path, 1)
    module = Wider()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    expected = (
        r"does not fit Wider: extra is missing; weight has shape \(1, 2\) there and \(1, 3\) in the module"
    )
    with pytest.raises(ModelError, match=expected):
        load_weights(path, module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    with pytest.raises(ModelError, match=r"bias is not in the module"):
        load_weights(path, nn.Linear(2, 1, bias=False))


def test_what_is_not_a_checkpoint_is_refused(folder):
    write(folder, 1)
    with pytest.raises(ConfigError, match=r"is not a complete checkpoint .*latest\(folder\)"):
        load_weights(folder, nn.Linear(2, 1))
    with pytest.raises(ConfigError, match=r"is not a complete checkpoint"):
        load_weights(f"{folder}/iteration-00000002", nn.Linear(2, 1))


@pytest.mark.parametrize("content", [b"", b"\0" * 20, pickle.dumps({"weight": 1})])
@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_damaged_files_are_named(tmp_path, name, content):
    (path,) = write(tmp_path, 1)
    with open(f"{path}/{name}", "wb") as file:
        file.write(content)
    with pytest.raises(ConfigError, match=r"iteration-00000001 is damaged: "):
        load_weights(path, nn.Linear(2, 1))


def test_files_of_a_later_version_are_refused(tmp_path):
    (path,) = write(tmp_path, 1)
    with open(f"{path}/state.json", "w") as file:
        json.dump({"format": 4, "sparkdl": "9.0"}, file)
    with pytest.raises(ConfigError, match=r"has format 4, written by sparkdl 9.0; .*up to 3"):
        load_weights(path, nn.Linear(2, 1))


def test_folders_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot make the checkpoint folder .*file"):
        CheckpointFolder(tmp_path / "file").create()
    with pytest.raises(ConfigError, match=r"cannot open nosuch://bucket"):
        CheckpointFolder("nosuch://bucket/run")
