"""What codecs and local steps cost in accuracy, on real data.

    python benchmarks/convergence.py --json convergence.json

LeNet-5 on MNIST-5k (4,000 images to train on, 1,000 to test with) and NeuralCF on MovieLens-100K (hit
ratio and NDCG at 10 of 99 others), trained as in ``examples/`` (without averaged weights), the same for each
variant but for what it is named by. A row is the mean over seeds. It says how many rows a run had and how
many optimizer steps of a partition, for what is compared must be equal in both:

- An epoch of rounds of 4 or 8 local steps has as many steps as one of single steps, but fewer exchanges.
- ``local_steps=epoch`` has one round of as many steps as an epoch has, so that weights are averaged once.
- A round of 64 ends with the epoch, which is shorter. It still has 64 steps, of fewer rows each.
  ``64 per epoch`` is what it must be compared with: single steps, all exchanged, of batches so small that an
  epoch has 64 of them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import keeping
import torch
from pyspark import cloudpickle as spark_cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import mnist_lenet as mnist
import ncf_movielens as ncf

from sparkdl import Column, Dataset, Trainer, session
from sparkdl.metrics import NDCG, HitRatio, MetricSpec
from sparkdl.nn import LeNet5, NeuralCF
from sparkdl.train import History, Int8, LocalSteps, MaxEpoch, TopK

for _pickler in (cloudpickle, spark_cloudpickle):  # executors cannot import examples
    _pickler.register_pickle_by_value(mnist)
    _pickler.register_pickle_by_value(ncf)

_OUTER = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
EPOCH = 0  # in place of a number of local steps: as many as an epoch has
LOCAL: Mapping[str, Mapping[str, Any]] = {
    "64 per epoch": {"per_epoch": 64},
    "local_steps=epoch": {"local_steps": EPOCH},
    "local_steps=4": {"local_steps": 4},
    "local_steps=8": {"local_steps": 8},
    "local_steps=64": {"local_steps": 64},
    "post-local, 1 then 8": {"local_steps": LocalSteps({0: 1, 2: 8})},
    "DiLoCo, 8": {"local_steps": LocalSteps(8, outer=_OUTER)},
}
CODECS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"gradient_codec": "bf16"},
    "fp16": {"gradient_codec": "fp16"},
    "int8": {"gradient_codec": Int8()},
    "TopK(0.1)": {"gradient_codec": TopK(0.1)},
    "TopK(0.01)": {"gradient_codec": TopK(0.01)},
    "weights bf16": {"weights_codec": "bf16"},
    "int8, weights bf16": {"gradient_codec": Int8(), "weights_codec": "bf16"},
}
Variants = Mapping[str, Mapping[str, Any]]
VARIANTS: Variants = {"fp32": {}, **CODECS, **LOCAL}


def options_of(variant: Mapping[str, Any], rows: int, batch: int) -> dict[str, Any]:
    """Return a variant's options of a Trainer.

    Args:
        variant: options, also ``per_epoch``: how many steps an epoch is to have, in place of a batch size.
        rows: of an epoch.
        batch: rows of a step, by default.
    """
    options = {"batch_size": batch, **variant}
    if "per_epoch" in options:
        options["batch_size"] = math.ceil(rows / options.pop("per_epoch"))
    if options.get("local_steps") == EPOCH:
        options["local_steps"] = math.ceil(rows / batch)
    return options


def effort(history: History, options: Mapping[str, Any]) -> dict[str, int]:
    """Return how many rows a run has seen, and how many steps each partition's weights have gone."""
    found = options.get("local_steps", 1)
    local = found if isinstance(found, LocalSteps) else LocalSteps(found)
    steps = sum(local.at(row["epoch"] - 1) for row in history)
    return {"rows": sum(row["samples"] for row in history), "steps": steps}


