"""Measure what more executors cost the driver, with nobody computing: both transports, on one machine.

    python benchmarks/scale.py --json scale.json
    python benchmarks/scale.py --executors 2 --transports direct --seconds 5

Each session is a ``local-cluster`` of so many executors with one core and a small heap, and as many
partitions. They train a linear model of eleven weights on two rows each. Per transport, with ``--groups``
steps in a job (several, so that the costs of jobs, tasks and steps can be told apart), a row says for the
second half of ``--seconds``:

    driver_jvm_ms       processor time of the driver's JVM per job, task and step, without what it takes
                        when idle: in a local-cluster Spark's master and workers live in it. ``of_which`` is
                        the part of threads that compile, and that collect garbage
    driver_python_ms    the same of the driver's Python: engine, loop, history
    seconds_per_group   from one group's start to the next one's; and per step
    executor_jvm_MB     memory of an executor's JVM (proportional set size: shared pages count in parts)
    executor_python_MB  the same of its Python processes

A task is a rank in a stage: a direct group has one stage, a group of shuffles one for each step and one more.
All processes share this machine's cores, so seconds are those of a crowded machine; processor time is what
counts for a driver on a machine of its own (``cost_model.py``). Sizes that would not fit into memory are left
out, and say so in their row.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import keeping
import numpy as np
import psutil
import torch
from torch import nn

from sparkdl import Dataset, Trainer, session
from sparkdl.allreduce import choose
from sparkdl.allreduce.transport.base import Group, GroupResult
from sparkdl.exceptions import SparkdlError
from sparkdl.train import TrainState, Trigger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRANSPORTS = {"shuffle": "ShuffleTransport", "direct": "DirectTransport"}
_LEAST_GROUPS = 4
_ROWS = 2  # of a rank in a step
_IDLE_SECONDS = 5.0
_SPARE_BYTES = 2 << 30  # that must stay free
_FIRST_GUESS = 900e6  # bytes of an executor, before one was measured
_TICKS = os.sysconf("SC_CLK_TCK")
SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k -XX:ReservedCodeCacheSize=64m"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the driver's work per task, job and step.")
    parser.add_argument("--executors", type=int, nargs="+", default=[2, 4, 8, 16, 24, 32, 48])
    parser.add_argument("--transports", nargs="+", choices=tuple(TRANSPORTS), default=list(TRANSPORTS))
    parser.add_argument("--groups", type=int, nargs="+", default=[5, 25], help="steps in a job")
    parser.add_argument(
        "--seconds", type=float, default=40.0, help="of each figure, at least; the first half warms up"
    )
    parser.add_argument("--memory", default="512m", help="heap of an executor")
    parser.add_argument("--conf", nargs="+", default=[], metavar="NAME=VALUE", help="further Spark confs")
    parser.add_argument("--json", help="where to write the rows, after every figure")
    args = parser.parse_args()
    if min(args.executors) < 1 or min(args.groups) < 1 or args.seconds <= 0:
        parser.error("--executors and --groups must be at least 1, --seconds positive")
    return args


# -- processor time --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks at a moment, in seconds.

    Attributes:
        now: the wall's.
        jvm: processor time of the driver's JVM.
        python: processor time of this process.
        threads: processor time of the JVM's threads that are alive, by name without numbers.
    """

    now: float
    jvm: float
    python: float
    threads: Counter[str]

    @classmethod
    def read(cls, pid: int, *, threads: bool = False) -> Clocks:
        """Read them."""
        found = by_thread(pid) if threads else Counter[str]()
        return cls(time.perf_counter(), process_seconds(pid), time.process_time(), found)


def process_seconds(pid: int | str) -> float:
    """Return the processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def by_thread(pid: int) -> Counter[str]:
    """Return the processor seconds of a process's threads, by name without numbers."""
    found: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            name = (task / "comm").read_text().strip().rstrip("0123456789-# ")
            found[name] += int((task / "schedstat").read_text().split()[0]) / 1e9  # type: ignore[assignment]
    return found


@dataclass(slots=True)
class Groups:
    """Groups as they began: what lies between two of these moments is all that a group costs.

    Attributes:
        pid: of the driver's JVM.
        warm: seconds before the first one counts.
        begun: clocks at their starts, and how many steps each had.
        fallen_back: groups that went by shuffles though they should not have, or found somebody lost.
    """

    pid: int
    warm: float
    begun: list[tuple[Clocks, int]] = field(default_factory=list)
    first: float | None = None
    fallen_back: int = 0

    def begin(self, group: Group) -> None:
        """Note the start of a group."""
        now = time.perf_counter()
        self.first = self.first or now
        if now - self.first >= self.warm:
            self.begun.append((Clocks.read(self.pid, threads=not self.begun), len(group.steps)))


