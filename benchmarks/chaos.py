"""Train while executors, tasks and drivers die, and compare the weights bit by bit.

    python benchmarks/chaos.py --kills 50
    python benchmarks/chaos.py --scenario all
    python benchmarks/chaos.py --transport direct --kills 50
    python benchmarks/chaos.py --transport direct --tables --iterations 1500 --row-memory 20000

Each scenario starts a standalone master with workers that restart their executors, trains once undisturbed
and then several times with faults, and prints one JSON line::

    kill          executors killed by SIGKILL at random moments, one at a time
    both          both executors killed at the same time
    decommission  executors told to leave (SIGPWR), with the settings of conf/spot.conf
    exceptions    5 % of all tasks raise an exception
    slow          1 % of all tasks take seconds, with speculation on
    dynamic       dynamic allocation between 1 and 3 executors, while executors are killed
    driver        the driver killed by SIGKILL and resumed from its checkpoints

``kills`` counts the faults, ``bit_identical`` the runs that ended with the undisturbed run's weights,
and ``seconds_lost_per_kill`` how much longer they took per fault. ``seconds_to_next_step`` are those from
each signal to the end of the next step that was not on its way to the driver already.

``--row-memory`` trains a model with an embedding variable of 100 kB, with that bound.

``--transport direct`` lets the tasks of a group exchange among themselves, with shuffles for a while after
a loss; ``mixed`` changes between both by chance, group by group, and the undisturbed run that it is
compared with bit by bit exchanges directly (``seconds_lost_per_kill`` is that over an undisturbed mixed
run). Direct steps take a tenth of the time, so a run has more of them, and faults hit it only while it
exchanges directly at least now and then: ``direct`` is the share of the steps of disturbed runs that did,
``kills_while_direct`` counts the faults that came when the latest step had.

``--scan`` trains on Parquet files where they lie, with a cache of row groups on the executors' disks.

``--tables`` trains an embedding variable beside other weights, whose entries are admitted and evicted all the
time; all rows are compared. ``--late 0.5`` has half of the gradients come one update late.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import keeping
from standalone import ENVIRONMENT, Cluster, cluster


def spot_conf() -> dict[str, str]:
    """Return what conf/spot.conf says."""
    lines = Path(__file__).parents[1].joinpath("conf", "spot.conf").read_text().splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line.startswith("spark."))
    return {name: value.strip() for name, value in pairs}


ITERATIONS = {"shuffle": 300, "direct": 6000, "mixed": 1500}
"""Iterations of a run, by transport: some ten seconds each, so that faults hit it."""

EXCHANGES = ("auto", "replicated", "sharded", "driver")

_DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "4s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "4s",
}
_PAUSES, _PAUSE_SECONDS = 5, 10.0
_ARRIVING_SECONDS = 0.1  # in which the driver's hooks get the steps of a group that was complete
_SPECULATION = {"spark.speculation": "true", "spark.speculation.interval": "100ms"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """What goes wrong.

    Attributes:
        conf: Spark confs.
        victims: executors that a fault hits at a time; 0 for the driver.
        signal: how they are told.
        raises: share of tasks that raise.
        sleeps: share of tasks that sleep.
        pauses: whether the run pauses now and then, so that executors become idle.
    """

    conf: dict[str, str] = field(default_factory=dict)
    victims: int | None = None
    signal: signal.Signals = signal.SIGKILL
    raises: float = 0.0
    sleeps: float = 0.0
    pauses: bool = False


SCENARIOS = {
    "kill": Scenario(victims=1),
    "both": Scenario(victims=2),
    "decommission": Scenario(spot_conf(), victims=1, signal=signal.SIGPWR),
    "exceptions": Scenario(raises=0.05),
    "slow": Scenario(_SPECULATION, sleeps=0.01),
    "dynamic": Scenario(_DYNAMIC, victims=1, pauses=True),
    "driver": Scenario(victims=0),
}


# -- the driver ---------------------------------------------------------------------------------


def disturb(scenario: Scenario, faults: str, rarer: float, x: Any) -> Any:
    """Raise or sleep now and then in tasks, otherwise return the batch as it is.

    Args:
        scenario: how often.
        faults: file that counts them.
        rarer: factor of how often.
        x: the batch.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None:  # the dry run on the driver
        return x
    chance = int.from_bytes(os.urandom(4), "big") / 2**32  # not torch's: a retry must have other luck
    if chance < rarer * (scenario.raises + scenario.sleeps):
        with open(faults, "a") as file:
            file.write("x")
        if chance < rarer * scenario.raises:
            raise RuntimeError("chaos")
        time.sleep(3.0)
    return x


