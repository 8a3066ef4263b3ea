"""Compare sparkdl's modes with plain torch and with DDP, in one run.

    python benchmarks/peers.py --json peers.json
    python benchmarks/plot.py peers.json peers.png

Every mode trains the same module on the same rows with the same batch size and optimizer:

    torch           one process, as many threads as all executors have cores
    ddp             TorchDistributor with DistributedDataParallel over gloo, a process per executor
    ddp local 8     the same processes with local SGD: the weights' mean over gloo after every 8 steps
    ddp local 64    the same after every 64
    bare            stages of Spark jobs that send a gradient's bytes and do nothing else: the groups' floor
    driver          sparkdl, exchange="driver": two jobs per iteration
    replicas        sparkdl, exchange="replicated", iterations_per_job=1
    groups          sparkdl, exchange="replicated": many iterations per job
    groups bf16     the same with gradient_codec="bf16"
    local 8         the same with local_steps=8: a row's time is that of a step, an eighth of a round
    local 64        the same with local_steps=64

A step has equally many rows in all modes, ``rows_per_step``, and a time is that of a step: equal numbers of
rows are equal numbers of steps. Local steps are to be compared with DDP's (``ratio_to_ddp_local``) as well as
with synchronous DDP, which does more: it exchanges in each step.

The modes take turns, ``--rounds`` times; a figure is the median of its rounds, each the median of
``--seconds``, of which the first half warms up. The JVMs compile as they go, for minutes: they run groups of
the empty model for ``--warm-up`` seconds at first, and those of each work for a fifth of it; what runs on
Spark does one round more, the first, which is thrown away.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bare
import ddp_torch
from workloads import OPTIMIZERS, make

from sparkdl import Dataset, Trainer, session
from sparkdl.train import TrainState, Trigger

FOLDER = Path(__file__).parent
WORKS = {
    "empty": ("tiny", 2),
    "mlp": ("mlp", 128),
    "lenet": ("lenet", 512),
    "ncf-2048": ("ncf", 2048),
    "ncf-16384": ("ncf", 16384),
    "resnet20": ("resnet20", 256),
}
SPARKDL: Mapping[str, Mapping[str, Any]] = {
    "driver": {"exchange": "driver"},
    "replicas": {"exchange": "replicated", "iterations_per_job": 1},
    "groups": {"exchange": "replicated"},
    "groups bf16": {"exchange": "replicated", "gradient_codec": "bf16"},
    "local 8": {"exchange": "replicated", "local_steps": 8},
    "local 64": {"exchange": "replicated", "local_steps": 64},
}
DDP = {"ddp": 1, "ddp local 8": 8, "ddp local 64": 64}
"""Steps between two exchanges, by mode."""
MODES = ("torch", *DDP, "bare", *SPARKDL)


@dataclass(slots=True)
class After(Trigger):
    """Fires some seconds after it was first asked."""

    seconds: float
    since: float | None = None

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether the time is up."""
        if self.since is None:
            self.since = time.monotonic()
        return time.monotonic() - self.since > self.seconds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare sparkdl with torch and DDP.")
    parser.add_argument("--master", default="local-cluster[2,1,4096]")
    parser.add_argument("--works", nargs="+", choices=tuple(WORKS), default=list(WORKS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each mode in each round")
    parser.add_argument("--warm-up", type=float, default=300.0, help="seconds at first")
    parser.add_argument("--conf", nargs="+", default=[], metavar="NAME=VALUE", help="further Spark confs")
    parser.add_argument("--json", help="where to write the rows")
    args = parser.parse_args()
    if args.rounds < 1 or args.seconds <= 0:
        parser.error("--rounds and --seconds must be positive")
    return args


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure and return a row per work and mode."""
    conf = {"spark.driver.memory": "4g"} | dict(pair.split("=", 1) for pair in args.conf)  # rows start there
    spark = session.builder(args.master, "benchmark peers", conf).getOrCreate()
    rows: list[dict[str, Any]] = []
    try:
        executors = session.executors(spark)
        cores = executors.count * executors.cores
        warm_up = args.warm_up if set(args.modes) - {"torch", *DDP} else 0.0
        if warm_up:
            warm(spark, warm_up)
        for name in args.works:
            model, batch = WORKS[name]
            work = make(model, batch, None)
            with Dataset.from_numpy(work.features, work.label, spark=spark) as data:
                found: dict[str, list[float]] = {mode: [] for mode in args.modes}
                if warm_up:
                    sparkdl(work, data, batch, warm_up / 5, SPARKDL["groups"])
                nbytes = sum(p.nbytes for p in work.module.parameters())
                for turn in range(args.rounds + 1):
                    for mode in args.modes:
                        if mode in SPARKDL:
                            took = sparkdl(work, data, batch, args.seconds, SPARKDL[mode])
                        elif mode == "bare":
                            took = bare.milliseconds_per_stage(spark, data, nbytes, args.seconds)
                        elif turn == 0:
                            continue
                        elif mode == "torch":
                            took = plain_torch(model, batch, work.optimizer, cores, args.seconds)
                        else:
                            took = ddp_torch.measure(
                                spark, str(FOLDER), model, batch, executors.count, args.seconds, DDP[mode]
                            )
                        print(f"{name}, {mode}, round {turn}: {took:.1f} ms", file=sys.stderr, flush=True)
                        if turn:
                            found[mode].append(took)
            rows += table(name, batch, {mode: statistics.median(times) for mode, times in found.items()})
    finally:
        spark.stop()
    return rows


def warm(spark: Any, seconds: float) -> None:
    """Train the empty model for a while."""
    model, batch = WORKS["empty"]
    work = make(model, batch, None)
    with Dataset.from_numpy(work.features, work.label, spark=spark) as data:
        sparkdl(work, data, batch, seconds, SPARKDL["groups"])


def sparkdl(work: Any, data: Dataset, batch: int, seconds: float, options: Mapping[str, Any]) -> float:
    """Return the milliseconds of a step on Spark: of the second half of the time."""
    trainer = Trainer(
        work.module,
        loss=work.loss,
        optimizer=OPTIMIZERS[work.optimizer],
        batch_size=batch,
        end_when=After(seconds),
        progress=False,
        **options,
    )
    history = trainer.fit(data).history
    later, steps = history[len(history) // 2 :], options.get("local_steps", 1)
    if statistics.median(row["samples"] for row in later) != batch * steps:
        raise RuntimeError(f"{options}: steps have other numbers of rows than {batch}, so times mean nothing")
    return 1000 * statistics.median(row["seconds"] for row in later) / steps


def plain_torch(model: str, batch: int, optimizer: str, threads: int, seconds: float) -> float:
    """Return the milliseconds of an iteration without Spark, from a process of its own."""
    options = ["--threads", threads, "--iterations", 1_000_000, "--seconds", seconds]
    command = [sys.executable, FOLDER / "plain_torch.py", model, batch, optimizer, *options]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def table(work: str, batch: int, times: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return a row per mode."""
    return [
        {
            "work": work,
            "mode": mode,
            "rows_per_step": batch,
            "ms_per_iteration": round(took, 2),
            "records_per_second": round(1000 * batch / took, 1),
            "ratio_to_torch": ratio(times, "torch", took),
            "ratio_to_ddp": ratio(times, "ddp", took),
            "ratio_to_ddp_local": ratio(times, f"ddp {mode}", took),
        }
        for mode, took in times.items()
    ]


def ratio(times: Mapping[str, float], peer: str, took: float) -> float | None:
    """Return how many times a peer's records per second, ``None`` if the peer was not measured."""
    return round(times[peer] / took, 3) if peer in times else None


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    columns = ("work", "mode", "rows_per_step", "ms_per_iteration", "records_per_second")
    columns += tuple(name for name in rows[0] if name.startswith("ratio_"))
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join("" if row[name] is None else str(row[name]) for name in columns) + " |")


def main() -> None:
    args = arguments()
    with contextlib.redirect_stdout(sys.stderr):
        rows = run(args)
    show(rows)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
