"""Compare what ``sparkdl.train.plan`` forecasts with what is measured.

    python benchmarks/forecasts.py --json forecasts.json
    python benchmarks/forecasts.py --works mlp lenet --seconds 6
    python benchmarks/forecasts.py --json forecasts.json --again

Each work is rehearsed once, on a sample, with two executors of one core. Forecasts from that are for each
number of ``--executors``. Then a session of its own, with so many executors, trains on all rows, in one fit.
It takes about as long as the rehearsal, so that processes and JVMs are as warm. A row says

    epoch_s, forecast_s    seconds of an epoch's steps: median of the fit's later half, times their number
    time_ratio             forecast over measured
    memory_MB, forecast_MB memory of the largest executor: JVM and Python processes
    memory_ratio           forecast over measured
    error                  the relative error that the forecast itself announces
    others                 cores that other processes took meanwhile, during the rehearsal and the fit

A rehearsal or fit beside which other processes took more than a tenth of a core is repeated once, and the
less disturbed one counts. ``--again`` measures those rows of a file again that were disturbed all the same.

All executors share this machine, and the plan knows its cores: where there are more executors than cores they
take turns. So this is no measurement of machines with a network between them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import keeping
import psutil
from workloads import OPTIMIZERS, Workload, make

from sparkdl import Dataset, Trainer, session
from sparkdl.train import ClusterPlan, MaxIteration, plan
from sparkdl.train.planning.probe import MemoryWatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKS = {"mlp": ("mlp", 512), "lenet": ("lenet", 256), "ncf": ("ncf", 2048), "resnet20": ("resnet20", 64)}
"""Model and batch by name."""
_LEAST_STEPS = 8
_MOST_STEPS = 4000
_DISTURBED = 0.1
_REPEATS = 2
T = TypeVar("T")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare forecasts with measurements.")
    parser.add_argument("--works", nargs="+", choices=tuple(WORKS), default=list(WORKS))
    parser.add_argument("--executors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rehearsed", type=int, default=2, help="executors of the rehearsal (2)")
    parser.add_argument("--memory", type=int, default=1024, help="MiB of an executor's heap")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each fit of a rehearsal")
    parser.add_argument("--measure", type=float, default=24.0, help="seconds of each measured fit, about")
    parser.add_argument("--json", help="where to write the rows, after every figure")
    parser.add_argument("--again", action="store_true", help="measure the disturbed rows of that file again")
    args = parser.parse_args()
    if args.again and args.json is None:
        parser.error("--again needs --json: expected a file with rows")
    if min(*args.executors, args.rehearsed) < 1 or min(args.seconds, args.measure) <= 0:
        parser.error("--executors and --rehearsed must be at least 1, --seconds and --measure positive")
    return args


@contextlib.contextmanager
def cluster(executors: int, memory: int):
    """Start executors of one core each."""
    conf = {
        "spark.executor.memory": f"{memory}m",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    master = f"local-cluster[{executors},1,{memory}]"
    spark = session.builder(master, "benchmark forecasts", conf).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def others() -> float:
    """Return the processor seconds that processes have used which this one has not started."""
    whole, own = psutil.cpu_times(), 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            own += sum(process.cpu_times()[:4])
    return sum(whole) - whole.idle - whole.iowait - whole.guest - whole.guest_nice - own


def undisturbed(measure: Callable[[], T]) -> tuple[T, float]:
    """Measure, again if others disturbed; return what was found, and the cores that others took."""
    found = list[tuple[T, float]]()
    for _ in range(_REPEATS):
        begin, before = time.perf_counter(), others()
        answer = measure()
        took = max(0.0, others() - before) / (time.perf_counter() - begin)
        found.append((answer, took))
        if took <= _DISTURBED:
            break
        print(f"disturbed by {took:.2f} cores", file=sys.stderr, flush=True)
    return min(found, key=lambda each: each[1])


def trainer_of(work: Workload, batch: int, **options) -> Trainer:
    """Return the Trainer of a work."""
    return Trainer(
        work.module,
        loss=work.loss,
        optimizer=OPTIMIZERS[work.optimizer],
        batch_size=batch,
        progress=False,
        **options,
    )


def forecast(name: str, args: argparse.Namespace) -> tuple[ClusterPlan, float]:
    """Rehearse a work; return the plan, and the cores that others took."""
    model, batch = WORKS[name]
    work = make(model, batch, None)
    begin = time.perf_counter()
    with (
        cluster(args.rehearsed, args.memory) as spark,
        Dataset.from_numpy(work.features, work.label, spark=spark) as data,
    ):
        found, disturbed = undisturbed(
            lambda: plan(
                trainer_of(work, batch),
                data,
                rows=len(work.label),
                executors=args.executors,
                seconds=args.seconds,
                compare=False,
            )
        )
    print(f"{name}: {time.perf_counter() - begin:.0f} s\n{found}", file=sys.stderr, flush=True)
    print(json.dumps(found.to_json()["rehearsal"]), file=sys.stderr, flush=True)
    return found, disturbed


def measure(spark: SparkSession, name: str, step: float, seconds: float) -> tuple[float, int]:
    """Return the seconds of an epoch, and the bytes of the largest executor.

    Args:
        spark: the session.
        name: of the work.
        step: seconds of a step, about.
        seconds: to measure for, about.
    """
    model, batch = WORKS[name]
    work, watch = make(model, batch, None), MemoryWatch()
    steps = -(-len(work.label) // batch)
    count = max(_LEAST_STEPS, steps, min(int(seconds / step), _MOST_STEPS))
    with Dataset.from_numpy(work.features, work.label, spark=spark) as data:
        result = trainer_of(work, batch, end_when=MaxIteration(count), hooks=[watch]).fit(data)
    later = result.history.column("seconds")[count // 2 :]
    return steps * statistics.median(later), max(each.nbytes for each in watch.executors)


def run(args: argparse.Namespace, rows: list[keeping.Row]) -> None:
    """Leave a row per number of executors and work in ``rows``."""
    for name in args.works:
        found, before = forecast(name, args)
        for executors in args.executors:
            with cluster(executors, args.memory) as spark:
                (said,) = (each for each in found.estimates if each.executors == executors)
                once = partial(measure, spark, name, said.step_seconds, args.measure)
                measured, during = undisturbed(once)
            row = {
                "work": name,
                "executors": executors,
                "epoch_s": 0.0,
                "forecast_s": round(said.epoch_seconds, 3),
                "time_ratio": 0.0,
                "memory_MB": 0,
                "forecast_MB": round(said.nbytes / 1e6),
                "memory_ratio": 0.0,
                "error": round(said.error, 3),
                "rehearsed": executors == args.rehearsed,
                "host_cores": found.rehearsal.host_cores,
                "others": [round(before, 2), round(during, 2)],
            }
            rows.append(compared(row, *measured))
            keeping.write(args.json, rows)


def compared(row: keeping.Row, epoch: float, nbytes: int) -> keeping.Row:
    """Return a row with what was measured."""
    row = row | {
        "epoch_s": round(epoch, 3),
        "time_ratio": round(row["forecast_s"] / epoch, 3),
        "memory_MB": round(nbytes / 1e6),
        "memory_ratio": round(1e6 * row["forecast_MB"] / nbytes, 3),
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def repeat(args: argparse.Namespace, rows: list[keeping.Row]) -> None:
    """Measure the rows again beside which other processes ran; what was forecast stays."""
    for number, row in enumerate(rows):
        rehearsing, before = row["others"]
        if before <= _DISTURBED:
            continue
        model, batch = WORKS[row["work"]]
        step = row["forecast_s"] * batch / len(make(model, batch, None).label)
        with cluster(row["executors"], args.memory) as spark:
            measured, during = undisturbed(partial(measure, spark, row["work"], step, args.measure))
        if during < before:
            rows[number] = compared(row | {"others": [rehearsing, round(during, 2)]}, *measured)
            keeping.write(args.json, rows)


def show(rows: Sequence[keeping.Row]) -> None:
    """Print the table, and how many forecasts are within 20 %."""
    if not rows:
        return
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")
    for what in ("time", "memory"):
        within = sum(abs(row[f"{what}_ratio"] - 1) <= 0.2 for row in rows)
        print(f"\n{what}: {within} of {len(rows)} within 20 %")


def main() -> int:
    args = arguments()
    rows: list[keeping.Row] = json.loads(Path(args.json).read_text()) if args.again else []
    with keeping.cut_off() as causes, contextlib.redirect_stdout(sys.stderr):
        (repeat if args.again else run)(args, rows)
    show(rows)
    return 1 if causes else 0


if __name__ == "__main__":
    sys.exit(main())
