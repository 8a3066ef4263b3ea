"""Small fits whose bits are told, on the kind of session that is asked for: run by ``test_connect.py``."""

from __future__ import annotations

import hashlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from support.connect import tell
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset, Trainer, session
from sparkdl.ml import TorchClassifier, TorchRegressor
from sparkdl.optim import LAMB, ClipByNorm
from sparkdl.train import EMA, Checkpoint, EveryIterations, Hook, MaxIteration, Run

ROWS, FEATURES, CLASSES = 64, 6, 3


def start(kind: str) -> SparkSession:
    """Return a session: of a server at a URL, or a classic one."""
    if kind.startswith("sc://"):
        return SparkSession.builder.remote(kind).getOrCreate()
    return session.builder(kind, "classic", {"spark.ui.enabled": "false"}).getOrCreate()


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


class Narrow(nn.Module):
    """Takes the first outputs of a layer that makes weights too large to travel inside of tasks."""

    def forward(self, x: torch.Tensor) -> Any:
        return x[:, :CLASSES]


ADAM = partial(torch.optim.Adam, lr=1e-2)
SPARSE = {"table*": partial(torch.optim.SparseAdam, lr=1e-2), "*": ADAM}
CASES: dict[str, Any] = {
    "mlp": {},
    "norm": {"module": lambda: net(norm=True)},
    "sharded": {"module": lambda: net(norm=True), "exchange": "sharded"},
    "codec": {"exchange": "sharded", "gradient_codec": "int8", "weights_codec": "bf16"},
    "lamb": {"exchange": "sharded", "optimizer": partial(LAMB, lr=1e-2), "clip": ClipByNorm(1.0)},
    "local steps": {"local_steps": 2},
    "average": {"averaging": EMA(0.9)},
    "sparse": {"module": Table, "optimizer": SPARSE},
    "large": {"module": lambda: nn.Sequential(net(), nn.Linear(CLASSES, 600_000), Narrow()), "iterations": 2},
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


def frame(spark: SparkSession) -> Any:
    # Of a range: what a client holds, both kinds of session cut into other partitions.
    values = ", ".join(f"cast(sin(id * {k + 1}) as float)" for k in range(FEATURES))
    rows = spark.range(0, ROWS, 1, 2)
    return rows.selectExpr(f"array({values}) as x", f"cast(id * id % {CLASSES} as int) as y")


def fits(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the bits of all cases, and of a run that is resumed."""
    found: dict[str, Any] = {}
    with Dataset.from_dataframe(frame(spark), features="x", label="y", num_partitions=2) as data:
        for name, options in CASES.items():
            result = trainer(**options).fit(data, data if name in ("mlp", "sharded", "large") else None)
            found[name] = digest(result.module)
            found[f"{name} loss"] = result.history.column("loss")
            found[f"{name} scores"] = result.scores
            found[f"{name} direct"] = sum(result.history.column("direct"))
        one = trainer()
        one.fit(data)
        found["evaluate"] = one.evaluate(data)
        found["predict"] = hashlib.sha256(one.predict(data).tobytes()).hexdigest()
        kept = [Checkpoint(folder / "kept", EveryIterations(3))]
        trainer(4, exchange="sharded", hooks=kept).fit(data)
    return found


def resumed(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the bits of a run that goes on from a checkpoint in a folder."""
    with Dataset.from_dataframe(frame(spark), features="x", label="y", num_partitions=2) as data:
        kept = [Checkpoint(folder / "kept", EveryIterations(3))]
        result = trainer(9, exchange="sharded", hooks=kept).fit(data, resume=True)
        return {"resumed": digest(result.module), "iterations": result.state.iteration}


def arrays(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the bits of a fit on arrays of the client."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, FEATURES)).astype(np.float32)
    with Dataset.from_numpy(x, rng.integers(0, CLASSES, ROWS), spark=spark, num_partitions=2) as data:
        return {"arrays": digest(trainer().fit(data).module)}


def stages(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the bits of fits whose tasks do not exchange directly."""
    found: dict[str, Any] = {}
    with Dataset.from_dataframe(frame(spark), features="x", label="y", num_partitions=2) as data:
        for name in ("norm", "lamb"):
            result = trainer(4, transport="shuffle", **CASES[name]).fit(data)
            found[name] = digest(result.module)
            found[f"{name} direct"] = sum(result.history.column("direct"))
    return found


class Kill(Hook):
    """Kills one of the server's executors in the middle of a run."""

    def __init__(self, server: int, after: int) -> None:
        self.server, self.after, self.killed = server, after, 0

    def on_iteration_end(self, run: Run) -> None:
        if run.state.iteration == self.after and not self.killed:
            executors = [
                child
                for child in psutil.Process(self.server).children(recursive=True)
                if child.status() != psutil.STATUS_ZOMBIE
                and "CoarseGrainedExecutorBackend" in " ".join(child.cmdline())
            ]
            executors[0].kill()
            self.killed = 1


def lost(spark: SparkSession, server: Path) -> dict[str, Any]:
    """Return the bits of a run that loses an executor, and of one that does not."""
    options = {"exchange": "sharded", "iterations_per_job": 3}
    with Dataset.from_dataframe(frame(spark), features="x", label="y", num_partitions=2) as data:
        expected = trainer(12, **options).fit(data)
        kill = Kill(int(server.name), 5)
        result = trainer(12, hooks=[kill], **options).fit(data)
        return {"bits": digest(result.module), "expected": digest(expected.module), "killed": kill.killed}


def estimators(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the bits of estimators' modules, and how their models predict."""
    df = frame(spark).withColumn("z", F.col("x")[1].cast("double"))
    options = {"featuresCol": "x", "seed": 3, "maxEpochs": 2, "numPartitions": 2}
    classifier = TorchClassifier(labelCol="y", **options).fit(df)
    regressor = TorchRegressor(labelCol="z", **options).fit(df)
    found = {"classifier": digest(classifier.module), "regressor": digest(regressor.module)}
    rows = classifier.transform(df).select("prediction").collect()
    found["predictions"] = [row.prediction for row in rows]
    found["history"] = classifier.summary.objectiveHistory
    return found


if __name__ == "__main__":
    _, kind, what, place = sys.argv
    spark = start(kind)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name in what.split(","):
        found |= {f"{name}: {key}": value for key, value in globals()[name](spark, Path(place)).items()}
    tell(found)
    spark.stop()
