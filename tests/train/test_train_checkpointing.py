"""Checkpoints while a run goes on: in the background, by the executors, on disks that fail."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from support.checkpoints import save
from support.data import as_dataset, partitioned
from support.models import Everything, mlp
from support.reference import assert_bit_equal
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl._spark.hadoop import HadoopFileSystem
from sparkdl.allreduce import shard_files
from sparkdl.allreduce.shard_files import decode, encode
from sparkdl.exceptions import CheckpointError, ConfigError
from sparkdl.train import EMA, EarlyStopping, EveryIterations, Hook, MaxEpoch, MaxIteration, Run
from sparkdl.train import Checkpoint as AnyCheckpoint
from sparkdl.train.checkpoint import CheckpointFolder, export_weights, load_weights
from sparkdl.train.state import TrainState

Checkpoint = partial(AnyCheckpoint, at_end=False)  # test_train_ending.py has the run's end
PARTS = partitioned([90, 110])  # 4 iterations an epoch


def fit(data: Dataset, iterations: int, *hooks: Hook, resume: bool = False, **options: Any) -> Any:
    settings: dict[str, Any] = {"batch_size": 60, "seed": 3, "progress": False, "num_shards": 2}
    return Trainer(
        options.pop("module", None) or Everything(),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=1e-3),
        end_when=MaxIteration(iterations),
        hooks=hooks,
        **settings | options,
    ).fit(data, resume=resume)


@pytest.fixture
def data(spark: Any) -> Any:
    with as_dataset(spark, PARTS) as data:
        yield data


def files(path: Path) -> dict[str, list[str]]:
    return {folder.name: sorted(file.name for file in folder.iterdir()) for folder in sorted(path.iterdir())}


def test_what_lies_there(data: Dataset, tmp_path: Path) -> None:
    fit(data, 8, Checkpoint(tmp_path, EveryIterations(3), keep=1))
    names = [f"shard-0000{n}-of-00002.safetensors" for n in range(2)]
    assert files(tmp_path) == {
        "iteration-00000006": ["model.safetensors", *names, "state.json", "training.safetensors"]
    }
    mark = json.loads((tmp_path / "iteration-00000006" / "state.json").read_text())
    assert mark["module"] == "support.models.Everything"
    assert mark["versions"]["torch"] == torch.__version__
    assert set(mark["versions"]) == {"python", "torch", "pyspark"}


def test_shards_owners_write_the_same_bytes_as_the_driver(data: Dataset, tmp_path: Path) -> None:
    for shared in (False, True):
        hook = Checkpoint(tmp_path / str(shared), EveryIterations(3), shared=shared)
        fit(data, 4, hook, averaging=EMA(0.9))
    folders = [tmp_path / name / "iteration-00000003" for name in ("False", "True")]
    for name in ("shard-00000-of-00002.safetensors", "shard-00001-of-00002.safetensors"):
        first, second = ((folder / name).read_bytes() for folder in folders)
        assert first == second
        assert len(decode(first)) == 2  # the optimizer's state and the average


@pytest.mark.jvm
def test_a_run_resumes_from_what_the_owners_wrote(data: Dataset, tmp_path: Path) -> None:
    straight = fit(data, 8)
    hook = partial(Checkpoint, tmp_path, EveryIterations(3), shared=True)
    fit(data, 7, hook())
    result = fit(data, 8, hook(), resume=True)
    assert_bit_equal(result.module, straight.module)


def test_two_executors_write_their_shards(cluster: Any, tmp_path: Path) -> None:
    with as_dataset(cluster, PARTS) as data:
        straight = fit(data, 8)
        hook = partial(Checkpoint, tmp_path, EveryIterations(3), shared=True)
        fit(data, 7, hook())
        result = fit(data, 8, hook(), resume=True)
    assert_bit_equal(result.module, straight.module)


@pytest.mark.parametrize("large", [64, 1 << 20])
def test_a_task_writes_a_shards_file_by_parts(tmp_path: Path, monkeypatch: Any, large: int) -> None:
    from sparkdl.allreduce import messages
    from sparkdl.keyed.entries import ROW, Entries
    from sparkdl.wire import frame

    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    (tmp_path / "local").mkdir()
    monkeypatch.setattr(shard_files, "LARGE", large)
    ids = np.arange(100)
    columns = {ROW: np.ones((50, 3), np.float32), "sum": np.zeros((50, 3), np.float32)}
    entries = Entries(ids, ids + 1, ids // 10, ids % 2 == 0, columns)
    frames = [
        frame.join(frame.pack({"kind": "state", "n": 1}, {"m": np.arange(5.0)})),
        frame.join(messages.encode(messages.OwnedRows({"table": entries}))),
    ]
    url = f"memory://{uuid.uuid4().hex}"
    for folder in (str(tmp_path), url):
        (told,) = shard_files.WriteShard(folder, 2)(1, iter(frames))
        meta = frame.unpack(told).meta
        assert meta["name"] == "shard-00001-of-00002.safetensors"
        with fsspec.open(f"{folder}/{meta['name']}", "rb") as file:
            data = file.read()
        assert data == encode(frames)
        assert decode(data) == frames
        assert meta["sha256"] == hashlib.sha256(data).hexdigest()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["local", "shard-00001-of-00002.safetensors"]
    assert list((tmp_path / "local").iterdir()) == []


def test_a_shards_file_comes_back() -> None:
    import safetensors.numpy

    from sparkdl.wire import frame

    frames = [
        frame.join(frame.pack({"kind": "state", "n": 1}, {"m": np.arange(5.0), "e": np.zeros((0, 3))})),
        frame.join(frame.pack({"kind": "average"})),
    ]
    assert decode(encode(frames)) == frames
    arrays = {f"{i}.{n}": a for i, f in enumerate(frames) for n, a in frame.unpack(f).arrays.items()}
    table = [{"meta": m.meta, "arrays": list(m.arrays)} for m in map(frame.unpack, frames)]
    assert safetensors.numpy.save(arrays, {"sparkdl": json.dumps(table)}) == encode(frames)
    for wrong in (b"", b"\0" * 100, encode(frames)[:-4]):
        with pytest.raises(Exception, match=r"."):
            decode(wrong)


class Slow:
    """Makes finishing a checkpoint wait until it is told to go on."""

    def __init__(self, monkeypatch: Any) -> None:
        self.go = threading.Event()
        finish = CheckpointFolder.finish

        def slow(folder: Any, *arguments: Any) -> str:
            assert self.go.wait(60)
            return finish(folder, *arguments)

        monkeypatch.setattr(CheckpointFolder, "finish", slow)


def test_the_run_goes_on_while_files_are_written(data: Dataset, tmp_path: Path, monkeypatch: Any) -> None:
    slow = Slow(monkeypatch)
    seen = []

    class Watch(Hook):
        def on_iteration_end(self, run: Run) -> None:
            if run.state.iteration == 5:
                seen.extend(CheckpointFolder(tmp_path).complete())
                slow.go.set()

    straight = fit(data, 7)
    result = fit(data, 7, Checkpoint(tmp_path, EveryIterations(3)), Watch())
    assert seen == []
    assert list(CheckpointFolder(tmp_path).complete()) == [3, 6]
    assert_bit_equal(result.module, straight.module)
    assert not [t for t in threading.enumerate() if t.name == "sparkdl-checkpoint"]
    # What was written late is what was there when it was due.
    module, then = Everything(), fit(data, 3).module
    load_weights(tmp_path / "iteration-00000003", module)
    assert_bit_equal(module, then)


@contextmanager
def full_disk(bytes_per_file: int) -> Iterator[None]:
    """Let writes beyond a size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_per_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class FillDisk(Hook):
    """Fills the disk after some iterations and frees it after others."""

    def __init__(self, full: range) -> None:
        self.full = full
        self._limit: Any = None

    def on_iteration_begin(self, run: Run) -> None:
        inside = run.state.iteration in self.full
        if inside and self._limit is None:
            self._limit = full_disk(1000)
            self._limit.__enter__()
        elif not inside:
            self.on_train_end(run)

    def on_train_end(self, run: Run) -> None:
        if self._limit is not None:
            self._limit.__exit__(None, None, None)
            self._limit = None


