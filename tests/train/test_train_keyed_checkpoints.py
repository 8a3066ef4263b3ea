"""Checkpoints with embedding variables: changes between complete ones."""

from __future__ import annotations

import copy
import json
import shutil
import signal
import time
from pathlib import Path
from threading import Event, main_thread
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.data import as_dataset
from test_train_keyed import PARTS, data, keyed, rows_of, trainer

from sparkdl import Dataset
from sparkdl.__main__ import main
from sparkdl.exceptions import ConfigError
from sparkdl.train import Checkpoint, EveryIterations, Hook, MaxIteration, Run, load_weights
from sparkdl.train.checkpoint import CheckpointFolder, merging, read_point
from sparkdl.train.hooks import checkpoint as hooks_checkpoint

__all__ = ["data"]  # a fixture

CHANGING: dict[str, Any] = {"min_count": 2, "max_age": 4, "min_norm": 0.09, "evict_every": 3}


def fit(data: Dataset, end: int, *hooks: Hook, resume: Any = False) -> Any:
    options: dict[str, Any] = {"iterations_per_job": 2, "batch_size": 20, "end_when": MaxIteration(end)}
    return trainer(keyed(**CHANGING), hooks=hooks, **options).fit(data, resume=resume)


class Waiting(Checkpoint):
    """Waits for each checkpoint, also for one that is made of others."""

    def on_boundary(self, run: Run, last: bool) -> None:
        super().on_boundary(run, last)
        self._wait(run, last=True)


def checkpoint(path: Path | str, kind: type[Checkpoint] = Waiting, **options: Any) -> Checkpoint:
    return kind(path, EveryIterations(2), **{"full_every": 3, "keep": None, **options})


def bases(path: Path) -> dict[int, int | None]:
    return {n: CheckpointFolder(path).describe(p, verify=True)["base"] for n, p in _complete(path).items()}


def problems(path: Path) -> list[str]:
    folder = CheckpointFolder(path)
    return [folder.describe(p, verify=True)["problem"] for p in folder.complete().values()]


def _complete(path: Path) -> dict[int, str]:
    return CheckpointFolder(path).complete()


def test_a_run_resumes_from_changes_with_the_bits_of_complete_ones(data: Dataset, tmp_path: Path) -> None:
    whole = fit(data, 14, checkpoint(tmp_path / "whole", full_every=1))
    for shared in (False, True):
        path = tmp_path / str(shared)
        hook = checkpoint(path, shared=shared)
        fit(data, 12, hook)
        assert bases(path) == {2: None, 4: 2, 6: 4, 8: None, 10: 8, 12: 10}
        assert problems(path) == [""] * 6
        for number in (6, 12):
            own, complete = keyed(**CHANGING), keyed(**CHANGING)
            load_weights(_complete(path)[number], own)
            load_weights(_complete(tmp_path / "whole")[number], complete)
            assert rows_of(own) == rows_of(complete)
        resumed = fit(data, 14, hook, resume=True)
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
            own = keyed(**CHANGING)
            load_weights(_complete(path)[10], own)
            assert rows_of(own) == found[-1]
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


class Slowly(Hook):
    """Lets no checkpoint be made of others between some iterations.

    Args:
        path: folder of the checkpoints.
        until: iteration before which the one that has begun is complete.
    """

    def __init__(self, path: Path, until: int) -> None:
        self.path, self.until, self.may_go_on = path, until, Event()

    def merge(self, *arguments: Any) -> Any:
        assert self.may_go_on.wait(60)
        return merging.merge(*arguments)

    def on_iteration_begin(self, run: Run) -> None:
        if run.state.iteration == self.until:
            self.may_go_on.set()
            while 8 not in _complete(self.path):
                time.sleep(0.01)


