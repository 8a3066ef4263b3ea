"""How the time of an iteration grows with the rows of an embedding variable, and with a bound for memory.

    python benchmarks/row_tables.py --cases 200000:0 20000000:1024 --json growth.json
    python benchmarks/row_tables.py --cases 20000:0 5600000:0 5600000:128 --json bound.json
    python benchmarks/row_tables.py --rows 200000 --memory 0 --torch --json torch.json

A model with eight columns of ids that share a table of width 16, and a small network. Iterations that meet
each id once come first and are not measured. The ids of the others have Zipf's distribution, in no order.
Each case is a process with a session of its own, which it leaves without fetching the rows. ``--memory`` is
the option ``row_memory`` in MiB, 0 for none; ``--cases`` has pairs of rows and this option.
``ms_per_iteration`` is the mean: a group of iterations ends with keeping what it has changed, and once in a
while with all rows, so measure at least as many iterations as look up each row once. ``resident_mb``
is the largest memory of a Python process on an executor: all of it (``VmRSS``), its own (``RssAnon``), pages
of files (``RssFile``), the most ever (``VmHWM``). ``ratio`` is the time compared with the first case.
``--checkpoint`` writes all rows from the executors at the end, as ``Checkpoint(shared=True)`` does: its size,
the seconds that it takes, and the memory of the largest Python process and, more than before, of the driver.
``--checkpoints 1 4`` adds a case for each ``full_every`` of ``Checkpoint(shared=True)``, which writes five
times among the measured iterations: ``waits`` are the seconds for which training waits for each of them,
``wall_ms`` is the mean time of an iteration with them; compare it with that of the case without.
``--torch`` measures the same model with ``EmbeddingBag(sparse=True)`` in one process with one thread, too;
``ids_ms`` is what the forward pass takes that tells the ids of an iteration, and that torch does not need.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import keeping
import numpy as np
import torch
from tiers import WIDTH, ids_of, zipf
from torch import nn

COLUMNS = 8
_WARM = 4
OPTIMIZERS: dict[str, Any] = {
    "table*": partial(torch.optim.SparseAdam, lr=1e-3),
    "*": partial(torch.optim.Adam, lr=1e-3),
}


class Ranker(nn.Module):
    """Scores rows of ids.

    Args:
        table: looks up rows.
    """

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table
        self.head = nn.Sequential(nn.Linear(COLUMNS * WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return a score for each row."""
        scores: torch.Tensor = self.head(self.table(ids).flatten(1)).squeeze(1)
        return scores


