"""Compare sparkdl's modes with plain torch and with DDP, in one run.

    python benchmarks/peers.py --json peers.json
    python benchmarks/plot.py peers.json peers.svg

Every mode trains the same module on the same rows with the same batch size and optimizer:

    torch           one process, as many threads as all executors have cores
    ddp             TorchDistributor with DistributedDataParallel over gloo, a process per executor
    ddp local 8     the same processes with local SGD: the weights' mean over gloo after every 8 steps
    ddp local 64    the same after every 64
    bare            stages of Spark jobs that send a gradient's bytes and do nothing else: the groups' floor
    driver          sparkdl, exchange="driver": two jobs per iteration
    replicas        sparkdl, exchange="replicated", iterations_per_job=1
    groups          sparkdl, exchange="replicated": many iterations per job
    direct          the same with transport="direct": tasks of a group exchange among themselves
    direct sharded  the same with exchange="sharded"
    groups bf16     groups with gradient_codec="bf16"
    local 8         groups with local_steps=8: a row's time is that of a step, an eighth of a round
    local 64        the same with local_steps=64
    direct local 8  direct with local_steps=8
    direct local 64 the same with local_steps=64

A step has equally many rows in all modes, ``rows_per_step``, and a time is that of a step: equal numbers of
rows are equal numbers of steps. Local steps are to be compared with DDP's (``ratio_to_ddp_local``) as well as
with synchronous DDP, which does more: it exchanges in each step.

The modes take turns, ``--rounds`` times; a figure is the median of its rounds, each the median of
``--seconds``, of which the first half warms up. The JVMs compile as they go, for minutes: where a mode goes
through shuffles, they run groups of the empty model for 300 seconds at first (``--warm-up``), and those of
each work for a fifth of it. The direct modes start a job now and then only: alone they warm up for 20
seconds. Their groups grow by four (1, 4, 16, 64, 256 steps), and the one that runs when the time is up does
not count: rounds of 8 seconds at 20 ms a step would show the group of 64, in which the start of a job is 4 ms
of each step. What runs on Spark does one round more, the first, which is thrown away.

``--json`` is written after every figure. SIGTERM and Ctrl-C end the run with the table of what there is; a
mode of which only the first round was done has ``rounds`` 0. ``time_over_ddp`` is below 1 where a mode is
faster than DDP in the same run. ``direct`` is the share of steps that exchanged directly: others went
through shuffles.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bare
import ddp_torch
import keeping
from workloads import OPTIMIZERS, make

from sparkdl import Dataset, Trainer, session
from sparkdl.train import History, TrainState, Trigger

FOLDER = Path(__file__).parent
WORKS = {
    "empty": ("tiny", 2),
    "mlp": ("mlp", 128),
    "lenet": ("lenet", 512),
    "ncf-2048": ("ncf", 2048),
    "ncf-16384": ("ncf", 16384),
    "resnet20": ("resnet20", 256),
}
_SHUFFLE = {"exchange": "replicated", "transport": "shuffle"}
SPARKDL: Mapping[str, Mapping[str, Any]] = {
    "driver": {"exchange": "driver", "transport": "shuffle"},
    "replicas": {**_SHUFFLE, "iterations_per_job": 1},
    "groups": _SHUFFLE,
    "direct": {"exchange": "replicated", "transport": "direct"},
    "direct sharded": {"exchange": "sharded", "transport": "direct"},
    "groups bf16": {**_SHUFFLE, "gradient_codec": "bf16"},
    "local 8": {**_SHUFFLE, "local_steps": 8},
    "local 64": {**_SHUFFLE, "local_steps": 64},
    "direct local 8": {"exchange": "replicated", "transport": "direct", "local_steps": 8},
    "direct local 64": {"exchange": "replicated", "transport": "direct", "local_steps": 64},
}
DDP = {"ddp": 1, "ddp local 8": 8, "ddp local 64": 64}
"""Steps between two exchanges, by mode."""
MODES = ("torch", *DDP, "bare", *SPARKDL)
_OUTSIDE = {"torch", *DDP}
"""Modes that do not run on Spark's executors, or start processes of their own there."""
_DIRECT = {mode for mode, options in SPARKDL.items() if options["transport"] == "direct"}


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


