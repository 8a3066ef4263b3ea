"""How the time of an iteration grows with the size of embedding tables.

    python benchmarks/tables.py --exchange replicated sharded --json tables.json

NeuralCF with MovieLens-1M's and MovieLens-20M's numbers of users and items, on synthetic pairs, with
``SparseAdam`` for the tables and ``Adam`` for the rest. The two take turns, ``--rounds`` times after one that
is thrown away; a figure is the median of the rounds, each the mean of the second half of ``--seconds``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial
from typing import Any

import keeping
import numpy as np
import torch
from peers import After
from torch import nn

from sparkdl import Dataset, Trainer, session
from sparkdl.nn import NeuralCF

SHAPES = {"1M": (6_040, 3_706), "20M": (138_000, 27_000)}
OPTIMIZERS = {
    "*user*": partial(torch.optim.SparseAdam, lr=1e-3),
    "*item*": partial(torch.optim.SparseAdam, lr=1e-3),
    "*": partial(torch.optim.Adam, lr=1e-3),
}


def measure(data: Dataset, shape: tuple[int, int], args: argparse.Namespace, exchange: str) -> float:
    """Return the milliseconds of an iteration."""
    torch.manual_seed(0)
    history = (
        Trainer(
            NeuralCF(*shape, embedding=64, mf_embedding=64, hidden=(128, 64, 32), sparse=True),
            loss=nn.BCEWithLogitsLoss(),
            optimizer=OPTIMIZERS,
            batch_size=args.batch,
            end_when=After(args.seconds),
            progress=False,
            exchange=exchange,
        )
        .fit(data)
        .history
    )
    later = [row["seconds"] for row in history[len(history) // 2 :]]
    return 1000 * statistics.mean(later)  # the end of a group, which is long, is everybody's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", default="local-cluster[2,1,4096]")
    parser.add_argument("--exchange", nargs="+", default=["replicated"])
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each in each round")
    parser.add_argument("--json", help="where to write the rows")
    args = parser.parse_args()
    conf = {"spark.executor.memory": "3g"}
    spark = session.builder(args.master, "benchmark tables", conf).getOrCreate()
    random = np.random.default_rng(0)
    count = 40 * args.batch
    label = random.integers(0, 2, count).astype(np.float32)
    found: dict[tuple[str, str], list[float]] = {}
    try:
        pairs = {name: [random.integers(0, size, count) for size in shape] for name, shape in SHAPES.items()}
        for turn in range(args.rounds + 1):
            for name, shape in SHAPES.items():
                with Dataset.from_numpy(pairs[name], label, spark=spark) as data:
                    for exchange in args.exchange:
                        took = measure(data, shape, args, exchange)
                        print(f"{name}, {exchange}, round {turn}: {took:.1f} ms", file=sys.stderr, flush=True)
                        if turn:
                            found.setdefault((name, exchange), []).append(took)
    finally:
        spark.stop()
    rows: list[dict[str, Any]] = []
    for (name, exchange), times in found.items():
        took = statistics.median(times)
        small = statistics.median(found["1M", exchange])
        rows.append(
            {
                "shape": name,
                "exchange": exchange,
                "ms_per_iteration": round(took, 1),
                "ratio": round(took / small, 2),
            }
        )
    for row in rows:
        print(json.dumps(row))
    keeping.write(args.json, rows)


if __name__ == "__main__":
    main()
