"""Artefacts of two runs, mixed: an answer is right, or refused; it is never another run's."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.no_jvm import no_jvm
from support.ratings import Scores, keyed, pairs
from torch import nn

from sparkdl import Dataset
from sparkdl.exceptions import ConfigError, SparkdlError
from sparkdl.ml import TorchModel
from sparkdl.online import OnlineTrainer, Publisher
from sparkdl.saved.changes import apply_changes, write_changes
from sparkdl.saved.identity import identity_of, mark
from sparkdl.saved.table_rows import export_rows, without_rows
from sparkdl.serve import Predictor
from sparkdl.train.checkpoint import load_weights

TRUST = ("support.ratings",)
EXAMPLE = np.concatenate([pairs(part)[0] for part in range(4)])
STEPS = (3, 6, 9, 12)


def publisher(folder: Path | str, **options: Any) -> Publisher:
    make = partial(TorchModel.from_module, example=EXAMPLE[:2], featuresCol="pair", outputCols=["score"])
    return Publisher(folder, make, **{"seconds": None, "full_every": 3, "keep": 10, **options})


def learn(online: OnlineTrainer, number: int, part: int, spark: Any) -> nn.Module:
    with Dataset.from_numpy(*pairs(part), spark=spark, num_partitions=2) as data:
        assert online.learn(data, number)
    return online.module.eval()


def answer(module: nn.Module) -> bytes:
    with torch.no_grad():
        return module.eval()(torch.from_numpy(EXAMPLE)).numpy().tobytes()


def served(folder: Path | str, **options: Any) -> bytes:
    return bytes(Predictor.load(str(folder), trust=TRUST, **options).predict(EXAMPLE).tobytes())


@dataclass(frozen=True)
class Runs:
    """Folders ``0`` and ``1`` of two runs, and what each answers after an iteration."""

    folder: Path
    right: dict[tuple[str, int], bytes]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    with no_jvm(str(tmp_path_factory.mktemp("session"))) as spark:
        return runs_in(folder, spark)


def runs_in(folder: Path, spark: Any) -> Runs:
    """Learn two streams."""
    right: dict[tuple[str, int], bytes] = {}
    for run in "01":
        own = folder / run
        online = OnlineTrainer(keyed(), own / "run", publisher=publisher(own / "models"), keep=10)
        for number in range(4):
            trained = learn(online, number, 4 * int(run) + number, spark)
            iteration = online.history[-1]["iteration"]
            right[run, iteration] = answer(trained)
            export_rows(trained, own / f"rows-{iteration}")
            publisher(own / f"small-{iteration}").publish(without_rows(trained), iteration)
            if number:
                data = write_changes(online._module(online._loaded[0]), STEPS[number - 1], iteration)  # type: ignore[index]
                (own / f"changes-{iteration}").write_bytes(data or b"")
    assert {n for _, n in right} == set(STEPS)
    assert len({*right.values()}) == 8
    return Runs(folder, right)


def mix(made: Runs, random: np.random.Generator, where: Path, name: str) -> Path:
    """Return a copy of one run's folder with some files of the other's."""
    target, other = where / name, made.folder / str(random.integers(2)) / name
    shutil.copytree(made.folder / str(random.integers(2)) / name, target)
    files = sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    whole = sorted({file.parts[0] for file in files})
    chosen = {str(each) for each in random.choice(whole, random.integers(1, 4))}
    for file in files:
        if file.parts[0] in chosen and (len(file.parts) == 1 or random.random() < 0.8):
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(other / file, target / file)
    return target


def of_versions(made: Runs, random: np.random.Generator, where: Path) -> tuple[bytes, set[bytes]]:
    """A folder of versions: as it is, gone back in, or followed."""
    models = mix(made, random, where, "models")
    way = random.integers(3)
    iteration = json.loads((models / "current.json").read_text())["iteration"]
    if way == 1:
        iteration = int(random.choice(STEPS))
        publisher(models).rollback(iteration)
    if way == 2:
        predictor = Predictor.load(str(made.folder / str(random.integers(2)) / "models"), trust=TRUST)
        predictor._loaded = (predictor._loaded[0], partial(Predictor.load, str(models), trust=TRUST))  # type: ignore[index]
        predictor.refresh()
        return predictor.predict(EXAMPLE).tobytes(), {made.right[run, iteration] for run in "01"}
    return served(models), {made.right[run, iteration] for run in "01"}


def of_rows(made: Runs, random: np.random.Generator, where: Path) -> tuple[bytes, set[bytes]]:
    """A model with the rows of a folder: both of one moment."""
    run, iteration = str(random.integers(2)), int(random.choice(STEPS))
    other = str(random.integers(2)), int(random.choice(STEPS))
    rows = made.folder / other[0] / f"rows-{other[1]}"
    found = served(made.folder / run / f"small-{iteration}", rows=rows)
    return found, {made.right[run, iteration]} if other == (run, iteration) else set()


def of_changes(made: Runs, random: np.random.Generator, where: Path) -> tuple[bytes, set[bytes]]:
    """A module with changes: of the way that it is on."""
    run, iteration = str(random.integers(2)), int(random.choice(STEPS))
    other, until = str(random.integers(2)), int(random.choice(STEPS[1:]))
    module = Scores()
    load_weights(made.folder / run / "run" / "commits" / f"iteration-{iteration:08d}", module)
    data = (made.folder / other / f"changes-{until}").read_bytes()
    if random.random() < 0.1:
        place = int(random.integers(len(data)))
        data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    apply_changes(module, data, iteration)
    return answer(module), {made.right[run, until]} if run == other else set()


def of_checkpoints(made: Runs, random: np.random.Generator, where: Path) -> tuple[bytes, set[bytes]]:
    """Checkpoints, of which later ones have changes of those before."""
    commits, iteration = mix(made, random, where, "run") / "commits", int(random.choice(STEPS))
    module = Scores()
    load_weights(commits / f"iteration-{iteration:08d}", module)
    return answer(module), {made.right[run, iteration] for run in "01"}


def check(made: Runs, seed: int, where: Path) -> bool:
    """Return whether a mix was answered, which is right then."""
    random = np.random.default_rng(seed)
    kind = (of_versions, of_rows, of_changes, of_checkpoints)[seed % 4]
    try:
        found, right = kind(made, random, where)
    except SparkdlError:
        return False
    finally:
        shutil.rmtree(where, ignore_errors=True)
    assert found in right, f"{kind.__name__}, seed {seed}"
    return True


def test_mixes_of_two_runs(made: Runs, tmp_path: Path) -> None:
    answered = sum(check(made, seed, tmp_path / "mix") for seed in range(48))
    assert 5 < answered < 43


@pytest.mark.slow
def test_very_many_mixes_of_two_runs(made: Runs, tmp_path: Path) -> None:
    answered = sum(check(made, seed, tmp_path / "mix") for seed in range(1000, 2000))
    assert 200 < answered < 800


def test_a_folder_that_outlived_its_run(made: Runs, spark: Any, tmp_path: Path) -> None:
    """Its versions are not taken for those of the next run."""
    models = tmp_path / "models"
    shutil.copytree(made.folder / "0" / "models", models)
    online = OnlineTrainer(keyed(), tmp_path / "run", publisher=publisher(models))
    with pytest.raises(ConfigError, match="version that is served is of the run .* Give each run a folder"):
        learn(online, 0, 5, spark)
    assert not online.history  # before anything was trained
    assert served(models) == made.right["0", 12]


@pytest.mark.parametrize("url", ["{}/models", "memory://{}/models"])
def test_two_runs_that_begin_at_once(spark: Any, tmp_path: Path, url: str) -> None:
    """Both find an empty folder; the one that publishes first wins, whether the other counts alike or not."""
    models = url.format(tmp_path)
    runs = [OnlineTrainer(keyed(), tmp_path / run, publisher=publisher(models)) for run in "ab"]
    for run in runs:
        run._checked = True  # before either had published
    learn(runs[0], 0, 5, spark)
    there = runs[0].publisher.versions() if runs[0].publisher else {}
    for number in range(2):
        with pytest.raises(ConfigError, match="served is of the run .* Give each run a folder"):
            learn(runs[1], number, 6 + number, spark)
    assert there == publisher(models).versions()
    assert served(models) == answer(runs[0].module)
    learn(runs[0], 1, 7, spark)
    assert served(models) == answer(runs[0].module)


def test_of_two_programs_that_publish_at_once_one_wins(made: Runs, tmp_path: Path) -> None:
    """The lock covers the comparison and the pointer."""
    modules, ends = [], Counter[str]()
    for run in "01":
        module = Scores()
        load_weights(made.folder / run / "run" / "commits" / "iteration-00000003", module)
        modules.append(module)
    start = threading.Barrier(2)

    def publish(module: nn.Module, folder: Path) -> None:
        start.wait()
        try:
            publisher(folder).publish(module, 3, same_run=True)
            ends["published"] += 1
        except ConfigError as error:
            ends[str("of the run" in str(error))] += 1

    for attempt in range(5):
        folder = tmp_path / str(attempt)
        threads = [threading.Thread(target=publish, args=(module, folder)) for module in modules]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert served(folder) in {made.right["0", 3], made.right["1", 3]}
    assert ends == {"published": 5, "True": 5}


def test_a_number_that_is_taken(tmp_path: Path) -> None:
    def version(value: float) -> nn.Module:
        module = nn.Linear(1, 1, bias=False)
        nn.init.constant_(module.weight, value)
        return module

    def publish(value: float) -> float:
        make = partial(TorchModel.from_module, example=np.ones((2, 1), np.float32), featuresCol="x")
        Publisher(tmp_path, make, seconds=None).publish(version(value), 10)
        return float(Predictor.load(str(tmp_path)).predict(np.ones((1, 1), np.float32))[0, 0])

    assert publish(3.0) == 3.0
    assert publish(3.0) == 3.0  # the same once more, as after a crash
    with pytest.raises(ConfigError, match="version-00000010 is there already and has other weights"):
        publish(6.0)


def test_one_publisher_of_two_runs(made: Runs, tmp_path: Path) -> None:
    """Changes are made of a version of the same run only."""
    ours = publisher(tmp_path / "models")
    for run, iteration in (("0", 3), ("1", 6)):
        module = Scores()
        load_weights(made.folder / run / "run" / "commits" / f"iteration-{iteration:08d}", module)
        ours.publish(module, iteration)
        assert served(tmp_path / "models") == made.right[run, iteration]
    assert not list((tmp_path / "models").glob("changes-*"))


def test_going_back_to_a_damaged_version(made: Runs, tmp_path: Path) -> None:
    """The checksum in a pointer is not computed anew from what it is to check."""
    models = tmp_path / "models"
    shutil.copytree(made.folder / "0" / "models", models)
    file = models / "changes-00000003-00000006.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 64]) + whole[-8:])
    with pytest.raises(ConfigError, match="changes-00000003-00000006.safetensors is damaged"):
        publisher(models).rollback(6)
    assert served(models) == made.right["0", 12]
    file.write_bytes(whole)
    publisher(models).rollback(6)
    assert served(models) == made.right["0", 6]


def test_a_run_that_began_again_elsewhere(made: Runs, spark: Any, tmp_path: Path) -> None:
    """Two starts from one checkpoint count alike and are two runs."""
    right = []
    for part, name in ((5, "a"), (6, "b")):
        shutil.copytree(made.folder / "0" / "run", tmp_path / name)
        right.append(learn(OnlineTrainer(keyed(), tmp_path / name), 9, part, spark))
    (one, other) = map(identity_of, right)
    assert one is not None
    assert other is not None
    assert one.run != other.run
    assert one.before == other.before
    assert one.iteration == other.iteration
    data = write_changes(right[0], 12, one.iteration)
    if data is not None:
        with pytest.raises(ConfigError, match="not a version on the way"):
            apply_changes(right[1], data, one.iteration)
    export_rows(right[0], tmp_path / "rows")
    publisher(tmp_path / "small").publish(without_rows(right[1]), one.iteration)
    with pytest.raises(ConfigError, match="do not belong together"):
        served(tmp_path / "small", rows=tmp_path / "rows")


def test_what_an_earlier_release_has_written_loads_alone(made: Runs, tmp_path: Path) -> None:
    run = made.folder / "0"
    module = Scores()
    load_weights(run / "run" / "commits" / "iteration-00000003", module)
    data = (run / "changes-6").read_bytes()
    mark(module, None)
    with pytest.raises(ConfigError, match="a module of a run that is not known"):
        apply_changes(module, data, 3)
    shutil.copytree(run / "rows-3", tmp_path / "rows")
    told = json.loads((tmp_path / "rows" / "tables.json").read_text())
    (tmp_path / "rows" / "tables.json").write_text(json.dumps({n: told[n] for n in ("format", "tables")}))
    with pytest.raises(ConfigError, match="the first is of a run that is not known"):
        served(run / "small-3", rows=tmp_path / "rows")