def test_checkpoints_go_on_while_one_is_made_of_others(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(data, 16, checkpoint(tmp_path / "whole", full_every=1))
    for keep in (None, 1):
        path = tmp_path / str(keep)
        slowly = Slowly(path, 12)
        monkeypatch.setattr(hooks_checkpoint, "merge", slowly.merge)
        fit(data, 14, checkpoint(path, keep=keep, kind=Checkpoint), slowly)
        found = {2: None, 4: 2, 6: 4, 8: None, 10: 6, 12: 10, 14: 8}
        assert bases(path) == ({8: None, 14: 8} if keep else found)
        assert problems(path) == [""] * len(bases(path))
        for number in bases(path):
            own, complete = keyed(**CHANGING), keyed(**CHANGING)
            load_weights(_complete(path)[number], own)
            load_weights(_complete(tmp_path / "whole")[number], complete)
            assert rows_of(own) == rows_of(complete)
        resumed = fit(data, 16, checkpoint(path), resume=True)
        assert rows_of(resumed.module) == rows_of(whole.module)


def test_the_end_of_a_run_waits_for_a_checkpoint_that_is_made_of_others(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*arguments: Any) -> Any:
        time.sleep(0.2)
        return merging.merge(*arguments)

    monkeypatch.setattr(hooks_checkpoint, "merge", late)
    fit(data, 8, checkpoint(tmp_path, keep=1, kind=Checkpoint))
    assert bases(tmp_path) == {8: None}


def test_one_that_is_made_of_others_while_many_follow_is_not_deleted(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is complete while a later one is being written, which then deletes older ones."""
    slowly = Slowly(tmp_path, 1000)
    finish = CheckpointFolder.finish

    def late(self: CheckpointFolder, place: str, files: Any, digests: Any, merge: Any = None) -> str:
        if files.iteration == 12:
            slowly.may_go_on.set()
            while 8 not in _complete(tmp_path):
                time.sleep(0.01)
        return finish(self, place, files, digests, merge)

    monkeypatch.setattr(hooks_checkpoint, "merge", slowly.merge)
    monkeypatch.setattr(CheckpointFolder, "finish", late)
    fit(data, 14, checkpoint(tmp_path, keep=1, kind=Checkpoint), slowly)
    assert bases(tmp_path) == {8: None, 14: 8}
    assert problems(tmp_path) == ["", ""]


def test_in_the_foreground_all_rows_come_from_the_run(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks_checkpoint, "merge", None)
    fit(data, 12, checkpoint(tmp_path, background=False))
    assert bases(tmp_path) == {2: None, 4: 2, 6: 4, 8: None, 10: 8, 12: 10}


def test_a_hook_that_has_run_can_be_copied(data: Dataset, tmp_path: Path) -> None:
    hook = checkpoint(tmp_path)
    fit(data, 2, hook)
    assert copy.deepcopy(hook).path == tmp_path


class Deletes(Hook):
    """Deletes a checkpoint behind the run's back.

    Args:
        path: folder of the checkpoints.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_iteration_begin(self, run: Run) -> None:
        if run.state.iteration == 7:
            shutil.rmtree(self.path / "iteration-00000006")


def test_a_checkpoint_that_others_have_deleted(data: Dataset, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="could not be written.*iteration-00000006"):
        fit(data, 12, checkpoint(tmp_path), Deletes(tmp_path))
    assert bases(tmp_path) == {2: None, 4: 2, 10: None, 12: 10}


class Damages(Hook):
    """Damages a checkpoint.

    Args:
        path: folder of the checkpoints.
        when: iteration.
    """

    def __init__(self, path: Path, when: int) -> None:
        self.path, self.when = path, when

    def on_iteration_begin(self, run: Run) -> None:
        if run.state.iteration == self.when:
            (shard,) = (self.path / "iteration-00000004").glob("shard-00000*")
            shard.write_bytes(shard.read_bytes()[:-1] + b"!")


def test_what_cannot_be_made_of_others_is_written_whole_next_time(data: Dataset, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="could not be written.*iteration-00000004 is damaged"):
        fit(data, 12, checkpoint(tmp_path), Damages(tmp_path, 7))
    assert bases(tmp_path) == {2: None, 4: 2, 6: 4, 10: None, 12: 10}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".iter")) == []


class Raises(Hook):
    """Ends a run by an exception.

    Args:
        error: the exception; one of ``KeyboardInterrupt`` is a second Ctrl-C.
    """

    def __init__(self, error: BaseException) -> None:
        self.error, self.done = error, Event()

    def on_iteration_begin(self, run: Run) -> None:
        if run.state.iteration == 10:
            self.done.set()
            raise self.error


def endless(base: str, folder: str, digests: Any, write: Any, check: Any) -> Any:
    """Merge for ever."""
    for _ in range(3000):
        time.sleep(0.01)
        check()
    pytest.fail("nothing has ended this")


def test_a_second_ctrl_c_does_not_wait_for_large_files(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks_checkpoint, "merge", endless)
    with pytest.raises(KeyboardInterrupt):
        fit(data, 12, checkpoint(tmp_path, kind=Checkpoint), Raises(KeyboardInterrupt()))
    assert 8 not in bases(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".iter")] == []


def test_ctrl_c_after_an_error_does_not_wait_for_large_files(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raises = Raises(ValueError("an error"))

    def interrupted(*arguments: Any) -> Any:
        assert raises.done.wait(60)
        for _ in range(2):
            time.sleep(0.3)
            # While the run waits at its end: this interrupts it, as Ctrl-C does, and not this thread.
            signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
        return endless(*arguments)

    monkeypatch.setattr(hooks_checkpoint, "merge", interrupted)
    hook = checkpoint(tmp_path, kind=Checkpoint)
    with pytest.raises((ValueError, KeyboardInterrupt)):
        fit(data, 12, hook, raises)
    assert 8 not in bases(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".iter")] == []
    assert copy.deepcopy(hook).path == tmp_path


def test_a_long_chain_waits_for_the_checkpoint_that_ends_it(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*arguments: Any) -> Any:
        for _ in range(3000):
            if 14 in _complete(tmp_path):
                break
            time.sleep(0.01)
        time.sleep(0.2)
        return merging.merge(*arguments)

    monkeypatch.setattr(hooks_checkpoint, "merge", late)
    fit(data, 18, checkpoint(tmp_path, kind=Checkpoint))
    assert bases(tmp_path) == {2: None, 4: 2, 6: 4, 8: None, 10: 6, 12: 10, 14: 12, 16: 8, 18: 16}


def test_on_a_store_without_folders(data: Dataset, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    fit(data, 10, checkpoint(url))
    found = CheckpointFolder(url).complete()
    assert [CheckpointFolder(url).describe(path, verify=True)["base"] for path in found.values()] == [
        *(None, 2, 4, None),
        8,
    ]
    fit(data, 10, checkpoint(tmp_path / "whole", full_every=1))
    for number, path in found.items():
        own, complete = keyed(**CHANGING), keyed(**CHANGING)
        load_weights(path, own)
        load_weights(_complete(tmp_path / "whole")[number], complete)
        assert rows_of(own) == rows_of(complete)