@dataclass(slots=True)
class Enough(Trigger):
    """Fires after some seconds, as soon as some groups count; after four times as long in any case."""

    groups: Groups
    seconds: float
    since: float | None = None

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether enough was measured."""
        self.since = self.since or time.perf_counter()
        spent = time.perf_counter() - self.since
        return spent > (self.seconds if len(self.groups.begun) >= _LEAST_GROUPS else 4 * self.seconds)


class Watcher(Protocol):
    """Notes groups as they begin, and counts those that went otherwise than they should."""

    fallen_back: int

    def begin(self, group: Group) -> None:
        """Note the start of a group."""


@contextlib.contextmanager
def watched(transport: str, groups: Watcher) -> Any:
    """Let the transport of the fits in this block note its groups."""
    name = TRANSPORTS[transport]
    kind: Any = getattr(choose, name)

    class Watched(kind):  # type: ignore[misc]
        def run(self, group: Group) -> GroupResult:
            groups.begin(group)
            result: GroupResult = super().run(group)
            groups.fallen_back += result.direct != (transport == "direct") or bool(result.problems)
            return result

    setattr(choose, name, Watched)
    try:
        yield
    finally:
        setattr(choose, name, kind)


# -- memory ----------------------------------------------------------------------------------------


def executors_bytes() -> tuple[list[int], list[int]]:
    """Return the memory of each executor's JVM, and of the Python processes below it."""
    jvms, pythons = [], []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(part.endswith("CoarseGrainedExecutorBackend") for part in process.cmdline()):
                jvms.append(process.memory_full_info().pss)
                below = process.children(recursive=True)
                pythons.append(sum(each.memory_full_info().pss for each in below))
    return jvms, pythons


# -- measuring -------------------------------------------------------------------------------------


def run(args: argparse.Namespace, rows: list[keeping.Row]) -> None:
    """Measure, and leave a row per number of executors, transport and steps in a job in ``rows``."""
    add = partial(keeping.add, args.json, rows)
    each = _FIRST_GUESS
    for executors in sorted(args.executors):
        room = psutil.virtual_memory().available - _SPARE_BYTES
        if executors * each > room:
            wanted = f"{executors * each / 1e9:.1f} GB for executors, {max(room, 0) / 1e9:.1f} GB are free"
            add({"executors": executors, "skipped": wanted})
            continue
        found = measure_session(args, executors, add)
        each = found or each


def small_executors(memory: str) -> dict[str, str]:
    """Return confs of executors of one core that take little memory, and all of which are waited for."""
    return {
        "spark.executor.memory": memory,
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": SMALL,
        "spark.executorEnv.MALLOC_ARENA_MAX": "2",  # an arena per thread takes memory
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    }


def measure_session(
    args: argparse.Namespace, executors: int, add: Callable[[keeping.Row], None]
) -> float | None:
    """Measure with so many executors; return the bytes of one."""
    heap = int(args.memory.removesuffix("m"))
    conf = {
        **small_executors(args.memory),
        "spark.executorEnv.GLIBC_TUNABLES": "",  # huge pages take memory
        **dict(pair.split("=", 1) for pair in args.conf),
    }
    master = f"local-cluster[{executors},1,{heap}]"
    spark = session.builder(master, "benchmark scale", conf).getOrCreate()
    try:
        jvm: Any = spark.sparkContext._jvm
        pid = int(jvm.java.lang.ProcessHandle.current().pid())
        idle = idle_share(pid)
        largest = None
        for transport in args.transports:
            for steps in args.groups:
                named = {"executors": executors, "transport": transport, "steps_per_job": steps}
                try:
                    row, largest = measure(spark, pid, executors, transport, steps, args.seconds, idle)
                except SparkdlError as error:  # the other figures count all the same
                    row = {"error": str(error).splitlines()[0]}
                add({**named, **row})
        return largest
    finally:
        spark.stop()


def idle_share(pid: int) -> float:
    """Return the share of a core that the driver's JVM takes when nothing runs."""
    time.sleep(_IDLE_SECONDS)  # executors have just registered
    before = Clocks.read(pid)
    time.sleep(_IDLE_SECONDS)
    after = Clocks.read(pid)
    return (after.jvm - before.jvm) / (after.now - before.now)


