"""Seeded faults in a session without a JVM: tasks run again, workers, executors and drivers lost, full disks.

A workload is run undisturbed, and then with one fault at one of its tasks; a run that has ended with an error
is begun again, as ``sparkdl submit --retries`` does. In the end its bits are those of the undisturbed run.
"""

from __future__ import annotations

import resource
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.compute import worker
from sparkdl.data.scan import reader
from sparkdl.exceptions import SparkdlError
from sparkdl.ml import TorchModel
from sparkdl.online import OnlineTrainer, Publisher
from sparkdl.serve import Predictor
from sparkdl.train import Checkpoint, EveryIterations, MaxIteration
from sparkdl.tune import tuner as tuner_module
from support import no_jvm, searches
from support.ratings import keyed, pairs

KINDS = ("task", "worker", "executor", "driver", "disk")
_MOST_STARTS = 4
_DISK_TASKS = 6
"""So many tasks find a full disk."""


class KilledError(BaseException):
    """The driver is dead; nobody catches it."""


# -- what runs ----------------------------------------------------------------------------------


def training(spark: Any, folder: Path) -> bytes:
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)
    with Dataset.from_numpy(searches.FEATURES, searches.LABELS, spark=spark, num_partitions=2) as data:
        trainer = Trainer(
            nn.Sequential(*layers),
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.Adam, lr=1e-2),
            batch_size=24,
            end_when=MaxIteration(10),
            hooks=[Checkpoint(folder / "checkpoints", EveryIterations(3))],
            progress=False,
        )
        return _bytes(trainer.fit(data, resume=True).module)


def tables(spark: Any, folder: Path) -> bytes:
    hooks = [Checkpoint(folder / "checkpoints", EveryIterations(3))]
    with Dataset.from_numpy(*pairs(0), spark=spark, num_partitions=2) as data:
        found = keyed(end_when=MaxIteration(10), hooks=hooks).fit(data, resume=True)
    return _bytes(found.module)


def stream(spark: Any, folder: Path) -> bytes:
    example = pairs(0)[0]
    make = partial(TorchModel.from_module, example=example[:2], featuresCol="pair", outputCols=["score"])
    publisher = Publisher(folder / "models", make, seconds=None, full_every=3)
    online = OnlineTrainer(keyed(), folder / "run", publisher=publisher)
    for number in range(3):
        with Dataset.from_numpy(*pairs(number), spark=spark, num_partitions=2) as data:
            online.learn(data, number)
    assert [entry["batch"] for entry in online.history] == [0, 1, 2]
    served = Predictor.load(str(folder / "models"), trust=("support.ratings",)).predict(example)
    return _bytes(online.module) + served.tobytes()


def search(spark: Any, folder: Path) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner_module, "pool", lambda _: searches.Inline())
        found = searches.search(spark, folder / "search", resume=(folder / "search").exists())
    scores = [(trial.number, sorted(trial.values.items())) for trial in found.trials]
    return repr(scores).encode() + _bytes(found.module())


WORKLOADS = (training, tables, stream, search)


def _bytes(module: Any) -> bytes:
    return b"".join(value.numpy().tobytes() for _, value in sorted(module.state_dict().items()))


# -- what goes wrong ----------------------------------------------------------------------------


class Faults:
    """Counts the tasks of a session, and disturbs it at one of them.

    Args:
        folder: the executor's local directory.
        kind: one of ``KINDS``; ``None`` only counts.
        at: number of the task.
        room: bytes that a file may have on the full disk.
    """

    def __init__(self, folder: Path, kind: str | None = None, at: int = 0, room: int = 0) -> None:
        self.tasks = 0
        self.happened = False
        self._folder, self._kind, self._at, self._room = folder, kind, at, room
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def around(self, run: Callable[[int], list[bytes]], context: Any) -> Callable[[int], list[bytes]]:
        """Return a task that may be disturbed."""

        def task(partition: int) -> list[bytes]:
            self.tasks += 1
            if self.tasks == self._at:
                self.happened = True
                self._begin(run, partition, context)
            if self.tasks == self._at + _DISK_TASKS:
                self.end()
            return run(partition)

        return task

    def _begin(self, run: Callable[[int], list[bytes]], partition: int, context: Any) -> None:
        if self._kind == "task":
            run(partition)  # its result is lost, what it has left is not
        elif self._kind == "driver":
            raise KilledError
        elif self._kind == "disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._room, self._limits[1]))
        elif self._kind is not None:
            for kept in (worker._workers, worker._files, reader._readers):
                kept.clear()
        if self._kind == "executor":
            for rdd in list(context.persisted.values()):
                rdd._blocks.clear()
            for left in self._folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def end(self) -> None:
        """Give the disk its room back."""
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


@contextmanager
def disturbed(faults: Faults, local: Path) -> Iterator[Any]:
    """Give a session whose tasks are counted."""
    stage = no_jvm.Jobs.stage

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        found = stage(self, *arguments, **options)
        found._compute = faults.around(found._compute, self.sc)
        return found

    read = no_jvm.Rdd.read

    def read_or_fail(self: Any, partition: int) -> list[Any]:
        try:
            return read(self, partition)
        except KeyError as error:  # the stand-in has no lineage behind a shuffle that was released
            raise no_jvm.JobError(f"Job aborted: shuffle {error} is gone\n\tat org.apache.spark") from None

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(no_jvm.Rdd, "read", read_or_fail)
        patch.setattr(no_jvm.Jobs, "stage", counted)
        local.mkdir(parents=True, exist_ok=True)
        with no_jvm.no_jvm(str(local)) as spark:
            try:
                yield spark
            finally:
                faults.end()


@dataclass(frozen=True)
class Calm:
    """An undisturbed run: its result, and how many tasks it had."""

    right: bytes
    tasks: int


def calm(workload: Callable[[Any, Path], bytes], folder: Path) -> Calm:
    faults = Faults(folder / "local")
    with disturbed(faults, folder / "local") as spark:
        return Calm(workload(spark, folder / "kept"), faults.tasks)


@dataclass(frozen=True)
class Ended:
    """How a seed ended: what was done, the errors that it took, and whether the bits are right."""

    workload: str
    kind: str
    errors: tuple[str, ...]
    right: bool


def check(seed: int, folder: Path, undisturbed: dict[str, Calm]) -> Ended:
    """Disturb a workload once, begin it again while it ends with an error, and compare its bits.

    Raises:
        Exception: if an error is not one that tells the user what to do.
    """
    random = np.random.default_rng(seed)
    workload = WORKLOADS[seed % len(WORKLOADS)]
    name, kind = workload.__name__, KINDS[int(random.integers(len(KINDS)))]
    if name not in undisturbed:
        undisturbed[name] = calm(workload, folder / name)
    reference, errors, own = undisturbed[name], list[str](), folder / str(seed)
    fault = Faults(
        own / "local0", kind, 1 + int(random.integers(reference.tasks)), int(random.integers(4000))
    )
    try:
        for start in range(_MOST_STARTS):
            local = own / f"local{start}"
            faults = Faults(local) if start else fault
            try:
                with disturbed(faults, local) as spark:
                    found = workload(spark, own / "kept")
            except KilledError:
                errors.append("killed")
            except (SparkdlError, OSError) as error:
                errors.append(f"{type(error).__name__}: {error}"[:300])
            else:
                kind = kind if fault.happened else "none"  # commits go by time: there were fewer tasks
                return Ended(name, kind, tuple(errors), found == reference.right)
        return Ended(name, kind, tuple(errors), False)
    finally:
        shutil.rmtree(own, ignore_errors=True)
