"""Measure the parameter sync alone, against gloo and Adam, and foretell it for larger clusters.

    python benchmarks/sync.py --json sync.json
    python benchmarks/sync.py --exchange replicated --parameters 1e4 1e6 --partitions 2 8

What is trained is one flat parameter, whose forward and backward are one pass over it each. The sync of an
iteration is what it takes beyond forward, backward and reading rows; figures are medians after a warm-up.
``--transport direct`` lets a group's tasks exchange among themselves: more iterations are measured then,
and ``direct`` is the share of them that did not go through shuffles. Beside it are Spark's own stages, as
many and with as many bytes, in which nobody computes (``bare.py``). The peer is what DDP does between
backward and the next forward, at its plainest: an all-reduce of the same gradient over gloo and Adam on all
of it, in two processes of one thread. It runs before and after each row.

A cost model is fitted to the rows, and from it follows what the sync would take on a cluster of one task per
executor, as a fraction of an iteration's compute. That is extrapolated: no cluster was measured.

The largest sizes take memory beyond the executors' heaps: 100 million parameters some 4 GB for each Python
worker and 6.8 GB for the driver's Python, and minutes for each fit: the first one is a warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import bare
import keeping
import numpy as np
import psutil
import torch
import torch.distributed as dist
from iteration import WarmThenMeasure
from torch import Tensor, multiprocessing, nn
from workloads import OPTIMIZERS

from sparkdl import Dataset, Trainer, session
from sparkdl.allreduce.plans.driver import MAX_SHARD_BYTES
from sparkdl.exceptions import SparkdlError
from sparkdl.train import Hook, MaxIteration, MaxSeconds, Run
from sparkdl.train.history import PHASES
from sparkdl.train.options.config import Exchange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXCHANGES = tuple(name for name in get_args(Exchange) if name != "auto")
MODELS = {"Inception-v1": 6_998_552, "ResNet-50": 25_557_032}
EXECUTORS = (8, 16, 32, 64, 128, 256, 512)
_ROWS = 8  # of a task in an iteration
_WARM_UP = 500  # iterations at most: the JVM compiles as it goes
_LEAST = 5  # iterations that are measured, however long they take
_FLOAT = 4


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the parameter sync.")
    parser.add_argument("--master", default="local-cluster[2,1,4096]")
    parser.add_argument("--exchange", choices=EXCHANGES, default="driver")
    parser.add_argument("--transport", choices=("shuffle", "direct"), default="shuffle")
    parser.add_argument(
        "--parameters", type=count, nargs="+", default=[10**n for n in range(4, 9)], help="sizes, as in 1e6"
    )
    parser.add_argument("--partitions", type=count, nargs="+", default=[2, 8, 32])
    parser.add_argument("--shards", type=count, help="by default what the trainer chooses")
    parser.add_argument("--iterations", type=count, default=50, help="to take the median of, at most (50)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of warm-up, of measurement and of the peer, at most (20)"
    )
    parser.add_argument(
        "--most-bytes",
        type=float,
        default=1e9,
        help="of gradients of all partitions: what has more and more than the least partitions is left out",
    )
    parser.add_argument("--driver-memory", default="4g", help="heap of the driver's JVM (4g)")
    parser.add_argument(
        "--network", type=float, default=1.25, help="GB/s of each machine of the cluster to foretell (1.25)"
    )
    parser.add_argument(
        "--compute",
        type=float,
        default=2.0,
        help="seconds of forward and backward of an iteration there (2): about 170 images of Inception-v1 or "
        "60 of ResNet-50 per executor, at 0.75 TFLOP/s",
    )
    parser.add_argument("--json", help="where to write the rows")
    args = parser.parse_args()
    if args.transport == "direct" and args.exchange == "driver":
        parser.error("--transport direct needs --exchange sharded or replicated")
    if min(args.seconds, args.network, args.compute, args.most_bytes) <= 0:
        parser.error("--seconds, --network, --compute and --most-bytes must be positive")
    return args


def count(text: str) -> int:
    """Read a positive integer, which may be written as 1e6."""
    number = float(text)
    if number < 1 or number != int(number):
        raise argparse.ArgumentTypeError(f"{text}: expected a positive integer")
    return int(number)


# -- what is measured ------------------------------------------------------------------------------


class Flat(nn.Module):
    """One parameter. Its gradient is dense and one number: expanded, not a tensor of its own."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numel))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the sum of all weights, times each row."""
        return self.weight.sum() * rows


