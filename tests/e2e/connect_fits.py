"""Small fits whose bits are told: ``test_connect.py`` runs them in its session, and here on Spark Connect.

python connect_fits.py sc://host:port fits=/folder resumed=/other/folder
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import sys
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import connect_models
import numpy as np
import psutil
import torch
from pyspark import cloudpickle as spark_cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from support.connect import tell
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset, Trainer
from sparkdl._spark.session import is_connect
from sparkdl.ml import TorchClassifier, TorchRegressor
from sparkdl.nn import EmbeddingVariable
from sparkdl.optim import LAMB, ClipByNorm
from sparkdl.train import EMA, Checkpoint, EveryIterations, Hook, MaxIteration, Run

FAST = {"norm", "lamb", "keyed", "large"}
"""Cases of the fast suite; the others take as long, and show less."""

ROWS, FEATURES, CLASSES = 64, 6, 3


def net(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(8, CLASSES))


class Table(nn.Module):
    """An embedding table with gradients of the rows that a batch touches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 4, sparse=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.table((x[:, 0].abs() * 10).long() % 50))


class Keyed(nn.Module):
    """An embedding variable."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = EmbeddingVariable(4, seed=1)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.table((x[:, 0].abs() * 10).long()))


class Narrow(nn.Module):
    """Takes the first outputs of a layer that makes weights too large to travel inside of tasks."""

    def forward(self, x: torch.Tensor) -> Any:
        return x[:, :CLASSES]


ADAM = partial(torch.optim.Adam, lr=1e-2)
SPARSE = {"table*": partial(torch.optim.SparseAdam, lr=1e-2), "*": ADAM}
LAMB_OPTIONS = {"exchange": "sharded", "optimizer": partial(LAMB, lr=1e-2), "clip": ClipByNorm(1.0)}
CASES: dict[str, Any] = {
    "mlp": {},
    "norm": {"module": lambda: net(norm=True)},
    "sharded": {"module": lambda: net(norm=True), "exchange": "sharded"},
    "codec": {"exchange": "sharded", "gradient_codec": "int8", "weights_codec": "bf16"},
    "lamb": LAMB_OPTIONS,
    "local steps": {"local_steps": 2},
    "average": {"averaging": EMA(0.9)},
    "sparse": {"module": Table, "optimizer": SPARSE},
    "sparse sharded": {"module": Table, "optimizer": SPARSE, "exchange": "sharded"},
    "keyed": {"module": Keyed, "optimizer": SPARSE},
    "keyed sharded": {"module": Keyed, "optimizer": SPARSE, "exchange": "sharded"},
    "large": {
        "module": lambda: nn.Sequential(net(), nn.Linear(CLASSES, 600_000), Narrow()),
        "iterations": 2,
        "validate_when": EveryIterations(2),
    },
}


def trainer(iterations: int = 7, **options: Any) -> Trainer:
    made = {"loss": nn.CrossEntropyLoss(), "optimizer": ADAM, "batch_size": 16, "progress": False}
    made |= {
        "end_when": MaxIteration(iterations),
        "metrics": MulticlassAccuracy(CLASSES),
        "seed": 3,
    } | options
    return Trainer(made.pop("module", net)(), **made)


def digest(module: nn.Module) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        found.update(name.encode() + tensor.detach().numpy().tobytes())
    return found.hexdigest()[:16]


def values() -> tuple[Any, Any]:
    """Return features and labels."""
    ids = np.arange(ROWS)[:, None]
    x = (ids * np.arange(3, FEATURES + 3) % 17 - 8) / 8
    return x.astype(np.float32), (ids * ids % CLASSES)[:, 0]


def frame(spark: SparkSession) -> Any:
    """Return the same as a table."""
    # Of a range: what a client holds, both kinds of session cut into other partitions.
    columns = ", ".join(f"cast((id * {k + 3} % 17 - 8) / 8.0 as float)" for k in range(FEATURES))
    rows = spark.range(0, ROWS, 1, 2)
    return rows.selectExpr(f"array({columns}) as x", f"cast(id * id % {CLASSES} as int) as y")


def table(spark: SparkSession, partitions: int = 2) -> Dataset:
    return Dataset.from_dataframe(frame(spark), features="x", label="y", num_partitions=partitions)


def arrays(spark: SparkSession, partitions: int = 2) -> Dataset:
    x, y = values()
    return Dataset.from_numpy(x, y, spark=spark, num_partitions=partitions)


def fits(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the bits of some cases and passes, and leave a run's checkpoint."""
    with arrays(spark) as data:
        found = each(data, FAST)
        one = trainer()
        found["evaluate"] = one.evaluate(data)
        found["predict"] = hashlib.sha256(one.predict(data).tobytes()).hexdigest()
        kept = [Checkpoint(folder / "kept", EveryIterations(3))]
        trainer(4, exchange="sharded", hooks=kept).fit(data)
    # All rows in one partition: there they are in the order of the table, and alone they have no others.
    with table(spark, 1) if is_connect(spark) else arrays(spark, 1) as data:
        found["table"] = digest(trainer(4).fit(data).module)
    return found


