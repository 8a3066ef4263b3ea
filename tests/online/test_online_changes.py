"""Versions that are changes of others: predictors and servers follow them, under load, and go back."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.ratings import keyed, pairs
from support.serving import Running

from sparkdl import Dataset
from sparkdl.exceptions import ConfigError
from sparkdl.ml import TorchModel
from sparkdl.online import OnlineTrainer, Publisher
from sparkdl.saved import reading
from sparkdl.saved.published import Chains, ChangesFile, Current
from sparkdl.serve import Predictor

TRUST = ("support.ratings",)
EXAMPLE = np.concatenate([pairs(part)[0] for part in range(4)])
"""Users that early versions do not know are among them."""


def publisher(folder: Path, **options: Any) -> Publisher:
    make = partial(TorchModel.from_module, example=EXAMPLE[:2], featuresCol="pair", outputCols=["score"])
    return Publisher(folder, make, **{"seconds": None, "full_every": 3, **options})


def learn(online: OnlineTrainer, number: int, spark: Any) -> Any:
    """Learn a batch; return what the model predicts then."""
    with Dataset.from_numpy(*pairs(number % 4), spark=spark, num_partitions=2) as data:
        assert online.learn(data, number)
    with torch.no_grad():
        return online.module.eval()(torch.from_numpy(EXAMPLE)).numpy()


def names(folder: Path) -> list[str]:
    return sorted(path.name.partition(".")[0] for path in folder.iterdir())


def test_a_predictor_follows_changes_and_goes_back(spark: Any, tmp_path: Path) -> None:
    models = tmp_path / "models"
    published = publisher(models, keep=3)
    online = OnlineTrainer(keyed(), tmp_path / "run", publisher=published, keep=10)
    expected = {}
    predictor: Any = None
    for number in range(5):
        found = learn(online, number, spark)
        expected[online.history[-1]["iteration"]] = found
        fresh = Predictor.load(published.path, trust=TRUST)
        predictor = predictor or fresh
        assert predictor.refresh() == (number > 0)
        assert not predictor.refresh()
        for each in (fresh, predictor):
            assert each.predict(EXAMPLE).tobytes() == found.tobytes()
    steps = [*expected]
    # The third one is to be kept, and changes the two before it; the fourth one is complete.
    assert [*published.versions()] == steps
    assert names(models) == [
        f"changes-{steps[0]:08d}-{steps[1]:08d}",
        f"changes-{steps[1]:08d}-{steps[2]:08d}",
        f"changes-{steps[3]:08d}-{steps[4]:08d}",
        "current",
        f"version-{steps[0]:08d}",
        f"version-{steps[3]:08d}",
    ]
    quantized = Predictor.load(published.path, trust=TRUST, quantize=True)
    online.rollback(steps[2])
    assert names(models)[-2:] == ["current", f"version-{steps[0]:08d}"]
    assert quantized.refresh()
    assert predictor.refresh()
    assert predictor.predict(EXAMPLE).tobytes() == expected[steps[2]].tobytes()
    found = learn(online, 5, spark)  # not a change of a version that has gone
    assert names(models)[-1] == f"version-{online.history[-1]['iteration']:08d}"
    assert predictor.refresh()
    assert predictor.predict(EXAMPLE).tobytes() == found.tobytes()


def test_a_program_that_begins_again_publishes_a_complete_version(spark: Any, tmp_path: Path) -> None:
    models, run = tmp_path / "models", tmp_path / "run"
    for number in range(3):
        online = OnlineTrainer(keyed(), run, publisher=publisher(models))
        found = learn(online, number, spark)
    assert len(list(models.glob("version-*"))) == 3
    found = learn(online, 3, spark)
    (change,) = models.glob("changes-*")
    assert Predictor.load(str(models), trust=TRUST).predict(EXAMPLE).tobytes() == found.tobytes()

    predictor = Predictor.load(str(models), trust=TRUST)
    last = learn(online, 4, spark)
    _, newest = sorted(models.glob("changes-*"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1] + b"x")
    with pytest.raises(ConfigError, match="is damaged"):
        predictor.refresh()
    assert predictor.predict(EXAMPLE).tobytes() == found.tobytes()
    newest.write_bytes(whole)
    assert predictor.refresh()
    assert predictor.predict(EXAMPLE).tobytes() == last.tobytes()
    change.unlink()
    assert not predictor.refresh()
    with pytest.raises(ConfigError, match="cannot be read"):
        Predictor.load(str(models), trust=TRUST)


def scores(answer: bytes) -> tuple[float, ...]:
    return tuple(float(np.float32(row["score"])) for row in json.loads(answer)["rows"])


@pytest.mark.whole
def test_a_server_follows_a_trainer_under_load(spark: Any, tmp_path: Path) -> None:
    """Each answer is that of one version, none fails, and the last version is served at the end."""
    published = publisher(tmp_path / "models")
    online = OnlineTrainer(keyed(), tmp_path / "run", publisher=published)
    right = [learn(online, 0, spark)]
    body = {"rows": [{"pair": row.tolist()} for row in EXAMPLE]}
    answers: list[tuple[int, str, Any]] = []
    done = threading.Event()
    with Running(published.path, copies=2, watch=0.02, trust=TRUST) as running:
        versions = running.server.service.versions
        whole: list[str] = []
        read = versions._load

        def ask() -> None:
            while not done.is_set():
                status, headers, answer = running.request("POST", "/predict", body)
                answers.append((status, headers["X-Model-Version"], answer))
                time.sleep(0.005)  # else three threads take most of the trainer's time

        def counted() -> Any:
            whole.append("")
            return read()

        versions._load = counted
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(1, 6):
            before = versions.current.model.version
            right.append(learn(online, number, spark))
            until = time.monotonic() + 60
            while versions.current.model.version == before and time.monotonic() < until:
                time.sleep(0.01)
        before = versions.current.model.version
        online.rollback(online.history[2]["iteration"])
        until = time.monotonic() + 60
        while versions.current.model.version == before and time.monotonic() < until:
            time.sleep(0.01)
        last = running.request("POST", "/predict", body)[2]
        done.set()
        for thread in threads:
            thread.join()
    assert {status for status, _, _ in answers} == {200}
    known = {tuple(values.tolist()) for values in right}
    given = {(version, scores(answer)) for _, version, answer in answers}
    assert {values for _, values in given} <= known
    assert len(given) == len({version for version, _ in given}) >= 6
    assert scores(last) == tuple(right[2].tolist())
    assert len(whole) == 2  # the fourth version, and the one that was gone back to: the others were changes


def test_chains_of_files() -> None:
    files = [
        "version-00000010",
        "changes-00000010-00000012.safetensors",
        "current.json",
        "version-x",
        "changes-1-2",
    ]
    files += ["changes-00000012-00000015.safetensors", "changes-00000013-00000016.safetensors"]
    chains = Chains.of(files)
    assert chains.iterations == [10, 12, 15]  # nothing leads to 13
    assert chains.leading_to(15) == [(10, 12), (12, 15)]
    assert chains.needless([12]) == [files[5], files[6]]
    assert chains.newer(10) == [files[1], files[5], files[6]]


@pytest.mark.parametrize(
    "changes",
    [
        [{"since": 1, "until": 2, "sha256": "../../secret"}],
        [{"since": 1, "until": "2/../..", "sha256": "0" * 64}],
        [{"since": 1, "until": 3, "sha256": "0" * 64}],
        [{"since": 1, "until": 4, "sha256": "0" * 64}, {"since": 3, "until": 5, "sha256": "0" * 64}],
        [{"since": 5, "until": 5, "sha256": "0" * 64}, {"since": 5, "until": 5, "sha256": "0" * 64}],
        [{"since": 1}],
        5,
    ],
)
def test_pointers_that_lead_nowhere(changes: Any) -> None:
    good = Current(5, 1, 2.0, (ChangesFile(1, 5, "0" * 64),))
    assert Current.parse(good.to_json(), "") == good
    assert Current.parse(b'{"iteration": 5, "batches": 1, "seconds": 2}', "") == Current(5, 1, 2.0)
    with pytest.raises(ConfigError, match="does not name a version"):
        Current.parse(
            json.dumps({"iteration": 5, "batches": 1, "seconds": 2, "changes": changes}).encode(), ""
        )


@pytest.mark.parametrize(
    "values",
    [
        {"seconds": 10**400},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"iteration": 10**30},
        {"batches": 1 << 63},
        {"changes": [{"since": 1, "until": 10**30, "sha256": "0" * 64}], "iteration": 10**30},
    ],
)
def test_pointers_with_numbers_that_are_none(values: Any) -> None:
    with pytest.raises(ConfigError, match="does not name a version"):
        Current.parse(json.dumps({"iteration": 5, "batches": 1, "seconds": 2, **values}).encode(), "")


def test_a_chain_ends_before_readers_stop_reading_its_names(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of changes has its name and checksum in current.json, whose length readers limit."""
    monkeypatch.setattr("sparkdl.online.publisher.LONGEST", 800)
    published = publisher(tmp_path / "models", full_every=1000, keep=100)
    online = OnlineTrainer(keyed(), tmp_path / "run", publisher=published)
    for number in range(5):
        learn(online, number, spark)
        assert (tmp_path / "models" / "current.json").stat().st_size < 800
    assert len(list((tmp_path / "models").glob("version-*"))) == 2


