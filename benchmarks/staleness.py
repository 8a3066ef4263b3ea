"""Accuracy and steps per second with stragglers: synchronous, without slow rows, with late gradients.

    python benchmarks/staleness.py --master 'local[2]'
    python benchmarks/staleness.py --master 'local[2]' --epochs 1 --seeds 1

The factorisation machine and the ratings of ``admission.py`` (MovieLens-100K, the last fifth to test).
In an iteration each task is slow with a probability, drawn from iteration and task: its backward pass sleeps.
The straggler policy leaves rows of slow tasks out, and knows no embedding variables yet: it trains the same
model with a table of a fixed size, which has a line without the policy, too. Late gradients come one update
late, whatever the time (``Staleness``).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

import admission
import cloudpickle
import numpy as np
import torch
from admission import WIDTH, Machine, movielens
from torch import Tensor, nn
from torchmetrics.classification import BinaryAUROC

from sparkdl import Dataset, Trainer, seeding, session
from sparkdl.metrics import MetricSpec
from sparkdl.nn.losses import binary_cross_entropy
from sparkdl.optim import Staleness
from sparkdl.train import DropStragglers, MaxEpoch

cloudpickle.register_pickle_by_value(admission)  # executors cannot import benchmarks

_SKIPPED = 20
"""Iterations whose times do not count: processes start."""
_STREAM = 99
_DRAWN = 1 << 64


class FixedMachine(Machine):
    """The machine with a table of a fixed size, by the numbers of ids."""

    def __init__(self, ids: int) -> None:
        super().__init__(1)
        self.table = nn.Embedding(ids, 1 + WIDTH, sparse=True)
        nn.init.normal_(self.table.weight, std=0.01)


@dataclass(frozen=True)
class SlowStep:
    """A training step that sleeps now and then.

    Attributes:
        share: of tasks and iterations that are slow.
        seconds: how long one sleeps.
        rows: rows of a task, so that a task that goes through them in pieces sleeps as long.
    """

    share: float
    seconds: float
    rows: int

    def __call__(self, module: nn.Module, batch: Any) -> dict[str, Tensor]:
        """Return the loss of each row."""
        output = module(batch.inputs)
        loss = binary_cross_entropy(output, batch.label)
        if not module.training:
            return {"loss": loss, "output": output}
        if loss.requires_grad and self._is_slow(batch.iteration):
            loss.register_hook(lambda _: time.sleep(self.seconds * batch.rows / self.rows))
        return {"loss": loss}

    def _is_slow(self, iteration: int) -> bool:
        from pyspark import TaskContext

        task = TaskContext.get()
        partition = task.partitionId() if task is not None else 0
        return seeding.derive(_STREAM, iteration, partition) < self.share * _DRAWN


CASES: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "half of the gradients late": {"staleness": Staleness(share=0.5)},
    "half late, counting half": {"staleness": Staleness(share=0.5, decay=0.5)},
    "half late, dropped": {"staleness": Staleness(share=0.5, decay=0.0)},
    "all late": {"staleness": Staleness()},
    "all rows late, weights on time": {"staleness": Staleness(rows_only=True)},
    "fixed table": {"exchange": "driver"},
    "fixed table, slow rows left out": {"drop_stragglers": DropStragglers(max_fraction=0.45, patience=1.5)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy and steps per second with stragglers.")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--share", type=float, default=0.1, help="of tasks that are slow")
    parser.add_argument("--seconds", type=float, default=0.2, help="how long such a task sleeps")
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    spark = session.builder(args.master, app_name="staleness").getOrCreate()
    metrics = {"auc": MetricSpec(BinaryAUROC(), lambda output, label, _: (output, label.long()))}
    train, test = movielens()
    known, numbers = np.unique(np.concatenate([train[0], test[0]]), return_inverse=True)
    numbers = numbers.reshape(-1, train[0].shape[1])
    fixed = (numbers[: len(train[0])], train[1]), (numbers[len(train[0]) :], test[1])
    print(f"{'':34}{'AUC':>8}{'steps/s':>10}")
    for name in args.cases:
        parts = fixed if name.startswith("fixed") else (train, test)
        found: list[tuple[float, float]] = []
        for seed in range(args.seeds):
            torch.manual_seed(seed)
            with (
                Dataset.from_numpy(*parts[0], spark=spark, num_partitions=2) as data,
                Dataset.from_numpy(*parts[1], spark=spark, num_partitions=2) as held_out,
            ):
                trainer = Trainer(
                    FixedMachine(len(known)) if parts is fixed else Machine(1),
                    step=SlowStep(args.share, args.seconds, args.batch_size // 2),
                    optimizer=partial(torch.optim.Adagrad, lr=args.lr),
                    metrics=metrics,
                    batch_size=args.batch_size,
                    seed=seed,
                    end_when=MaxEpoch(args.epochs),
                    progress=False,
                    **CASES[name],
                )
                seconds = trainer.fit(data).history.column("seconds")[_SKIPPED:]
                auc = trainer.evaluate(held_out)["auc"]
                found.append((auc, len(seconds) / sum(seconds)))
        auc, steps = (mean(values) for values in zip(*found, strict=True))
        print(f"{name:34}{auc:8.4f}{steps:10.2f}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