@pytest.mark.jvm
@pytest.mark.parametrize("background", [True, False])
def test_a_full_disk_costs_a_checkpoint_but_not_the_run(
    data: Dataset, tmp_path: Path, background: bool
) -> None:
    straight = fit(data, 7)
    checkpoint = Checkpoint(tmp_path, EveryIterations(2), background=background)
    with pytest.warns(UserWarning, match=r"could not be written to .*File too large.*iteration-00000002"):
        result = fit(data, 7, FillDisk(range(3, 5)), checkpoint)
    assert_bit_equal(result.module, straight.module)
    assert list(files(tmp_path)) == ["iteration-00000002", "iteration-00000006"]


@pytest.mark.jvm
@pytest.mark.whole
def test_a_disk_that_stays_full_ends_the_run_and_loses_nothing(data: Dataset, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, EveryIterations(2), background=False)
    with (
        pytest.warns(UserWarning, match="could not be written"),
        pytest.raises(CheckpointError, match="3 writes in a row have failed") as caught,
    ):
        fit(data, 99, FillDisk(range(3, 99)), checkpoint)
    assert list(files(tmp_path)) == ["iteration-00000002"]
    assert caught.value.result is not None
    assert caught.value.result.state.iteration == 8
    straight = fit(data, 9)
    assert_bit_equal(fit(data, 9, checkpoint, resume=True).module, straight.module)