def test_drafts_that_a_crash_has_left_are_deleted(spark: Any, tmp_path: Path) -> None:
    models = tmp_path / "models"
    online = OnlineTrainer(keyed(), tmp_path / "run", publisher=publisher(models))
    left = [
        models / f".{name}.{32 * 'a'}" for name in ("current.json", "changes-00000001-00000002.safetensors")
    ]
    learn(online, 0, spark)
    for draft in left:
        draft.write_bytes(b"half")
    (models / ".current.json.mine").write_bytes(b"kept")
    learn(online, 1, spark)
    assert sorted(path.name for path in models.glob(".*")) == [".current.json.mine"]


def test_files_that_a_link_leads_to_are_not_deleted(spark: Any, tmp_path: Path) -> None:
    models, other = tmp_path / "models", tmp_path / "other" / "metadata"
    other.mkdir(parents=True)
    (other / "part-00000").write_text("{}")
    models.mkdir()
    (models / "version-00000000").symlink_to(other.parent)
    online = OnlineTrainer(keyed(), tmp_path / "run", publisher=publisher(models, keep=1))
    learn(online, 0, spark)
    assert not (models / "version-00000000").is_symlink()
    assert (other / "part-00000").exists()


def test_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "current.json")
    with pytest.raises(ConfigError, match="current.json is not a regular file"):
        Predictor.load(str(tmp_path))