def measure(
    spark: SparkSession, pid: int, executors: int, transport: str, steps: int, seconds: float, idle: float
) -> tuple[keeping.Row, float | None]:
    """Measure one transport with so many steps in a job; return the row, and the bytes of an executor."""
    torch.manual_seed(0)
    rows = np.random.default_rng(0).standard_normal((100 * _ROWS * executors, 10), dtype=np.float32)
    groups = Groups(pid, seconds / 2)
    with (
        Dataset.from_numpy([rows], rows.sum(1, keepdims=True), spark=spark, num_partitions=executors) as data,
        watched(transport, groups),
    ):
        Trainer(
            nn.Linear(10, 1),
            loss=nn.MSELoss(),
            optimizer=lambda params: torch.optim.SGD(params, lr=1e-3),
            batch_size=_ROWS * executors,
            end_when=Enough(groups, seconds),
            progress=False,
            exchange="replicated",
            transport=transport,
            iterations_per_job=steps,
        ).fit(data)
        last = Clocks.read(pid, threads=True)
        jvms, pythons = executors_bytes()
    row = costs(groups, last, executors, transport, idle)
    megabytes = [round(statistics.fmean(sizes) / 1e6, 1) if sizes else None for sizes in (jvms, pythons)]
    row |= {"executor_jvm_MB": megabytes[0], "executor_python_MB": megabytes[1]}
    row |= {"load_average": round(os.getloadavg()[0], 2), "cores": os.cpu_count()}
    return row, (sum(jvms) + sum(pythons)) / len(jvms) if jvms else None


def costs(groups: Groups, last: Clocks, executors: int, transport: str, idle: float) -> keeping.Row:
    """Return what groups have cost the driver.

    The last group of a fit is left out: nothing began after it.

    Args:
        groups: as they began.
        last: clocks at the end of the fit, for threads alone.
        executors: number of tasks of a stage.
        transport: which one.
        idle: share of a core that the JVM takes anyway.
    """
    begun = groups.begun
    if len(begun) < 2:
        return {"error": f"{len(begun)} groups began after the warm-up: give more --seconds"}
    (first, _), (end, _) = begun[0], begun[-1]
    jobs, steps = len(begun) - 1, sum(count for _, count in begun[:-1])
    stages = jobs if transport == "direct" else steps + jobs
    tasks, elapsed = stages * executors, end.now - first.now
    jvm, python = end.jvm - first.jvm - idle * elapsed, end.python - first.python
    threads = last.threads - first.threads
    per = {"job": jobs, "task": tasks, "step": steps}
    share = elapsed / (last.now - first.now)
    named: dict[str, Callable[[str], bool]] = {
        "compiling": lambda name: "CompilerThre" in name,
        "garbage": lambda name: name.startswith(("GC", "G1", "VM Thread")),
    }
    return {
        "jobs": jobs,
        "tasks": tasks,
        "steps": steps,
        "seconds": round(elapsed, 2),
        "seconds_per_group": round(elapsed / jobs, 4),
        "seconds_per_step": round(elapsed / steps, 5),
        "driver_jvm_ms": {name: round(1e3 * jvm / n, 4) for name, n in per.items()},
        "driver_python_ms": {name: round(1e3 * python / n, 4) for name, n in per.items()},
        "driver_jvm_of_which_ms_per_job": {
            what: round(1e3 * share * sum(threads[name] for name in threads if belongs(name)) / jobs, 3)
            for what, belongs in named.items()
        },
        "driver_threads_ms_per_job": {
            name: round(1e3 * share * t / jobs, 3) for name, t in threads.most_common(8)
        },
        "idle_share": round(idle, 4),
        "fallen_back": groups.fallen_back,
    }


COLUMNS = (
    "executors",
    "transport",
    "steps_per_job",
    "seconds_per_group",
    "seconds_per_step",
    "jvm ms/job",
    "jvm ms/task",
    "jvm ms/step",
    "python ms/job",
    "python ms/step",
    "executor_jvm_MB",
    "executor_python_MB",
    "fallen_back",
)


def show(rows: Sequence[keeping.Row]) -> None:
    """Print the table."""
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for row in rows:
        flat = dict(row)
        for who in ("jvm", "python"):
            flat |= {f"{who} ms/{what}": ms for what, ms in row.get(f"driver_{who}_ms", {}).items()}
        if note := row.get("skipped") or row.get("error"):
            flat["seconds_per_group"] = note
        print("| " + " | ".join(str(flat.get(name, "")) for name in COLUMNS) + " |")


def main() -> int:
    args, rows = arguments(), list[keeping.Row]()
    with keeping.cut_off() as causes, contextlib.redirect_stdout(sys.stderr):
        run(args, rows)
    show(rows)
    return 1 if causes else 0


if __name__ == "__main__":
    sys.exit(main())