def mean_output(output: Tensor, _: Tensor) -> Tensor:
    return output.mean()


@dataclass
class Busy(Hook):
    """Notes how long the busiest worker computed and read rows, in each iteration.

    With more partitions than slots a worker runs several tasks; the history knows the slowest task only.
    """

    seconds: list[float] = field(default_factory=list)

    def on_iteration_end(self, run: Run) -> None:
        """Add up the tasks of each process."""
        workers: defaultdict[tuple[str, int], float] = defaultdict(float)
        assert run.outcome is not None  # every iteration has rows
        for task in run.outcome.tasks:
            if task["kind"] == "forward-backward":
                workers[task["host"], task["pid"]] += task["phases"]["compute"] + task["phases"]["data"]
        self.seconds.append(max(workers.values()))


def run(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Measure, and leave a row per number of partitions and size in ``rows``."""
    sizes, least = sorted(args.parameters), min(args.partitions)
    conf = {"spark.driver.memory": args.driver_memory, "spark.ui.enabled": "false"}
    spark = session.builder(args.master, "benchmark sync", conf).getOrCreate()
    try:
        with gloo_pair() as peer:
            for partitions in sorted(args.partitions):
                # The JVM compiles as it goes. This also is the fit in whose place workers forget larger ones.
                measure(spark, args, sizes[0], partitions)
                for numel in sizes:
                    names = {"exchange": args.exchange, "transport": args.transport}
                    row = {**names, "parameters": numel, "partitions": partitions}
                    if partitions > least and _FLOAT * numel * partitions > args.most_bytes:
                        log(row | {"skipped": "see --most-bytes"})
                        continue
                    times = peer(numel, args.seconds / 2)
                    try:
                        row |= measure(spark, args, numel, partitions)
                    except SparkdlError as error:  # the other rows count all the same
                        row["error"] = str(error).splitlines()[0]
                    else:
                        gloo = 1000 * statistics.median(times + peer(numel, args.seconds / 2))
                        row["gloo_milliseconds"] = digits(gloo)
                        row["ratio_to_gloo"] = digits(gloo / row["milliseconds"])
                    log(row)
                    rows.append(row)
                    keeping.write(args.json, rows)
    finally:
        spark.stop()


def log(row: Mapping[str, Any]) -> None:
    print(json.dumps(row), file=sys.stderr, flush=True)


def measure(spark: SparkSession, args: argparse.Namespace, numel: int, partitions: int) -> dict[str, Any]:
    """Measure one size with one number of partitions."""
    rows = np.random.default_rng(0).random((100 * _ROWS * partitions, 1), dtype=np.float32)
    warm, busy = (
        WarmThenMeasure(_WARM_UP * (10 if args.transport == "direct" else 1), args.seconds, args.iterations),
        Busy(),
    )
    with Dataset.from_numpy(rows, spark=spark, num_partitions=partitions) as data:
        executors = data.store().executors
        trainer = Trainer(
            Flat(numel),
            loss=mean_output,
            optimizer=OPTIMIZERS["adam"],
            batch_size=_ROWS * partitions,
            end_when=warm | (MaxSeconds(2 * args.seconds) & MaxIteration(_LEAST + 1)),
            progress=False,
            exchange=args.exchange,
            transport=args.transport,
            num_shards=args.shards,
            max_failures=0,  # an executor that is out of memory is a result
            hooks=[busy],
        )
        forget_peaks()
        history = trainer.fit(data).history[warm.warm or 1 :]
        peaks = [peak(process) for process in workers()]
        does = moves(args.exchange, partitions)
        direct = args.transport == "direct"
        floor = None if direct else bare_seconds(spark, data, does, numel, args.seconds / 2)
    sync = [row["seconds"] - away for row, away in zip(history, busy.seconds[-len(history) :], strict=True)]
    seconds = statistics.median(sync)
    shards = args.shards or (shards_of(numel, partitions) if does.driver else partitions)
    return {
        "shards": shards,
        "slots": executors.count * executors.cores,
        "milliseconds": digits(1000 * seconds),
        "bare_milliseconds": digits(1000 * floor) if floor is not None else None,
        "phases": {
            name: digits(1000 * statistics.median(row["phases"][name] for row in history)) for name in PHASES
        },
        "gradient_bytes": round(statistics.median(row["bytes"]["gradients"] for row in history)),
        "bandwidth_MB_s": digits(_FLOAT * numel / seconds / 1e6),
        "peak_rss_MB": max(peaks, default=None),
        "rss_target_MB": digits((4 / shards + 2) * _FLOAT * numel / 1e6),
        "driver_peak_rss_MB": peak(psutil.Process()),
        "scheduling_ms_per_task": digits(1000 * seconds_per_task(spark.sparkContext)),
        "direct": digits(statistics.fmean(row["direct"] for row in history)),
        "iterations": len(history),
        "warmup": warm.warm,
        "load_average": round(os.getloadavg()[0], 2),
        "master": args.master,
    }


def bare_seconds(spark: SparkSession, data: Dataset, does: Moves, numel: int, seconds: float) -> float | None:
    """Return what the stages of an iteration take if nobody computes in them; ``None`` for two jobs each."""
    if does.driver:
        return None
    elements = -(-numel // len(data.store().partitions)) if does.shared else numel
    return does.tasks * bare.milliseconds_per_stage(spark, data, _FLOAT * elements, seconds) / 1000


def digits(number: float) -> float:
    """Return a number with as many digits as its noise leaves."""
    return float(f"{number:.4g}")


def shards_of(numel: int, partitions: int) -> int:
    """Return the number of shards that the trainer chooses (``allreduce/plans/driver.py``)."""
    return min(max(partitions, -(-_FLOAT * numel // MAX_SHARD_BYTES)), numel)


def workers() -> list[psutil.Process]:
    """Return the Python workers of executors that descend from this process: ``local``, ``local-cluster``."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "pyspark.worker" in process.cmdline():
                found[process.pid] = process
    return [process for process in found.values() if process.ppid() in found]  # not those that start them


def forget_peaks() -> None:
    """Let the peaks of this process and the workers begin at what they use now, on Linux."""
    for process in (psutil.Process(), *workers()):
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def peak(process: psutil.Process) -> float:
    """Return the most memory that a process has used, in MB; what it uses now where that is not known."""
    with contextlib.suppress(OSError, ValueError):
        status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        (kilobytes,) = [int(line.split()[1]) for line in status if line.startswith("VmHWM:")]
        return round(kilobytes * 1024 / 1e6, 1)
    with contextlib.suppress(psutil.Error):
        return round(process.memory_info().rss / 1e6, 1)
    return 0.0  # it has ended


def seconds_per_task(sc: Any) -> float:
    """Measure what Spark takes for a task that does nothing and needs no Python.

    That is an upper bound of what the driver alone takes to schedule one: the executors' share is in it.
    """
    tasks, times = 128, []
    empty = sc.parallelize(range(tasks), tasks)._jrdd
    for _ in range(3):
        begin = time.perf_counter()
        empty.count()
        times.append(time.perf_counter() - begin)
    return min(times) / tasks


# -- the peer --------------------------------------------------------------------------------------


@contextmanager
def gloo_pair() -> Iterator[Any]:
    """Start two processes; yields a function of (size, seconds) that returns the seconds of each sync."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="sparkdl-gloo-") as folder:
        pipes, processes = [], []
        for rank in range(2):
            pipe, other = context.Pipe()
            process = context.Process(target=peer, args=(rank, f"{folder}/store", other), daemon=True)
            process.start()
            other.close()
            pipes.append(pipe)
            processes.append(process)

        def ask(numel: int, seconds: float) -> list[float]:
            for pipe in pipes:
                pipe.send((numel, seconds))
            times, _ = [pipe.recv() for pipe in pipes]
            return times

        try:
            yield ask
        finally:
            for pipe in pipes:
                pipe.close()
            for process in processes:
                process.join()


def peer(rank: int, store: str, pipe: Connection) -> None:
    """Do what the other side of the pipe asks for, until it is closed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        while True:
            pipe.send(all_reduce_and_step(*pipe.recv()))
    except EOFError:
        dist.destroy_process_group()


def all_reduce_and_step(numel: int, seconds: float) -> list[float]:
    """Return the seconds of each sync in the second half of the time."""
    weight = nn.Parameter(torch.zeros(numel))
    weight.grad = torch.ones(numel)
    adam = OPTIMIZERS["adam"]([weight])
    stop = torch.zeros(1)
    times: list[float] = []
    begin = time.perf_counter()
    while not stop.item():
        start = time.perf_counter()
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()
        adam.step()
        times.append(time.perf_counter() - start)
        # Both must do equally many.
        stop.fill_(float(len(times) >= 4 and time.perf_counter() - begin > seconds))
        dist.all_reduce(stop, dist.ReduceOp.MAX)
    return times[len(times) // 2 :]


# -- the cost model --------------------------------------------------------------------------------


TERMS = {
    "fixed": (1e3, "ms per iteration"),
    "scheduling": (1e3, "ms per task: of tasks that do nothing, measured by themselves"),
    "task": (1e3, "ms per partition: what its tasks take beyond that"),
    "shard": (1e3, "ms per shard that a slot fetches"),
    "exchanged": (1e9, "ms per MB that a slot sends and receives: gradients, updated shards"),
    "owned": (1e9, "ms per MB of weights that a slot updates, with the optimizer's state"),
    "weights": (1e9, "ms per MB of weights that executors load, and that the driver publishes"),
}
"""What the seconds of a sync are made of: factor for printing, and unit."""


@dataclass(frozen=True)
class Moves:
    """What an exchange does in an iteration.

    Attributes:
        tasks: of each partition.
        copies: how many times the bytes of the weights a task receives, as gradients and as updated shards.
        frames: frames that a task fetches from each partition or shard.
        shared: whether each shard has one owner.
        driver: whether the weights pass through the driver.
    """

    tasks: int
    copies: int
    frames: int
    shared: bool
    driver: bool


def moves(exchange: str, partitions: int) -> Moves:
    """Return what an exchange does; an unknown one counts as the driver's."""
    if exchange == "replicated":
        return Moves(tasks=1, copies=partitions - 1, frames=1, shared=False, driver=False)
    if exchange == "sharded":
        return Moves(tasks=2, copies=2, frames=2, shared=True, driver=False)
    return Moves(tasks=2, copies=1, frames=1, shared=True, driver=True)


def counts(exchange: str, numel: int, partitions: int, shards: int, slots: int) -> dict[str, float]:
    """Count what an iteration does, by term.

    With more partitions than slots tasks run in waves: what a task does counts for each wave.
    """
    size, waves, does = _FLOAT * numel, partitions / slots, moves(exchange, partitions)
    return {
        "fixed": 1.0,
        "scheduling": partitions * does.tasks,
        "task": partitions,
        "shard": waves * shards * does.frames,
        "exchanged": waves * size * does.copies,
        "owned": size / slots if does.shared else size,
        "weights": size,
    }


@dataclass(frozen=True)
class CostModel:
    """The seconds of a sync as a sum over terms.

    Attributes:
        exchange: how gradients become weights.
        seconds: by term, per unit of what :func:`counts` counts.
        r2: share of the variance of the measured seconds that it explains.
        error: its largest relative error.
        slots: tasks that ran at a time where it was measured.
        rows: number of rows that it was fitted to.
    """

    exchange: str
    seconds: Mapping[str, float]
    r2: float
    error: float
    slots: int
    rows: int

    def predict(self, numel: int, executors: int, network: float) -> tuple[float, float]:
        """Return the seconds of a sync with one task per executor, and those of scheduling among them.

        Args:
            numel: number of parameters.
            executors: number of executors, each on a machine of its own, and of partitions.
            network: bytes per second of each machine, in each direction.
        """
        counted = counts(self.exchange, numel, executors, shards_of(numel, executors), executors)
        cost = dict(self.seconds)
        # Scheduling is the driver's, for one task after the other. The rest of a task ran in all slots at a
        # time, and will in as many as there are tasks.
        cost["fixed"] += self.slots * cost.pop("task")
        cost["exchanged"] = max(cost["exchanged"], 1 / network)
        to_driver = 0.0
        if moves(self.exchange, executors).driver:
            cost["weights"] = max(cost["weights"], 1 / network)
            to_driver = counted["weights"] / network
        seconds = sum(cost[term] * counted[term] for term in cost) + to_driver
        return seconds, cost["scheduling"] * counted["scheduling"]


def fit(rows: Sequence[Mapping[str, Any]]) -> CostModel | None:
    """Fit the model; ``None`` if the rows cannot tell its terms apart.

    Two terms are measured apart, for times as a whole could not tell them from others: scheduling (from the
    rest of a task), and publishing and loading the weights, by the history's phases (from what grows with an
    executor's share of the weights, with as many executors in all rows).
    """
    if not rows:
        return None
    exchange, slots = rows[0]["exchange"], rows[0]["slots"]
    counted = [counts(exchange, r["parameters"], r["partitions"], r["shards"], slots) for r in rows]
    sizes = {term: np.array([each[term] for each in counted], np.float64) for term in TERMS}
    seconds = np.array([row["milliseconds"] / 1e3 for row in rows])
    publishing = np.array([(r["phases"]["broadcast"] + r["phases"]["weights_in"]) / 1e3 for r in rows])
    scheduling = np.array([row["scheduling_ms_per_task"] / 1e3 for row in rows])
    rest = seconds - publishing - scheduling * sizes["scheduling"]
    first = least_squares({term: sizes[term] for term in ("fixed", "weights")}, publishing, publishing)
    apart = ("scheduling", "weights")
    second = least_squares({term: sizes[term] for term in TERMS if term not in apart}, rest, seconds)
    if first is None or second is None:
        return None
    found = {term: first.get(term, 0.0) + second.get(term, 0.0) for term in TERMS}
    found["scheduling"] = float(np.median(scheduling))
    predicted = sum(found[term] * sizes[term] for term in TERMS)
    return CostModel(
        exchange=exchange,
        seconds=found,
        r2=float(1 - ((seconds - predicted) ** 2).sum() / ((seconds - seconds.mean()) ** 2).sum()),
        error=float(np.abs(predicted / seconds - 1).max()),
        slots=slots,
        rows=len(rows),
    )


def least_squares(sizes: Mapping[str, Any], seconds: Any, whole: Any) -> dict[str, float] | None:
    """Fit seconds by sizes, without negative coefficients; errors count relative to ``whole``.

    Terms that would be negative are left out one by one. ``None`` if the sizes are not independent.
    """
    scale = {term: values.max() for term, values in sizes.items()}
    columns = {term: values / scale[term] / whole for term, values in sizes.items()}
    if np.linalg.matrix_rank(np.array(list(columns.values()))) < len(columns):
        return None
    while columns:
        matrix = np.array(list(columns.values())).T
        found = np.linalg.lstsq(matrix, seconds / whole, rcond=None)[0]
        if found.min() >= 0:
            return {term: float(value / scale[term]) for term, value in zip(columns, found, strict=True)}
        del columns[list(columns)[int(found.argmin())]]
    return {}


# -- what is printed -------------------------------------------------------------------------------


COLUMNS = (
    "exchange",
    "transport",
    "direct",
    "parameters",
    "partitions",
    "milliseconds",
    "bare_milliseconds",
    "bandwidth_MB_s",
    "gloo_milliseconds",
    "ratio_to_gloo",
    "peak_rss_MB",
    "rss_target_MB",
    "driver_peak_rss_MB",
    *PHASES,
)


_MEASURED = """
Measured. The sync is the iteration without forward, backward and reading rows. Milliseconds are medians,
those of phases of the slowest task. Peaks contain 0.4 to 0.5 GB of Python and torch, the target does not.
"""


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the measured rows."""
    print(_MEASURED)
    flat = [{**row, **row.get("phases", {})} for row in rows]
    table(COLUMNS, [[row.get(name) for name in COLUMNS] for row in flat])


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join("" if value is None else str(value) for value in row) + " |")


_NO_MODEL = """
No cost model: it takes several sizes with the same number of partitions, and three numbers of partitions."""

_FITTED = """
Fitted to these {rows} rows ({master}, {slots} slots), by relative error:
"""

_QUALITY = """
R2 {r2:.3f}, largest relative error {error:.0%}."""

_EXTRAPOLATED = """
Extrapolated, not measured: one task per executor, each executor on a machine of its own with {network:g} GB/s
in each direction. A byte costs what it cost here, or what the network takes if that is more; here all
executors and the driver shared one machine. Assumed: the driver schedules one task after the other, all else
in a task runs at the same time as in the others, a broadcast takes as long as one copy of the weights, and
the driver, if it receives shards, does so as fast as its network can. Overhead is sync / compute, for
{compute:g} s of forward and backward.
"""

_BIGDL = """
BigDL (Dai et al., SoCC 2019) reports for Inception-v1 that the sync takes under 7 % of the compute on 32
nodes, and that scheduling takes more than 10 % at 500 tasks."""


def show_model(model: CostModel | None, args: argparse.Namespace) -> None:
    """Print the cost model and what follows from it for larger clusters."""
    if model is None:
        print(_NO_MODEL)
        return
    print(_FITTED.format(rows=model.rows, master=args.master, slots=model.slots))
    found = [(f"{model.seconds[term] * factor:.4g}", unit) for term, (factor, unit) in TERMS.items()]
    table(("coefficient", "unit"), found)
    print(_QUALITY.format(r2=model.r2, error=model.error))
    print(_EXTRAPOLATED.format(network=args.network, compute=args.compute))
    foretold = []
    for name, numel in MODELS.items():
        for executors in EXECUTORS:
            seconds, scheduling = model.predict(numel, executors, args.network * 1e9)
            shares = [f"{part / args.compute:.1%}" for part in (seconds, scheduling)]
            foretold.append((name, executors, f"{seconds:.3f}", *shares))
    table(("model", "executors", "sync s", "overhead", "of it scheduling"), foretold)
    print(_BIGDL)


def main() -> None:
    args, rows = arguments(), list[keeping.Row]()
    with keeping.cut_off(), contextlib.redirect_stdout(sys.stderr):
        run(args, rows)
    show(rows)
    failed = [row for row in rows if "error" in row]
    if args.transport == "direct":
        print("\nFor larger clusters see cost_model.py.")
    else:
        show_model(fit([row for row in rows if "error" not in row]), args)
    for row in failed:
        print(f"\n{row['parameters']} parameters, {row['partitions']} partitions: {row['error']}")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