@pytest.mark.jvm
def test_executors_that_cannot_write_are_told_of(data: Dataset, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(CheckpointFolder, "begin", lambda *_: str(tmp_path / "nowhere"))
    hook = Checkpoint(tmp_path, EveryIterations(3), shared=True, max_failures=0, background=False)
    with pytest.raises(CheckpointError, match=r"could not be written.*No such file or directory"):
        fit(data, 5, hook)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Give up root's rights for a while, for root may write anywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_folder_without_permission_is_found_at_once(tmp_path: Path, inside: str) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    for parent in (*list(tmp_path.parents)[:2], tmp_path):
        parent.chmod(0o755)
    folder = CheckpointFolder(locked / inside)

    def try_it() -> None:
        folder.create()
        folder.check_writable()

    with ordinary_user(), pytest.raises(ConfigError, match=r"cannot (make|write).*ermission denied"):
        try_it()


def test_any_damaged_byte_is_found(data: Dataset, tmp_path: Path) -> None:
    """A byte of each file in turn; the run goes on from the checkpoint before."""
    straight = fit(data, 9)
    for name in files_of_a_checkpoint():
        folder = tmp_path / name
        fit(data, 7, Checkpoint(folder, EveryIterations(3)))
        file = folder / "iteration-00000006" / name
        content = bytearray(file.read_bytes())
        position = content.index(b"sha256") + 20 if name == "state.json" else len(content) // 2
        content[position] ^= 0x01
        file.write_bytes(bytes(content))
        with pytest.warns(UserWarning, match="set aside"):
            result = fit(data, 9, Checkpoint(folder, EveryIterations(3)), resume=True)
        assert_bit_equal(result.module, straight.module)
        assert "damaged-iteration-00000006" in files(folder)


def files_of_a_checkpoint() -> list[str]:
    shards = [f"shard-0000{n}-of-00002.safetensors" for n in range(2)]
    return ["model.safetensors", "training.safetensors", "state.json", *shards]


def test_hooks_go_on_where_they_were(data: Dataset, tmp_path: Path) -> None:
    """The best weights of a run that was stopped are still the best of the one that goes on."""

    def run(folder: str, epochs: int, resume: bool = False) -> Any:
        stopping = EarlyStopping(patience=50)
        return Trainer(
            mlp(),
            loss=nn.CrossEntropyLoss(),
            # The first epoch makes it better, the others worse.
            optimizer=partial(torch.optim.SGD, lr=0.1),
            schedule=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda epoch: 1.0 if epoch < 2 else -1.0
            ),
            batch_size=60,
            seed=3,
            progress=False,
            monitor="loss",
            hooks=[stopping, Checkpoint(tmp_path / folder)],
            end_when=MaxEpoch(epochs),
        ).fit(data, validation=data, resume=resume)

    straight = run("straight", 5)
    assert straight.state.stale > 0
    run("stopped", 3)
    resumed = run("stopped", 5, resume=True)
    assert_bit_equal(resumed.module, straight.module)