def mix_transports(seed: int) -> None:
    """Let direct exchange of this process's fits be possible by chance, anew after each group."""
    from sparkdl.allreduce.transport.base import Group, GroupResult
    from sparkdl.allreduce.transport.direct.transport import DirectTransport

    chance = random.Random(seed)

    class Mixed(DirectTransport):
        """Direct exchange that is possible now and then."""

        directly = True

        def run(self, group: Group) -> GroupResult:
            try:
                return super().run(group)
            finally:
                self.directly = chance.random() < 0.5

        def _is_possible(self) -> bool:
            return self.directly and super()._is_possible()

    choose: Any = importlib.import_module("sparkdl.allreduce.choose")
    choose.DirectTransport = Mixed


def train(args: argparse.Namespace) -> None:
    """Train in this process, as the driver of an application of its own."""
    import numpy as np
    import pyarrow as pa
    import torch
    from pyarrow import parquet
    from sklearn.datasets import load_digits
    from torch import nn

    from sparkdl import Dataset, Trainer, session
    from sparkdl.nn import EmbeddingVariable
    from sparkdl.optim import Staleness
    from sparkdl.train import Checkpoint, EveryIterations, Hook, MaxIteration, Run

    scenario = SCENARIOS[args.scenario]
    if args.transport == "mixed":
        mix_transports(args.seed)

    class Tabled(nn.Module):
        """Looks up a row for each pixel and its brightness."""

        def __init__(self) -> None:
            super().__init__()
            self.table = EmbeddingVariable(8, seed=1, min_count=3, max_age=8, evict_every=4)
            self.head = nn.Sequential(nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ids = (x * 16).long() + 17 * torch.arange(64)
            return self.head(self.table(ids << 40).sum(1))

    class Report(Hook):
        """Tells the process that does the harm how far the run is."""

        def on_iteration_end(self, run: Run) -> None:
            assert run.outcome is not None  # every iteration has rows
            progress = f"{run.state.iteration} {int(run.outcome.direct)}"
            Path(args.folder, "progress").write_text(progress)
            if args.disturbed and scenario.pauses and run.state.iteration % _pause_every(args) == 0:
                time.sleep(_PAUSE_SECONDS)

    conf = {
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        **scenario.conf,
    }
    if not scenario.pauses:
        conf["spark.cores.max"] = "2"
    spark = session.builder(args.master, "chaos", conf).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    x, y = load_digits(return_X_y=True)
    rows = spark.createDataFrame(
        [(list(map(float, image)), int(digit)) for image, digit in zip(x / 16, y, strict=True)],
        "image array<float>, digit long",
    )
    rarer = ITERATIONS["shuffle"] / args.iterations if args.transport != "shuffle" else 1.0
    faults = str(Path(args.folder, "faults"))
    transform = partial(disturb, scenario, faults, rarer) if args.disturbed else None
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)
    )
    adam = partial(torch.optim.Adam, lr=1e-3)
    lazy = partial(torch.optim.SparseAdam, lr=1e-3)
    partitions = 3 if scenario.pauses else 2
    checkpoint = Checkpoint(args.folder, EveryIterations(max(1, args.iterations // 15)))
    given: dict[str, Any] = {"features": "image", "label": "digit", "num_partitions": partitions}
    given["transform"] = transform
    if args.scan:
        table = Path(args.folder, "table.parquet")  # whose rows come in the same order in each run
        columns = {"image": list((x / 16).astype(np.float32)), "digit": y}
        if not table.exists():  # a driver that was killed has written it
            parquet.write_table(pa.table(columns), f"{table}.draft", row_group_size=50)
            Path(f"{table}.draft").rename(table)
        made = Dataset.from_parquet(table, spark=spark, streams=6, cache_bytes=1 << 20, **given)
    else:
        made = Dataset.from_dataframe(rows, **given)
    with made as data:
        result = Trainer(
            Tabled() if args.tables else module,
            loss=nn.CrossEntropyLoss(),
            optimizer={"table*": lazy, "*": adam} if args.tables else adam,
            staleness=Staleness(share=args.late) if args.late else None,
            row_memory=args.row_memory,
            batch_size=128,
            seed=1,
            end_when=MaxIteration(args.iterations),
            exchange=args.exchange,
            transport="shuffle" if args.transport == "shuffle" else "direct",
            hooks=[Report(), *([checkpoint] if scenario.victims == 0 else [])],
            max_failures=1000,  # the default gives up earlier: 5 failed iterations in ten minutes
            progress=False,
        ).fit(data, resume=scenario.victims == 0)
    directly = sum(row["direct"] for row in result.history)
    Path(args.folder, "direct").write_text(f"{directly} {len(result.history)}")
    weights = torch.cat([value.double().flatten() for value in result.module.state_dict().values()])
    np.save(Path(args.folder, "weights.npy"), weights.numpy())
    spark.stop()


# -- the harm -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Ended:
    """How a run ended.

    Attributes:
        seconds: how long it took.
        faults: how often it was disturbed.
        weights: all bytes of its parameters and buffers.
        direct: steps that exchanged directly.
        steps: steps of its history.
    """

    seconds: float
    faults: int
    weights: bytes
    direct: int
    steps: int


@dataclass(frozen=True, slots=True)
class Training:
    """What runs: see the options of the same names."""

    scenario: str
    iterations: int
    exchange: str
    transport: str
    seed: int
    row_memory: int | None = None
    tables: bool = False
    late: float = 0.0
    scan: bool = False

    def options(self) -> list[str]:
        """Return the options of a driver."""
        named = {
            "--scenario": self.scenario,
            "--iterations": self.iterations,
            "--exchange": self.exchange,
            "--transport": self.transport,
            "--seed": self.seed,
            **({"--row-memory": self.row_memory} if self.row_memory else {}),
            "--late": self.late,
        }
        options = [str(part) for pair in named.items() for part in pair]
        return [*options, *(["--tables"] if self.tables else []), *(["--scan"] if self.scan else [])]


def run(training: Training, master: str, harm: Callable[[Path, subprocess.Popen[Any]], int] | None) -> Ended:
    """Run a driver, again and again if it is killed, and disturb it meanwhile."""
    with tempfile.TemporaryDirectory(prefix="sparkdl-chaos-") as text:
        folder, faults, begin = Path(text), 0, time.monotonic()
        command = [sys.executable, __file__, "--role", "driver", "--master", master, "--folder", text]
        command += training.options()
        command += ["--disturbed"] if harm is not None else []
        while not (folder / "weights.npy").exists():
            with (folder / "log").open("w") as log:
                driver = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | ENVIRONMENT)
                try:
                    faults += harm(folder, driver) if harm is not None else 0
                    driver.wait()
                finally:
                    driver.kill()
                    driver.wait()
            if driver.returncode not in (0, -signal.SIGKILL):
                raise RuntimeError((folder / "log").read_text()[-8000:])
        injected = (folder / "faults").stat().st_size if (folder / "faults").exists() else 0
        seconds = time.monotonic() - begin
        direct, steps = map(int, (folder / "direct").read_text().split())
        return Ended(seconds, faults + injected, (folder / "weights.npy").read_bytes(), direct, steps)


class Harm:
    """Sends signals at random moments, after the run has made some progress.

    Args:
        scenario: what goes wrong.
        spark: the cluster.
        kills: faults in all.
        training: what is disturbed.

    Attributes:
        left: faults that are still to come.
        while_direct: faults that came when the latest step had exchanged directly.
        to_next_step: seconds from each signal to executors to the end of the next step.
    """

    def __init__(self, scenario: Scenario, spark: Cluster, kills: int, training: Training) -> None:
        self._scenario = scenario
        self._spark = spark
        self._random = random.Random(training.seed)
        self._apart = max(1, training.iterations // ITERATIONS["shuffle"])
        self._direct = training.transport == "direct"
        self.left = kills
        self.while_direct = 0
        self.to_next_step: list[float] = []

    def __call__(self, folder: Path, driver: subprocess.Popen[Any]) -> int:
        """Disturb a run until it ends, or the driver is dead; return the number of faults."""
        faults, seen = 0, 0
        while driver.poll() is None and self.left > 0 and self._scenario.victims is not None:
            if not self._wait(folder, driver, seen + self._apart * self._random.randrange(3, 30)):
                break
            time.sleep(self._random.uniform(0, 0.5))
            seen, direct = _progress(folder)
            self.while_direct += direct
            if self._scenario.victims == 0:
                driver.kill()
                self.left -= 1
                return 1
            executors = self._spark.executors()
            victims = self._random.sample(executors, min(self._scenario.victims, len(executors)))
            hit, then = self._spark.signal(victims, self._scenario.signal), time.monotonic()
            faults += hit
            self.left -= hit
            time.sleep(_ARRIVING_SECONDS)
            if self._wait(folder, driver, _progress(folder)[0] + 1, directly=False):
                self.to_next_step.append(round(time.monotonic() - then, 2))
        return faults

    def _wait(
        self, folder: Path, driver: subprocess.Popen[Any], iteration: int, *, directly: bool = True
    ) -> bool:
        directly = directly and self._direct
        while driver.poll() is None:
            reached, direct = _progress(folder)
            if reached >= iteration and (direct or not directly) and self._spark.executors():
                return True
            time.sleep(0.02)
        return False


def _progress(folder: Path) -> tuple[int, bool]:
    """Return the completed iterations, and whether the latest one exchanged directly."""
    try:
        iteration, direct = (folder / "progress").read_text().split()
        return int(iteration), direct == "1"
    except (FileNotFoundError, ValueError):
        return 0, False


def _pause_every(args: argparse.Namespace | Training) -> int:
    """Return the iterations between two pauses."""
    return max(1, args.iterations // _PAUSES)


def measure(training: Training, kills: int) -> dict[str, Any]:
    """Run a scenario and return its line; if it is cut off, that of the runs that have ended."""
    name, scenario, cut_off = training.scenario, SCENARIOS[training.scenario], False
    ended: list[Ended] = []
    with cluster(3 if scenario.pauses else 2) as spark:
        calm = reference = run(training, spark.url, None)
        if training.transport == "mixed":
            reference = run(replace(training, transport="direct"), spark.url, None)
        harm = Harm(scenario, spark, kills, training)
        try:
            while harm.left > 0 and len(ended) < kills:
                ended.append(run(training, spark.url, harm))
                if scenario.victims is None:
                    harm.left -= ended[-1].faults
                left = max(harm.left, 0)
                print(f"{name}: run {len(ended)} has ended, {left} faults left", file=sys.stderr)
        except KeyboardInterrupt:
            cut_off = True
    faults = sum(each.faults for each in ended)
    pauses = _PAUSE_SECONDS * (training.iterations // _pause_every(training)) if scenario.pauses else 0.0
    lost = sum(each.seconds - calm.seconds - pauses for each in ended)
    return {
        "scenario": name,
        "exchange": training.exchange,
        "transport": training.transport,
        "tables": training.tables,
        "late": training.late,
        "kills": faults,
        "kills_while_direct": harm.while_direct,
        "direct": round(sum(each.direct for each in ended) / max(sum(each.steps for each in ended), 1), 3),
        "runs": len(ended),
        "bit_identical": sum(each.weights == calm.weights == reference.weights for each in ended),
        "seconds_lost_per_kill": round(lost / max(faults, 1), 2),
        "seconds_to_next_step": sorted(harm.to_next_step),
        "seconds_undisturbed": round(calm.seconds, 1),
        "iterations": training.iterations,
        "seed": training.seed,
        "cut_off": cut_off,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Train while executors, tasks and drivers die.")
    parser.add_argument("--kills", type=int, default=10, help="faults in all, per scenario")
    parser.add_argument("--scenario", choices=("all", *SCENARIOS), default="kill")
    parser.add_argument("--iterations", type=int, help="of each run (300; 6,000 direct, 1,500 mixed)")
    parser.add_argument("--transport", choices=tuple(ITERATIONS), default="shuffle")
    parser.add_argument("--exchange", choices=EXCHANGES, default="auto", help="of Trainer (auto: replicas)")
    parser.add_argument("--row-memory", type=int, help="bytes of rows in memory, with --tables")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and victims")
    parser.add_argument("--tables", action="store_true", help="train an embedding variable, too")
    parser.add_argument("--scan", action="store_true", help="train on Parquet files where they lie")
    parser.add_argument("--late", type=float, default=0.0, help="share of gradients that come late")
    parser.add_argument("--role", choices=("harm", "driver"), default="harm", help=argparse.SUPPRESS)
    parser.add_argument("--master", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--disturbed", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.transport != "shuffle" and args.exchange == "driver":
        parser.error("--transport direct and mixed need another exchange than driver")
    args.iterations = args.iterations or ITERATIONS[args.transport]
    if args.role == "driver":
        train(args)
        return 0
    same, cut_off = True, False
    with keeping.cut_off() as causes:
        for name in SCENARIOS if args.scenario == "all" else [args.scenario]:
            training = Training(
                name,
                args.iterations,
                args.exchange,
                args.transport,
                args.seed,
                args.row_memory,
                args.tables,
                args.late,
                args.scan,
            )
            line = measure(training, args.kills)
            same &= line["bit_identical"] == line["runs"]
            cut_off |= line["cut_off"]
            print(json.dumps(line), flush=True)
            if cut_off:
                break
    return 0 if same and not causes and not cut_off else 1


if __name__ == "__main__":
    sys.exit(main())