def batches(rows: int, skew: float, batch: int, steps: int) -> tuple[Any, int]:
    """Return the numbers of all iterations, and how many iterations come before the measured ones."""
    random = np.random.default_rng(0)
    each = batch * COLUMNS
    first = max(_WARM, -(-rows // each))
    numbers = np.concatenate(
        [np.resize(random.permutation(rows), first * each), zipf(random, rows, skew, steps * each)]
    )
    return numbers.reshape(-1, COLUMNS), first


def python_memory() -> dict[str, int]:
    """Return the MiB of the largest Python process that an executor has, as the system calls them."""
    found = [{"VmRSS": 0}]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"pyspark.daemon" in (process / "cmdline").read_bytes():
                lines = (process / "status").read_text().splitlines()
                told = [
                    line.split()
                    for line in lines
                    if line.startswith(("VmRSS", "RssAnon", "RssFile", "VmHWM"))
                ]
                found.append({line[0].rstrip(":"): int(line[1]) >> 10 for line in told})
        except OSError:
            continue
    return max(found, key=lambda own: own.get("VmRSS", 0))


def checkpointed(run: Any) -> dict[str, Any]:
    """Let the executors write their shards, and return what that takes."""
    driver = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory(prefix="sparkdl-rows-") as folder:
        begin = time.perf_counter()
        run.write_shards(folder)
        seconds = time.perf_counter() - begin
        written = sum(file.stat().st_size for file in Path(folder).iterdir())
    return {
        "checkpoint_mb": written >> 20,
        "checkpoint_seconds": round(seconds, 1),
        "checkpoint_resident_mb": python_memory(),
        "checkpoint_driver_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - driver) >> 10,
    }


def case(rows: int, memory: int, args: argparse.Namespace) -> None:
    """Train, write the figures, and leave."""
    from sparkdl import Dataset, Trainer, session
    from sparkdl.nn import EmbeddingVariable
    from sparkdl.train import Checkpoint, EveryIterations, Hook, MaxIteration

    numbers, first = batches(rows, args.skew, args.batch, args.steps)
    label = np.random.default_rng(1).integers(0, 2, len(numbers)).astype(np.float32)
    total = len(numbers) // args.batch
    spark = session.builder(args.master, "row tables", {"spark.executor.memory": "1g"}).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    class Leave(Hook):
        """Ends the process after the last iteration."""

        def on_iteration_begin(self, run: Any) -> None:
            if run.state.iteration == first:
                self.begun = time.perf_counter()

        def on_iteration_end(self, run: Any) -> None:
            if run.state.iteration < total:
                return
            later = [row["seconds"] for row in run.history[first + args.steps // 4 :]]
            # The first iteration of a group waits for its job, and for what the group before leaves.
            told = {
                "rows": rows,
                "memory_mb": memory,
                "ms_per_iteration": round(1000 * statistics.mean(later), 1),
                "ms_median": round(1000 * statistics.median(later), 1),
                "table_rows": int(run.history[-1]["extras"]["table/rows"]),
                "resident_mb": python_memory(),
            }
            if args.checkpoint:
                told |= checkpointed(run)
            told["wall_ms"] = round(1000 * (time.perf_counter() - self.begun) / (total - first), 1)
            if args.full_every:
                told |= {"full_every": args.full_every, "waits": [round(own, 2) for own in waits]}
            Path(args.result).write_text(json.dumps(told))
            spark.stop()
            os._exit(0)

    class Timed(Checkpoint):
        """Notes for how long it keeps training waiting."""

        def on_boundary(self, run: Any, last: bool) -> None:
            begin = time.perf_counter()
            super().on_boundary(run, last)
            if run.state.iteration > first and self.every(run.previous, run.state):
                waits.append(time.perf_counter() - begin)

    waits: list[float] = []
    hooks: list[Hook] = [Leave()]
    if args.full_every:
        when = EveryIterations(args.steps // 5)
        folder = tempfile.mkdtemp(prefix="checkpoints-", dir=Path(args.result).parent)
        hooks.append(Timed(folder, when, keep=1, shared=True, full_every=args.full_every))
    torch.manual_seed(0)
    with Dataset.from_numpy(ids_of(numbers), label, spark=spark) as data:
        del numbers
        Trainer(
            Ranker(EmbeddingVariable(WIDTH, seed=1)),
            loss=nn.BCEWithLogitsLoss(),
            optimizer=OPTIMIZERS,
            batch_size=args.batch,
            shuffle=False,
            end_when=MaxIteration(total + 1),
            iterations_per_job=args.group,
            commit_every=0,
            row_memory=memory << 20 or None,
            hooks=hooks,
            progress=False,
        ).fit(data)


class Bag(nn.Module):
    """The rows of ids in a table of a fixed size."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows."""
        rows: torch.Tensor = self.bag(ids.reshape(-1, 1)).view(*ids.shape, WIDTH)
        return rows


def plain_torch(rows: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measure the same model in one process."""
    from sparkdl.nn.embedding import EmbeddingVariable, Noted

    torch.set_num_threads(1)
    numbers, first = batches(rows, args.skew, args.batch, args.steps)
    model, loss = Ranker(Bag(rows)), nn.BCEWithLogitsLoss()
    table = torch.optim.SparseAdam(list(model.table.parameters()), lr=1e-3)
    head = torch.optim.Adam(model.head.parameters(), lr=1e-3)
    label = torch.randint(0, 2, (args.batch,)).float()
    took = []
    for step in range(first, first + args.steps):
        ids = torch.from_numpy(numbers[step * args.batch : (step + 1) * args.batch])
        begin = time.perf_counter()
        table.zero_grad()
        head.zero_grad()
        loss(model(ids), label).backward()
        table.step()
        head.step()
        took.append(time.perf_counter() - begin)
    took = took[args.steps // 4 :]
    variable = EmbeddingVariable(WIDTH)
    asking, asked = Ranker(variable), []
    with variable.reading(Noted([])), torch.no_grad():
        for _ in range(10):
            begin = time.perf_counter()
            loss(asking(ids), label)
            asked.append(time.perf_counter() - begin)
    figures = {
        "ms_per_iteration": statistics.mean(took),
        "ms_median": statistics.median(took),
        "ids_ms": statistics.median(asked),
    }
    return {"rows": rows, "torch": True, **{name: round(1000 * own, 1) for name, own in figures.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", default="local-cluster[2,1,2048]")
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000])
    parser.add_argument("--memory", type=int, nargs="+", default=[0], help="MiB; 0 for no bound")
    parser.add_argument("--cases", nargs="*", default=[], metavar="ROWS:MIB", help="instead of the two")
    parser.add_argument("--skew", type=float, default=1.05, help="of Zipf's distribution; 0: all alike")
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--steps", type=int, default=120, help="measured iterations")
    parser.add_argument("--group", type=int, help="iterations of a job; by default as many as a fit takes")
    parser.add_argument("--torch", action="store_true", help="measure torch in one process, too")
    parser.add_argument(
        "--checkpoint", action="store_true", help="let the executors write all rows at the end"
    )
    parser.add_argument("--checkpoints", type=int, nargs="*", default=[], metavar="FULL_EVERY")
    parser.add_argument("--full-every", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="where to write the rows")
    args = parser.parse_args()
    if args.result:
        case(args.rows[0], args.memory[0], args)
        return
    found: list[dict[str, Any]] = []
    pairs = [tuple(map(int, pair.split(":"))) for pair in args.cases]
    for rows in args.rows if not pairs else dict(pairs):
        for memory in args.memory if not pairs else [own for first, own in pairs if first == rows]:
            for full_every in (0, *args.checkpoints):
                with tempfile.TemporaryDirectory(prefix="sparkdl-rows-") as folder:
                    command = [sys.executable, __file__, *sys.argv[1:], "--result", f"{folder}/result"]
                    command += ["--rows", str(rows), "--memory", str(memory)]
                    command += ["--full-every", str(full_every)]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    if not Path(folder, "result").exists():
                        raise RuntimeError(done.stdout + done.stderr[-8000:])
                    found.append(json.loads(Path(folder, "result").read_text()))
                print(json.dumps(found[-1]), file=sys.stderr, flush=True)
        if args.torch:
            found.append(plain_torch(rows, args))
    for row in found:
        row["ratio"] = round(row["ms_per_iteration"] / found[0]["ms_per_iteration"], 2)
        print(json.dumps(row))
    keeping.write(args.json, found)


if __name__ == "__main__":
    main()