def test_a_run_that_a_hook_has_ended_is_over(data: Dataset, tmp_path: Path) -> None:
    """Run again with ``resume=True`` it would train an epoch more each time."""

    def run(resume: bool) -> Any:
        return Trainer(
            mlp(),
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.SGD, lr=0.1, maximize=True),  # each epoch is worse
            batch_size=60,
            seed=3,
            progress=False,
            monitor="loss",
            hooks=[EarlyStopping(patience=2), Checkpoint(tmp_path / "folder")],
            end_when=MaxEpoch(9),
        ).fit(data, validation=data, resume=resume)

    first, again = run(False), run(True)
    assert (first.state.epoch, first.stopped_by) == (again.state.epoch, again.stopped_by) == (3, "hook")
    assert_bit_equal(again.module, first.module)


@pytest.fixture
def hadoop(spark: Any, tmp_path: Path) -> Iterator[str]:
    """A Hadoop file system that fsspec does not know: viewfs, mounted on a local folder."""
    (tmp_path / "store").mkdir()
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("fs.viewfs.mounttable.sparkdl.link./store", f"file://{tmp_path}/store")
    conf.set("fs.viewfs.impl.disable.cache", "true")  # else it stays mounted on the first test's folder
    yield "viewfs://sparkdl/store"
    conf.unset("fs.viewfs.impl.disable.cache")
    conf.unset("fs.viewfs.mounttable.sparkdl.link./store")


@pytest.mark.jvm
def test_hadoops_file_systems(data: Dataset, hadoop: str, tmp_path: Path) -> None:
    straight = fit(data, 9)
    hook = partial(Checkpoint, f"{hadoop}/run", EveryIterations(2), keep=2)
    fit(data, 7, hook())
    assert list(CheckpointFolder(f"{hadoop}/run").complete()) == [4, 6]
    names = {p.name for p in (tmp_path / "store" / "run").iterdir()}
    assert names == {"iteration-00000004", "iteration-00000006"}
    result = fit(data, 9, hook(), resume=True)
    assert_bit_equal(result.module, straight.module)
    (newest,) = list(CheckpointFolder(f"{hadoop}/run").complete().values())[-1:]
    module = Everything()
    load_weights(newest, module)
    row = CheckpointFolder(f"{hadoop}/run").describe(newest, verify=True)
    assert row["problem"] == ""
    export_weights(newest, str(tmp_path / "weights.safetensors"))
    assert (tmp_path / "weights.safetensors").stat().st_size > 1000


@pytest.mark.jvm
def test_hadoop_folders_are_taken_literally_and_by_one_run(hadoop: str, tmp_path: Path) -> None:
    def write(folder: CheckpointFolder, iteration: int) -> None:
        save(folder, nn.Linear(2, 1), TrainState(iteration=iteration), {})

    other = CheckpointFolder(f"{hadoop}/run1")
    write(other, 1)
    first, second = (CheckpointFolder(f"{hadoop}/run[1] {{x}}*") for _ in range(2))
    first.claim("alice")
    for iteration in (1, 2, 3):
        write(first, iteration)
    lost = first.begin(4)
    second.claim("bob")
    second.create()
    assert not CheckpointFolder(lost).complete()
    with pytest.raises(CheckpointError, match="the run 'bob'"):
        write(first, 4)
    place = tmp_path / "store" / "run[1] {x}*"
    (place / "iteration-00000002" / "notes.txt").write_text("mine")
    (place / "iteration-00000005").mkdir()
    (place / "iteration-00000005" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="iteration-00000005 is there already"):
        write(second, 5)
    second.prune(1)
    second.set_aside(second.complete()[3])
    second.release()
    found = {folder: [n for n in names if not n.endswith(".crc")] for folder, names in files(place).items()}
    assert found == {
        "damaged-iteration-00000003": ["model.safetensors", "state.json"],
        "iteration-00000002": ["notes.txt"],
        "iteration-00000005": ["notes.txt"],
    }
    assert list(other.complete()) == [1]