@dataclass(slots=True)
class Figures:
    """What was measured of a work.

    Attributes:
        work: its name.
        batch: rows of a step.
        times: milliseconds of a step, by mode and round; the first one of a mode on Spark warms up.
        direct: of the latest round, by mode, the share of steps that exchanged directly.
    """

    work: str
    batch: int
    times: dict[str, list[float]] = field(default_factory=dict)
    direct: dict[str, float] = field(default_factory=dict)

    def rows(self) -> list[keeping.Row]:
        """Return a row per mode."""
        medians, rounds = {}, {}
        for mode, found in sorted(self.times.items(), key=lambda item: MODES.index(item[0])):
            counted = found if mode in _OUTSIDE else found[1:]
            medians[mode], rounds[mode] = statistics.median(counted or found), len(counted)
        return [
            {**row, "rounds": rounds[row["mode"]], "direct": self.direct.get(row["mode"])}
            for row in table(self.work, self.batch, medians)
        ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare sparkdl with torch and DDP.")
    parser.add_argument("--master", default="local-cluster[2,1,4096]")
    parser.add_argument("--works", nargs="+", choices=tuple(WORKS), default=list(WORKS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each mode in each round (15)")
    parser.add_argument(
        "--warm-up", type=float, help="seconds at first (300; 20 if no mode goes through shuffles)"
    )
    parser.add_argument("--conf", nargs="+", default=[], metavar="NAME=VALUE", help="further Spark confs")
    parser.add_argument("--json", help="where to write the rows, after every figure")
    args = parser.parse_args()
    shuffles = set(args.modes) - _OUTSIDE - _DIRECT
    if args.warm_up is None:
        args.warm_up = 300.0 if shuffles else 20.0
    args.warm_by = SPARKDL["groups" if shuffles else "direct"]
    if args.rounds < 1 or args.seconds <= 0 or args.warm_up < 0:
        parser.error("--rounds and --seconds must be positive, --warm-up at least 0")
    return args


def run(args: argparse.Namespace, rows: list[keeping.Row]) -> None:
    """Measure, and leave a row per work and mode in ``rows`` after every figure."""
    conf = {"spark.driver.memory": "4g"} | dict(pair.split("=", 1) for pair in args.conf)  # rows start there
    spark = session.builder(args.master, "benchmark peers", conf).getOrCreate()
    try:
        executors = session.executors(spark)
        cores = executors.count * executors.cores
        warm_up = args.warm_up if set(args.modes) - _OUTSIDE else 0.0
        if warm_up:
            warm(spark, warm_up, args.warm_by)
        for name in args.works:
            model, batch = WORKS[name]
            work = make(model, batch, None)
            before, figures = list(rows), Figures(name, batch)
            with Dataset.from_numpy(work.features, work.label, spark=spark) as data:
                if warm_up:
                    sparkdl(work, data, batch, warm_up / 5, args.warm_by)
                nbytes = sum(p.nbytes for p in work.module.parameters())
                for turn in range(args.rounds + 1):
                    for mode in args.modes:
                        if mode in SPARKDL:
                            took, direct = sparkdl(work, data, batch, args.seconds, SPARKDL[mode])
                            if mode in _DIRECT:
                                figures.direct[mode] = round(direct, 3)
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
                        print(f"{name}, {mode}, round {turn}: {took:.2f} ms", file=sys.stderr, flush=True)
                        figures.times.setdefault(mode, []).append(took)
                        rows[:] = before + figures.rows()
                        keeping.write(args.json, rows)
    finally:
        spark.stop()


def warm(spark: Any, seconds: float, options: Mapping[str, Any]) -> None:
    """Train the empty model for a while."""
    model, batch = WORKS["empty"]
    work = make(model, batch, None)
    with Dataset.from_numpy(work.features, work.label, spark=spark) as data:
        sparkdl(work, data, batch, seconds, options)


def sparkdl(
    work: Any, data: Dataset, batch: int, seconds: float, options: Mapping[str, Any]
) -> tuple[float, float]:
    """Return the milliseconds of a step on Spark, and the share of steps that exchanged directly.

    Both are of the second half of the time.
    """
    trainer = Trainer(
        work.module,
        loss=work.loss,
        optimizer=OPTIMIZERS[work.optimizer],
        batch_size=batch,
        end_when=After(seconds),
        progress=False,
        **options,
    )
    result = trainer.fit(data)
    if result.stopped_by == "interrupt":  # by Ctrl-C, which a fit takes as a wish
        raise KeyboardInterrupt
    history = result.history
    later, steps = second_half(history), options.get("local_steps", 1)
    if statistics.median(row["samples"] for row in later) != batch * steps:
        raise RuntimeError(f"{options}: steps have other numbers of rows than {batch}, so times mean nothing")
    took = 1000 * statistics.median(row["seconds"] for row in later) / steps
    return took, statistics.fmean(row["direct"] for row in later)


def second_half(history: History) -> Sequence[Mapping[str, Any]]:
    """Return the steps of the second half of the time: fast groups have many more of them than slow ones."""
    rows = list(history)
    left, whole = 0.0, sum(row["seconds"] for row in rows)
    for index in range(len(rows) - 1, -1, -1):
        left += rows[index]["seconds"]
        if left >= whole / 2:
            return rows[index:]
    return rows


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
            "time_over_ddp": round(took / times["ddp"], 3) if "ddp" in times else None,
            "ratio_to_torch": ratio(times, "torch", took),
            "ratio_to_ddp": ratio(times, "ddp", took),
            "ratio_to_ddp_local": ratio(times, f"ddp {mode.removeprefix('direct ')}", took),
        }
        for mode, took in times.items()
    ]


def ratio(times: Mapping[str, float], peer: str, took: float) -> float | None:
    """Return how many times a peer's records per second, ``None`` if the peer was not measured."""
    return round(times[peer] / took, 3) if peer in times else None


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    if not rows:
        print("nothing was measured")
        return
    columns = tuple(rows[0])
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join("" if row[name] is None else str(row[name]) for name in columns) + " |")


def main() -> int:
    args, rows = arguments(), list[keeping.Row]()
    with keeping.cut_off() as causes, contextlib.redirect_stdout(sys.stderr):
        run(args, rows)
    show(rows)
    return 1 if causes else 0


if __name__ == "__main__":
    sys.exit(main())
