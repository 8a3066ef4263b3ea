"""Measure one training iteration on Spark and print one JSON line.

    python benchmarks/iteration.py --master 'local[2]' --model mlp --batch 128 --iterations 200

Times are medians over the last ``--iterations``, after a warm-up of 500 (the JVM compiles as it
goes) or of 60 seconds, whichever ends first. ``jobs``, ``stages``, ``tasks`` and shuffle bytes are
what Spark's status store counted per iteration. ``torch_ms_per_iteration`` is the same training in
one torch process with as many threads as all executors have cores, run after Spark has stopped.

Without ``--transport shuffle`` ten times as many iterations warm up and are measured, since groups have
more of them; ``direct`` is the share of iterations that exchanged directly. SIGTERM and Ctrl-C end the
measurement: the line then holds what there is, ``cut_off`` is true, and what was not measured is null.

``--connect sc://host:15002`` measures on a Spark Connect server in place of ``--master``. Tasks exchange
directly there by default; a client cannot count jobs, stages and tasks. ``first_step_seconds`` is how long a
fit of one step takes, with the store built. With ``--local-steps`` an iteration is that many steps of a
batch each and one exchange; ``ms_per_step`` divides by them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import keeping
from pyspark.sql import SparkSession
from spark_counts import counts_after, last_job
from workloads import OPTIMIZERS, Workload, make

from sparkdl import Dataset, Trainer, session
from sparkdl.allreduce.choose import TransportName
from sparkdl.train import FitResult, History, MaxIteration, TrainState, Trigger
from sparkdl.train.history import BYTES, PHASES

_COUNTED = 20  # iterations of the separate short fit in which jobs, stages and tasks are counted


@dataclass(slots=True)
class WarmThenMeasure(Trigger):
    """Fires ``measured`` iterations after a warm-up that is limited in number and time."""

    warmup: int
    seconds: float
    measured: int
    warm: int | None = None
    since: float | None = None

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether enough was measured."""
        if self.since is None:
            self.since = time.monotonic()
        late = time.monotonic() - self.since > self.seconds
        if self.warm is None and (current.iteration >= self.warmup or (late and current.iteration > 0)):
            self.warm = current.iteration
        return self.warm is not None and current.iteration >= self.warm + self.measured


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure one training iteration on Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--connect", metavar="URL", help="of a Spark Connect server, in place of a master")
    parser.add_argument("--model", choices=("tiny", "mlp", "lenet", "ncf"), default="tiny")
    parser.add_argument("--batch", type=int, default=128, help="rows per iteration, over all executors")
    parser.add_argument("--iterations", type=int, help="to take the median of (200; 2,000 if direct)")
    parser.add_argument("--warmup", type=int, help="iterations before them (500; 5,000 if direct)")
    parser.add_argument("--warmup-seconds", type=float, default=60.0, help="at most this long")
    parser.add_argument("--partitions", type=int, help="by default one per executor")
    parser.add_argument("--exchange", choices=("auto", "replicated", "sharded", "driver"), default="auto")
    parser.add_argument("--transport", choices=get_args(TransportName), default="auto")
    parser.add_argument(
        "--local-steps", type=int, help="steps of an iteration, without exchange between them"
    )
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), help="by default the model's own")
    args = parser.parse_args()
    args.times = 1 if args.transport == "shuffle" else 10
    args.iterations = 200 * args.times if args.iterations is None else args.iterations
    args.warmup = 500 * args.times if args.warmup is None else args.warmup
    for name in ("batch", "iterations", "local_steps"):
        if (getattr(args, name) or 1) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.warmup < 0:
        parser.error("--warmup must be at least 0")
    return args


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure and return what the JSON line holds."""
    work = make(args.model, args.batch, args.optimizer)
    trigger = WarmThenMeasure(args.warmup, args.warmup_seconds, args.iterations)
    counted, few = None, _COUNTED * args.times
    if args.connect:
        spark = SparkSession.builder.remote(args.connect).getOrCreate()
    else:
        spark = session.builder(args.master, app_name=f"benchmark {args.model}").getOrCreate()
    try:
        with Dataset.from_numpy(
            work.features, work.label, spark=spark, num_partitions=args.partitions
        ) as data:
            store = data.store()
            history, cut_off = fit(work, data, args, trigger)
            first_step = None
            if not cut_off:
                begin = time.perf_counter()
                fit(work, data, args, MaxIteration(1))
                first_step = round(time.perf_counter() - begin, 3)
            if not cut_off and not args.connect:
                before = last_job(spark.sparkContext)
                fit(work, data, args, MaxIteration(few))
                counted = counts_after(spark.sparkContext, before)
        master, cores = str(spark.conf.get("spark.master")), store.executors.count * store.executors.cores
    finally:
        spark.stop()
    rows = history[-args.iterations :]
    seconds = [row["seconds"] for row in rows]
    median = statistics.median(seconds)
    moved = {kind: round(statistics.median(row["bytes"][kind] for row in rows)) for kind in BYTES}
    if counted is not None:
        moved["shuffle_write"] = round(counted.shuffle_write / few)
        moved["shuffle_read"] = round(counted.shuffle_read / few)
    return {
        "model": args.model,
        "batch": args.batch,
        "partitions": len(store.partitions),
        "ms_per_iteration": round(1000 * median, 3),
        "ms_per_step": round(1000 * median / (args.local_steps or 1), 3),
        "records_per_second": round(statistics.median(r["samples"] for r in rows) / median, 1),
        "torch_ms_per_iteration": None if cut_off else round(plain_torch(args, work.optimizer, cores), 3),
        "first_step_seconds": first_step,
        "jobs": counted and counted.jobs / few,
        "stages": counted and counted.stages / few,
        "tasks": counted and counted.tasks / few,
        "bytes": moved,
        "phases_ms": {
            name: round(1000 * statistics.median(row["phases"][name] for row in rows), 3) for name in PHASES
        },
        "p90_ms_per_iteration": round(1000 * percentile(seconds, 0.9), 3),
        "transport": args.transport,
        "local_steps": args.local_steps,
        "direct": round(statistics.fmean(row["direct"] for row in rows), 3),
        "cut_off": cut_off,
        "optimizer": work.optimizer,
        "parameters": sum(p.numel() for p in work.module.parameters()),
        "executors": store.executors.count,
        "threads": cores,
        "iterations": len(rows),
        "warmup": trigger.warm,
        "load_average": round(os.getloadavg()[0], 2),
        "master": master,
        "connect": bool(args.connect),
    }


def fit(work: Workload, data: Dataset, args: argparse.Namespace, end_when: Trigger) -> tuple[History, bool]:
    """Train; return the history, and whether it was cut off."""
    trainer = Trainer(
        work.module,
        loss=work.loss,
        optimizer=OPTIMIZERS[work.optimizer],
        batch_size=args.batch,
        end_when=end_when,
        progress=False,
        exchange=args.exchange,
        transport=args.transport,
        local_steps=args.local_steps,
    )
    try:
        result = trainer.fit(data)
    except KeyboardInterrupt as error:
        if not isinstance(found := getattr(error, "result", None), FitResult):
            raise  # nothing was trained
        return found.history, True
    return result.history, result.stopped_by == "interrupt"


def plain_torch(args: argparse.Namespace, optimizer: str, threads: int) -> float:
    """Return the milliseconds of an iteration without Spark, from a process of its own."""
    script = Path(__file__).with_name("plain_torch.py")
    numbers = ["--threads", str(threads), "--iterations", str(max(args.iterations, 20))]
    command = [sys.executable, str(script), args.model, str(args.batch), optimizer, *numbers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def main() -> None:
    args = arguments()
    result = None
    with keeping.cut_off(), contextlib.redirect_stdout(sys.stderr):
        result = run(args)
    if result is None:
        sys.exit(1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