def on_mnist(spark: SparkSession, partitions: int, seeds: int, variants: Variants) -> list[dict[str, Any]]:
    """Return a row per variant."""
    train, test = mnist.read_mnist(spark)
    train = train.coalesce(
        2
    )  # figures depend on how rows are dealt out, and older ones are of two partitions
    image = Column("image", shape=(1, 28, 28), dtype="uint8")
    rows = []
    with (
        Dataset.from_dataframe(
            train, features=image, label="digit", transform=mnist.scale, num_partitions=partitions
        ) as data,
        Dataset.from_dataframe(test, features=image, label="digit", transform=mnist.scale) as held_out,
    ):
        for name, variant in variants.items():
            options = options_of(variant, len(data), 128)
            found, took = [], []
            for seed in range(seeds):
                torch.manual_seed(seed)
                trainer = Trainer(
                    LeNet5(),
                    loss=nn.CrossEntropyLoss(),
                    optimizer=partial(torch.optim.Adam, lr=3e-3),
                    seed=seed,
                    end_when=MaxEpoch(8),
                    metrics={"accuracy": MulticlassAccuracy(10, average="micro")},
                    progress=False,
                    **options,
                )
                begin = time.perf_counter()
                history = trainer.fit(data).history
                took.append(time.perf_counter() - begin)
                found.append(trainer.evaluate(held_out)["accuracy"])
            row = {"data": "mnist", "variant": name, "accuracy": [round(100 * a, 1) for a in found]}
            row |= {"mean": round(100 * statistics.mean(found), 2), "seconds": _round(took)}
            rows.append(row | effort(history, options))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def on_movielens(
    spark: SparkSession, partitions: int, users: int | None, epochs: int, variants: Variants
) -> list[dict[str, Any]]:
    """Return a row per variant, of one seed."""
    ratings = ncf.read_ratings(spark, users).cache()
    count, items = (1 + top for top in ratings.agg(F.max("user"), F.max("item")).collect()[0])
    train, test = ncf.leave_last_out(ratings, 0)
    pairs, others = ncf.with_negatives(train, items, 0), ncf.with_others(test, ratings, items, 0)
    rows = []
    with (
        Dataset.from_dataframe(pairs, features=ncf.FEATURES, num_partitions=partitions) as data,
        Dataset.from_dataframe(others, features=ncf.FEATURES) as last,
    ):
        for name, variant in variants.items():
            options = options_of(variant, len(data), 4096)
            torch.manual_seed(0)
            trainer = Trainer(
                NeuralCF(count, items, 32, 32, hidden=(32, 16, 8)),
                step=partial(ncf.ranking_step, negatives=4),
                optimizer=partial(torch.optim.Adam, lr=8e-3),
                metrics={
                    "hr": MetricSpec(HitRatio(10), ncf.with_relevance),
                    "ndcg": MetricSpec(NDCG(10), ncf.with_relevance),
                },
                seed=0,
                end_when=MaxEpoch(epochs),
                progress=False,
                **options,
            )
            begin = time.perf_counter()
            history = trainer.fit(data).history
            took = time.perf_counter() - begin
            scores = {name: round(score, 4) for name, score in trainer.evaluate(last).items()}
            row = {"data": "movielens", "variant": name, **scores, "seconds": _round([took])}
            rows.append(row | effort(history, options))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def _round(seconds: list[float]) -> float:
    return round(statistics.median(seconds), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", default="local-cluster[2,1,4096]")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--users", type=int, help="how many of MovieLens' users; by default all")
    parser.add_argument("--epochs", type=int, default=14, help="of NeuralCF")
    parser.add_argument(
        "--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="NAME"
    )
    parser.add_argument("--json", help="where to write the rows")
    args = parser.parse_args()
    spark = session.builder(args.master, app_name="benchmark convergence").getOrCreate()
    try:
        variants = {name: VARIANTS[name] for name in args.variants}
        rows = on_mnist(spark, args.partitions, args.seeds, variants)
        uncoded = {name: options for name, options in variants.items() if name not in CODECS}
        rows += on_movielens(spark, args.partitions, args.users, args.epochs, uncoded)
    finally:
        spark.stop()
    keeping.write(args.json, rows)


if __name__ == "__main__":
    main()
