"""A driver program on a host: trains, and says in its last line with which bits it has ended."""

from __future__ import annotations

import argparse
import hashlib
import json
import socket
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl import Dataset, Trainer, session
from sparkdl.train import Checkpoint, EveryIterations, Hook, MaxIteration


class Tell(Hook):
    """Prints a line at some iterations."""

    def on_train_begin(self, run: Any) -> None:
        if run.state.iteration:
            print(f"resumed after iteration {run.state.iteration}", flush=True)

    def on_iteration_end(self, run: Any) -> None:
        if run.state.iteration % 20 == 0:
            print(f"iteration {run.state.iteration} at {time.time():.3f}", flush=True)


def paused(pause: float, x: torch.Tensor) -> torch.Tensor:
    time.sleep(pause)
    return x


def rows() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(6000, 64)).astype(np.float32)
    return x, (x[:, :8].sum(1) > 0).astype(np.int64)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of each step beside its computing")
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--cores", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--checkpoints")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--table", help="Parquet files to train on, with 12 streams")
    parser.add_argument("--cache-bytes", type=int, default=0)
    args = parser.parse_args()
    conf = {"spark.executor.memory": "700m", "spark.cores.max": str(args.cores)}
    conf |= dict(pair.split("=", 1) for pair in args.conf)
    remote = args.master.startswith("sc://")
    if remote:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.remote(args.master).getOrCreate()
    else:
        spark = session.builder(args.master, app_name="hosts", conf=conf).getOrCreate()
    x, y = rows()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 2))
    hooks: list[Hook] = [Tell()]
    if args.checkpoints is not None:
        hooks.append(Checkpoint(args.checkpoints, EveryIterations(50)))
    begin = time.time()
    transform = partial(paused, args.pause) if args.pause else None
    given: dict[str, Any] = {"spark": spark, "num_partitions": args.partitions, "transform": transform}
    if args.table is None:
        made = Dataset.from_numpy(x, y, **given)
    else:
        scan = {"streams": 12, "window": 200_000, "cache_bytes": args.cache_bytes}
        made = Dataset.from_parquet(args.table, features="x", label="y", **scan, **given)
    with made as data:
        trainer = Trainer(
            module,
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.Adam, lr=1e-3),
            batch_size=300,
            seed=1,
            end_when=MaxIteration(args.steps),
            hooks=hooks,
            progress=False,
        )
        result = trainer.fit(data, resume=args.resume)
    weights = [tensor.numpy().tobytes() for tensor in result.module.state_dict().values()]
    history = result.history
    found = {
        "host": socket.gethostname(),
        "bits": hashlib.sha256(b"".join(weights)).hexdigest(),
        "iterations": result.state.iteration,
        "direct": sum(row["direct"] for row in history),
        "lost": sum(row["lost"] for row in history),
        "step": float(np.median([row["seconds"] for row in history])),
        "seconds": time.time() - begin,
    }
    spark.stop()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
