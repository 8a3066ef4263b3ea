"""A small search whose parts other processes find by their names."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset, Trainer, tune
from sparkdl.optim import ClipByNorm
from sparkdl.saved.digest import stable_digest
from sparkdl.tune import tuner as tuner_module
from sparkdl.tune.running import runners
from support import no_jvm

RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.normal(size=(96, 6)).astype(np.float32)
LABELS = (FEATURES[:, 0] * FEATURES[:, 1] > 0).astype(np.int64)


class Inline(Executor):
    """Runs at once what is submitted: without a JVM, tasks are calls and share torch's generator."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


def relu(x: Tensor) -> Tensor:
    return torch.relu(x)


def other_loss(output: Tensor, label: Tensor) -> Tensor:
    return functional.cross_entropy(output, label, label_smoothing=0.1)


class Net(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor], width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.last, self.dropout = nn.Linear(6, width), nn.Linear(width, 2), nn.Dropout(dropout)
        self.activation = activation

    def forward(self, x: Tensor) -> Any:
        return self.last(self.dropout(self.activation(self.first(x))))


def make(params: dict[str, Any], loss: Any, rows: int, dropout: float) -> Trainer:
    return Trainer(
        Net(params["activation"], params["width"], dropout),
        loss=loss,
        optimizer=partial(torch.optim.Adam, lr=params["lr"]),
        batch_size=rows,
        metrics=MulticlassAccuracy(num_classes=2),
        progress=False,
    )


def tuner(
    folder: Path | str | None,
    *,
    functions: Sequence[Any] = (relu, torch.tanh),
    loss: Any = functional.cross_entropy,
    rows: int = 16,
    dropout: float = 0.1,
    constant: int = 4,
    **others: Any,
) -> tune.Tuner:
    space = {"lr": tune.loguniform(1e-3, 1e-1), "activation": list(functions), "width": constant}
    train = partial(make, loss=loss, rows=rows, dropout=dropout)
    options: dict[str, Any] = {"metric": "val/loss", "search": "random", "trials": 4, "max_epochs": 1}
    options |= others
    return tune.Tuner(train, space, folder=folder, concurrent=1, progress=False, seed=3, **options)


def rows(spark: Any, last: int = 96, shift: float = 0.0, partitions: int = 3) -> Dataset:
    features = FEATURES[:last] + np.float32(shift)
    return Dataset.from_numpy(features, LABELS[:last], spark=spark, num_partitions=partitions)


def search(
    spark: Any,
    folder: Path | str | None,
    *,
    resume: bool = False,
    data: float = 0.0,
    validation: float = 0.0,
    partitions: int = 3,
    last: int = 96,
    **options: Any,
) -> tune.SearchResult:
    with rows(spark, last, data, partitions) as train, rows(spark, 40, validation, partitions) as held:
        return tuner(folder, **options).fit(train, {"val": held}, resume=resume)


def killed(folder: str, rung: int) -> None:
    """Search, and be killed when a rung begins."""
    run = runners.TaskRunner._run

    def dying(self: Any, which: Any, *arguments: Any) -> Any:
        if which.number == rung:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(self, which, *arguments)

    runners.TaskRunner._run = dying  # type: ignore[method-assign]
    tuner_module.pool = lambda _: Inline()
    print(digests(), flush=True)
    with tempfile.TemporaryDirectory() as local, no_jvm.no_jvm(local) as spark:
        search(spark, folder)


def values() -> list[Any]:
    """Return values of which no two are equal."""
    return [
        *(1, 1.0, True, None, "a", b"a", float("nan"), (1, 2), [1, 2], {"a": 1}, {"a", "b"}),
        *(nn.CrossEntropyLoss(label_smoothing=s) for s in (0.0, 0.1)),
        *(functional.cross_entropy, functional.gelu, torch.relu, torch.tanh, relu, nn.ReLU, np.exp, print),
        *(partial(torch.optim.Adam, lr=rate) for rate in (1e-3, 1e-2)),
        *(np.arange(5000) + n for n in (0, 1)),
        *(torch.ones(2), torch.zeros(2), torch.float32, ClipByNorm(1.0), ClipByNorm(2.0)),
        *(MulticlassAccuracy(num_classes=n) for n in (2, 3)),
    ]


def digests() -> str:
    return " ".join(str(stable_digest(value)) for value in values())