def all_options(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the bits of all cases, on rows of a table."""
    with table(spark) as data:
        return each(data, CASES)


def each(data: Dataset, names: Collection[str]) -> dict[str, Any]:
    """Return the bits of cases."""
    found: dict[str, Any] = {}
    for name, options in CASES.items():
        if name in names:
            result = trainer(**options).fit(data, data if name in ("norm", "sharded", "large") else None)
            found[name] = digest(result.module)
            found[f"{name} loss"] = result.history.column("loss")
            found[f"{name} scores"] = result.scores
            found[f"{name} direct"] = sum(result.history.column("direct"))
    return found


def resumed(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the bits of a run that goes on from a checkpoint in a folder."""
    with arrays(spark) as data:
        kept = [Checkpoint(folder / "kept", EveryIterations(3))]
        result = trainer(9, exchange="sharded", hooks=kept).fit(data, resume=True)
        return {"resumed": digest(result.module), "iterations": result.state.iteration}


class Unreachable(nn.Sequential):
    """A module whose processes refuse all connections by TCP while a file is there, as a firewall does."""

    wall = ""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        build_wall(self.wall)


def build_wall(wall: str) -> None:
    """Let sockets of this process connect to nobody while a file is there."""
    plain: Any = socket.socket.connect_ex
    if hasattr(plain, "wall"):
        return

    def connect_ex(self: socket.socket, address: Any) -> int:
        return errno.ECONNREFUSED if os.path.exists(wall) else plain(self, address)

    connect_ex.wall = wall  # type: ignore[attr-defined]
    socket.socket.connect_ex = connect_ex  # type: ignore[method-assign, assignment]


def blocked(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the bits of a fit whose tasks cannot reach each other, and what the log says."""
    wall = folder / "wall"
    told: list[str] = []
    log, handler = logging.getLogger("sparkdl"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    wall.touch()
    found: dict[str, Any] = {}
    try:
        with arrays(spark) as data:
            module = Unreachable(*net())
            module.wall = str(wall)
            result = trainer(3, module=lambda: module, **LAMB_OPTIONS).fit(data)
        found["fit"] = digest(result.module)
        found["fit direct"] = sum(result.history.column("direct"))
    finally:
        wall.unlink()
        log.removeHandler(handler)
    found["told"] = [message for message in told if "directly" in message]
    return found


def stages(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the bits of a fit whose tasks do not exchange directly."""
    found: dict[str, Any] = {}
    with arrays(spark) as data:
        result = trainer(3, transport="shuffle", **LAMB_OPTIONS).fit(data)
        found["lamb"] = digest(result.module)
        found["lamb direct"] = sum(result.history.column("direct"))
    return found


class Kill(Hook):
    """Kills one of a cluster's executors in the middle of a run.

    Args:
        processes: process ids of those that start executors: a server with a ``local-cluster``, or workers.
        after: iterations before that.
    """

    def __init__(self, processes: Sequence[int], after: int) -> None:
        self.processes, self.after, self.killed = processes, after, 0

    def on_iteration_end(self, run: Run) -> None:
        if run.state.iteration == self.after and not self.killed:
            executors = [
                child
                for process in self.processes
                for child in psutil.Process(process).children(recursive=True)
                if child.status() != psutil.STATUS_ZOMBIE
                and "CoarseGrainedExecutorBackend" in " ".join(child.cmdline())
            ]
            executors[0].kill()
            self.killed = 1


def lost(spark: SparkSession, processes: Path) -> dict[str, Any]:
    """Return the bits of runs that lose an executor, and of others that do not."""
    keyed = {"module": Keyed, "optimizer": SPARSE}
    cases: list[tuple[str, Any, Any]] = [
        ("table", table, {}),
        ("arrays", arrays, {}),
        ("keyed", table, keyed),
    ]
    found: dict[str, Any] = {}
    for name, make, more in cases:
        options = {"exchange": "sharded", "iterations_per_job": 3, **more}
        with make(spark) as data:
            expected = trainer(12, **options).fit(data)
            kill = Kill([int(process) for process in processes.name.split(",")], 5)
            result = trainer(12, hooks=[kill], **options).fit(data)
        found[name] = [digest(result.module), result.history.column("loss"), kill.killed]
        found[f"{name}: expected"] = [digest(expected.module), expected.history.column("loss"), 1]
    return found


def hundred_million(spark: SparkSession, optimizer: Path) -> dict[str, Any]:
    """Return the bits of a fit of 100 million parameters, in groups of two steps, and its scores."""
    width = 10_000

    def wide() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(width, CLASSES))

    made = {"sgd": partial(torch.optim.SGD, lr=1e-2), "adam": partial(torch.optim.Adam, lr=1e-4)}
    with arrays(spark) as data:
        one = trainer(4, module=wide, iterations_per_job=2, optimizer=made[optimizer.name])
        begin = time.monotonic()
        result = one.fit(data)
        fitted = time.monotonic()
        assert sum(value.numel() for value in result.module.parameters()) > 100_000_000
        scores = one.evaluate(data, module=result.module)
        name = optimizer.name
        return {
            name: digest(result.module),
            f"{name} loss": result.history.column("loss"),
            f"{name} direct": sum(result.history.column("direct")),
            f"{name} scores": scores,
            f"{name} seconds": [fitted - begin, time.monotonic() - fitted, *result.history.column("seconds")],
        }


def regressor(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the bits of a regressor's module."""
    df = frame(spark).withColumn("z", F.col("x")[1].cast("double"))
    model = TorchRegressor(labelCol="z", featuresCol="x", seed=3, maxEpochs=2, numPartitions=2).fit(df)
    return {"module": digest(model.module)}


def estimators(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the bits of an estimator's module, and what its model predicts."""
    df = frame(spark)
    options = {"featuresCol": "x", "seed": 3, "maxEpochs": 8, "numPartitions": 2}
    classifier = TorchClassifier(labelCol="y", **options).fit(df)
    found: dict[str, Any] = {"classifier": digest(classifier.module)}
    rows = classifier.transform(df).select("prediction").collect()
    found["predictions"] = [row.prediction for row in rows]
    found["history"] = classifier.summary.objectiveHistory
    return found


def run(spark: SparkSession, what: Sequence[str]) -> dict[str, Any]:
    """Run functions of this module, and of ``connect_models.py``.

    Args:
        spark: the session.
        what: ``name=folder`` of each.
    """
    functions = vars(connect_models) | globals()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found: dict[str, Any] = {}
        for name, _, place in (each.partition("=") for each in what):
            told = functions[name](spark, Path(place))
            found |= {f"{name}: {key}": value for key, value in told.items()}
        return found
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    for pickler in (cloudpickle, spark_cloudpickle):  # the server cannot import it
        pickler.register_pickle_by_value(connect_models)
    session = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    tell(run(session, sys.argv[2:]))
    session.stop()