@pytest.mark.parametrize(("times", "again"), [(1, False), (2, False), (3, True), (100, False)])
def test_a_version_that_was_deleted_while_it_was_read_is_passed_over(
    times: int, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = [torch.nn.Linear(2, 1) for _ in range(8)]
    make = partial(TorchModel.from_module, example=np.zeros((1, 2), np.float32), featuresCol="x")
    published = Publisher(tmp_path, make, seconds=None, keep=1, full_every=1)
    published.publish(modules[0], 0)
    predictor = Predictor.load(str(tmp_path))
    done, read = [0], reading._Folder.metadata

    def overtaken(folder: Any) -> Any:
        if done[0] < times:
            done[0] += 1
            published.publish(modules[done[0]], done[0])
        return read(folder)

    monkeypatch.setattr(reading._Folder, "metadata", overtaken)
    if times == 100:  # for ever: it is not tried for ever
        with pytest.raises(ConfigError, match="nothing complete was saved"):
            Predictor.load(str(tmp_path))
        assert done == [reading._ATTEMPTS]
        return
    rows = np.ones((3, 2), np.float32)
    expected = modules[times](torch.from_numpy(rows)).detach().numpy()
    if again:
        assert predictor.refresh()
    else:
        predictor = Predictor.load(str(tmp_path))
    assert predictor.predict(rows).tobytes() == expected.tobytes()
    (tmp_path / f"version-{times:08d}" / "metadata" / "part-00000").unlink()
    with pytest.raises(ConfigError, match="nothing complete was saved"):
        Predictor.load(str(tmp_path))


def test_publishers_take_turns_in_a_folder(tmp_path: Path) -> None:
    """Of one program, whose threads have a lock, and of several, which have the kernel's."""
    modules = {iteration: torch.nn.Linear(2, 1) for iteration in range(1, 5)}

    def publish(iteration: int) -> None:
        make = partial(TorchModel.from_module, example=np.zeros((1, 2), np.float32), featuresCol="x")
        Publisher(tmp_path, make, seconds=None, keep=9).publish(modules[iteration], iteration)

    publish(1)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # another program publishes
        threads = [threading.Thread(target=publish, args=(iteration,)) for iteration in (2, 3, 4)]
        for thread in threads:
            thread.start()
        threads[0].join(0.1)
        assert all(thread.is_alive() for thread in threads)
        assert names(tmp_path) == ["current", "version-00000001"]
    finally:
        os.close(folder)
    for thread in threads:
        thread.join(30)
    assert names(tmp_path) == ["current", *(f"version-{iteration:08d}" for iteration in modules)]
    rows = np.ones((3, 2), np.float32)
    last = Publisher(tmp_path, seconds=None).current()
    assert last is not None
    for path, iteration in (
        (tmp_path, last.iteration),
        *((tmp_path / f"version-{n:08d}", n) for n in modules),
    ):
        expected = modules[iteration](torch.from_numpy(rows)).detach().numpy()
        assert Predictor.load(str(path)).predict(rows).tobytes() == expected.tobytes()