@pytest.mark.jvm
def test_hadoop_moves_no_checkpoint_into_another(hadoop: str, monkeypatch: Any) -> None:
    """Of two runs that finish at the same time, the second is told so."""
    folder = CheckpointFolder(f"{hadoop}/run")
    save(folder, nn.Linear(2, 1), TrainState(iteration=5), {})
    exists = HadoopFileSystem.exists
    monkeypatch.setattr(
        HadoopFileSystem, "exists", lambda fs, path: not path.endswith("-00000005") and exists(fs, path)
    )
    with pytest.raises(FileExistsError, match="iteration-00000005 is there already"):
        save(folder, nn.Linear(2, 1), TrainState(iteration=5), {})
    monkeypatch.undo()
    assert set(folder._store.entries(folder.complete()[5])) == {"model.safetensors", "state.json"}
    assert list(folder._store.entries(f"{hadoop}/run")) == ["iteration-00000005"]


def test_a_run_resumes_from_a_store(data: Dataset) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    straight = fit(data, 8)
    fit(data, 7, Checkpoint(url, EveryIterations(3)))
    result = fit(data, 8, Checkpoint(url, EveryIterations(3)), resume=True)
    assert_bit_equal(result.module, straight.module)
    memory = fsspec.filesystem("memory")
    assert not memory.exists(f"{url}/.running.json")
    for file in memory.find(url):
        memory.rm_file(file)


def test_two_runs_in_one_folder(data: Dataset, tmp_path: Path) -> None:
    """The second one is refused, also inside of the first; the first goes on."""

    class Another(Hook):
        def on_iteration_end(self, run: Run) -> None:
            if run.state.iteration == 4:
                with pytest.raises(CheckpointError, match="the run 'first'") as caught:
                    fit(data, 5, Checkpoint(tmp_path, EveryIterations(1)), name="second")
                assert caught.value.code == "checkpoint-folder"

    straight = fit(data, 7)
    result = fit(data, 7, Checkpoint(tmp_path, EveryIterations(3)), Another(), name="first")
    assert_bit_equal(result.module, straight.module)
    assert list(files(tmp_path)) == ["iteration-00000003", "iteration-00000006"]


def test_a_run_that_is_taken_over_ends_before_its_next_checkpoint(data: Dataset) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    second = CheckpointFolder(url)

    class TakeOver(Hook):
        def on_iteration_end(self, run: Run) -> None:
            if run.state.iteration == 4:
                deadline = time.monotonic() + 30
                while not list(second.complete()) and time.monotonic() < deadline:
                    time.sleep(0.01)  # a thread writes the checkpoint of iteration 3
                second.claim("second")

    with pytest.raises(CheckpointError, match="the run 'second'") as caught:
        fit(data, 9, Checkpoint(url, EveryIterations(3)), TakeOver())
    assert caught.value.result is not None
    assert caught.value.result.state.iteration == 6
    assert list(second.complete()) == [3]
    second.release()
    memory = fsspec.filesystem("memory")
    for file in memory.find(url):
        memory.rm_file(file)


def test_a_folder_of_others_with_a_checkpoints_name_is_found_at_once(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "iteration-00000006").mkdir()
    (tmp_path / "iteration-00000006" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="iteration-00000006 is no checkpoint"):
        fit(data, 9, Checkpoint(tmp_path, EveryIterations(3)))
    assert files(tmp_path) == {"iteration-00000006": ["notes.txt"]}


def test_file_systems_that_nobody_knows(data: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"cannot open nosuch://.*nor with Hadoop: .*nosuch"):
        Checkpoint("nosuch://bucket/run")


@pytest.mark.parametrize("options", [{"max_failures": -1}, {"keep": 0}])
def test_bad_options(tmp_path: Path, options: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Checkpoint(tmp_path, **options)
