"""What a row of an embedding variable costs its owner, by size and skew of the table; needs no Spark.

    python benchmarks/tiers.py cost --json cost.json --picture cost.png
    python benchmarks/tiers.py torch
    python benchmarks/tiers.py disk
    python benchmarks/tiers.py checkpoint --rows 1000000 10000000
    python benchmarks/tiers.py merge --rows 1000000 10000000

One owner does what it does in a training: it counts the ids of a batch, sends their rows, and updates them
with ``SparseAdam``, as in ``sparkdl/allreduce/plans/owned_rows.py``. Ids have Zipf's distribution.

``cost``: the table is some times as large as the bound for memory, each case in a process of its own.
``memory`` is the most that the process has had after a step, over the bound, since the table was empty;
``file`` is the part of it that are pages of files; ``peak`` is the most at any time. ``hot`` is the share of
the rows of a batch that are in memory. ``index`` are bytes for each id.

``torch``: rows looked up and updated in a second, compared with ``EmbeddingBag(sparse=True)`` and
``SparseAdam``, both with one thread, on a table that fits in memory. The two take turns.

``disk``: reading records of the file that are on the disk alone, one at a time, and asking for many at once.
``checkpoint``: a task that writes the file of a shard with ``Checkpoint(shared=True)``, in a process of its
own; ``memory_mb`` is the most that the process has had at any time since it began, ``file_mb`` what it wrote.
``merge``: what the driver does for a checkpoint with all rows: the file of a shard is made of one that has
them and of seven with a hundredth of them each, in a thread. ``ms_per_step`` is what a step of an owner takes
in the same process before, ``beside`` meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import keeping
import numpy as np
import torch
from torch import nn

from sparkdl.access.in_pieces import InPieces
from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import OwnedRows, RowGradients
from sparkdl.allreduce.plan import Directives
from sparkdl.allreduce.shard_files import Streamed, WriteShard, name_of, parts_of, write_whole
from sparkdl.allreduce.update.table import beginning, update_table
from sparkdl.compute.lookup import RowGradient
from sparkdl.keyed.entries import ROW, Entries
from sparkdl.keyed.memory import RowMemory
from sparkdl.keyed.mix import mix
from sparkdl.keyed.table import KeyedTable, TableRule
from sparkdl.optim.shard.optimizer import UpdateRule
from sparkdl.optim.spec import optimizer_spec
from sparkdl.train.checkpoint.mark import STATE, WEIGHTS, Mark, sealed
from sparkdl.train.checkpoint.merging import merge
from sparkdl.wire import arrays, frame
from sparkdl.wire.pieces import cut

WIDTH, RECORD = 16, 3 * 16 * 4
"""Elements of a row; bytes of a row with the state of Adam."""
Ids = np.ndarray[Any, np.dtype[np.int64]]


def zipf(random: np.random.Generator, rows: int, skew: float, count: int) -> Ids:
    """Return numbers below ``rows``, of which small ones are frequent; all equally likely if skew is 0."""
    uniform = random.random(count)
    if not skew:
        return (uniform * rows).astype(np.int64)
    end, power = rows + 1.0, 1 - skew
    drawn = end**uniform if power == 0 else ((end**power - 1) * uniform + 1) ** (1 / power)
    return np.minimum(drawn.astype(np.int64), rows) - 1


def ids_of(numbers: Ids) -> Ids:
    """Return an id for each number; ids that are used equally often are not neighbours."""
    return mix(numbers.view(np.uint64)).view(np.int64)


class Owner:
    """An owner of a table, which trains.

    Args:
        memory: bounds its memory.
    """

    def __init__(self, memory: RowMemory | None) -> None:
        layer = nn.Linear(1, 1, bias=False)
        spec, _ = optimizer_spec(partial(torch.optim.SparseAdam, lr=0.01), layer, ())
        self.rule = UpdateRule(optimizer=spec)
        self.table = KeyedTable(TableRule(WIDTH, "float32", 0, 0.05), memory)
        self.iteration = 0

    def step(self, asked: Ids) -> int:
        """Look the rows of a batch up, and update them; return how many there are."""
        table = self.table
        ids, counts = np.unique(asked, return_counts=True)
        table.count(ids, counts, self.iteration, beginning(self.rule, 0))
        _, rows = table.look_up(ids)
        gradients = [RowGradients(0, 1.0, {"table": RowGradient(ids, rows)})]
        update_table(table, "table", 0, self.rule, gradients, Directives(), self.iteration)
        self.iteration += 1
        return len(ids)

    def fill(self, rows: int, batch: int) -> None:
        """Train once with each row, in no order of how often they will be used."""
        numbers = np.random.default_rng(1).permutation(rows)
        for part in np.array_split(numbers, -(-rows // batch)):
            self.step(ids_of(part))


def memory_of(*names: str) -> int:
    """Return bytes of this process's memory, as the system calls them."""
    with open("/proc/self/status") as told:
        lines = [line.split() for line in told]
    return sum(int(line[1]) << 10 for line in lines if line[0].rstrip(":") in names)


def case(times: float, skew: float, bound: int, batch: int, steps: int) -> dict[str, Any]:
    """Measure a table that is so many times as large as the bound."""
    random = np.random.default_rng(0)
    rows = int(times * bound / RECORD)
    with tempfile.TemporaryDirectory(prefix="sparkdl-tiers-") as folder:
        warm = Owner(None)
        for _ in range(3):
            warm.step(np.arange(batch))
        del warm
        before, files, most = memory_of("VmRSS"), memory_of("RssFile"), (0, 0)
        shared = RowMemory(bound, [folder]) if times else None
        owner = Owner(shared)
        owner.fill(rows or int(bound / RECORD / 2), batch // 4)  # a batch meets some ids often
        rows = len(owner.table)
        took: list[float] = []
        found: list[int] = []
        hot: list[float] = []
        for step in range(steps):
            ids = ids_of(zipf(random, rows, skew, batch))
            if shared is not None:
                store: Any = owner.table._store
                hot.append(float(store.is_held(store.find(np.unique(ids))).mean()))
            begin = time.perf_counter()
            count = owner.step(ids)
            if step >= steps // 3:
                took.append(time.perf_counter() - begin)
                found.append(count)
            most = max(most, (memory_of("VmRSS") - before, memory_of("RssFile") - files))
        peak = memory_of("VmHWM") - before
        index = 5 * len(store._index._numbers) + 8 * len(store._where.values) if shared is not None else 0
    seconds, unique = statistics.median(took), statistics.median(found)
    return {
        "times": times,
        "skew": skew,
        "rows": rows,
        "unique": int(unique),
        "ms_per_step": round(1000 * seconds, 2),
        "us_per_row": round(1e6 * seconds / unique, 3),
        "hot": round(statistics.mean(hot[-5:]), 3) if hot else None,
        "memory": round(most[0] / bound, 2),
        "file": round(most[1] / bound, 2),
        "peak": round(peak / bound, 2),
        "index": round(index / rows, 1),
    }


def cost(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure tables of all sizes and skews, each in a process of its own."""
    found = []
    for skew in args.skews:
        for times in args.times:
            command = [sys.executable, __file__, "cost", "--case", str(times), str(skew)]
            for name in ("bound", "batch", "steps"):
                command += [f"--{name}", str(getattr(args, name))]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout))
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def draw(rows: list[dict[str, Any]], target: str) -> None:
    """Draw the cost of a row by size of the table, a line for each skew."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    panels = figure.subplots(1, 2)
    for skew in dict.fromkeys(row["skew"] for row in rows):
        own = [row for row in rows if row["skew"] == skew and row["times"]]
        for panel, name in zip(panels, ("us_per_row", "hot"), strict=True):
            panel.plot([row["times"] for row in own], [row[name] for row in own], "o-", label=f"Zipf {skew}")
    for panel, name in zip(panels, ("microseconds for a row", "share of rows in memory"), strict=True):
        panel.set_xscale("log", base=2)
        panel.set_xlabel("table / bound for memory")
        panel.set_ylabel(name)
        panel.set_ylim(bottom=0)
    panels[0].legend()
    figure.savefig(target)


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare with torch on tables that fit in memory."""
    torch.set_num_threads(1)
    found = []
    for rows in args.rows:
        random = np.random.default_rng(0)
        bag = nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True)
        optimizer = torch.optim.SparseAdam(list(bag.parameters()), lr=0.01)
        owner = Owner(None)
        owner.fill(rows, args.batch)
        rates: dict[str, list[float]] = {"torch": [], "owner": []}
        for _ in range(args.steps):
            numbers = zipf(random, rows, args.skew, args.batch)
            begin = time.perf_counter()
            optimizer.zero_grad()
            bag(torch.from_numpy(numbers).view(-1, 1)).sum().backward()
            optimizer.step()
            middle = time.perf_counter()
            owner.step(ids_of(numbers))
            end = time.perf_counter()
            rates["torch"].append(args.batch / (middle - begin))
            rates["owner"].append(args.batch / (end - middle))
        ours, theirs = (statistics.median(rates[name][args.steps // 3 :]) for name in ("owner", "torch"))
        found.append(
            {"rows": rows, "torch": round(theirs), "owner": round(ours), "ratio": round(ours / theirs, 2)}
        )
    return found


def disk(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Read records that are on the disk alone."""
    found = []
    for name, slow, part in (("one at a time", 1e9, 16), ("many at once", 0.0, 1)):
        arrays._SLOW_SECONDS = slow
        with tempfile.TemporaryDirectory(prefix="sparkdl-tiers-", dir=args.folder) as folder:
            file = RowMemory(args.bound, [folder]).records(RECORD + 16)
            count = args.bound * 4 // file.nbytes
            file.grow(count)
            for begin in range(0, count, 1 << 17):
                own = np.arange(begin, min(count, begin + (1 << 17)))
                file.write(own, np.ones((len(own), file.nbytes), np.uint8))
            os.fsync(file._file)
            os.posix_fadvise(file._file, 0, 0, os.POSIX_FADV_DONTNEED)
            wanted = np.random.default_rng(0).permutation(count)[: args.batch // part]
            begin_at = time.perf_counter()
            file.read(wanted)
            seconds = time.perf_counter() - begin_at
            found.append({"reads": name, "records_per_second": round(len(wanted) / seconds)})
    return found


def write_shard(rows: int, folder: str) -> dict[str, Any]:
    """Write a shard's file as a task does, from pieces that come one after the other."""
    shared = RowMemory(64 << 20, [folder])
    columns = {name: shared.array(np.float32, WIDTH) for name in (ROW, "exp_avg", "exp_avg_sq")}
    ids, numbers = shared.array(np.int64), shared.array(np.int64)
    for array in (ids, numbers, *columns.values()):
        array.grow(rows)
        for begin in range(0, rows, 1 << 17):
            array.values[begin : begin + (1 << 17)] = 1
            shared.settle()
    kept = {name: array.values[:rows] for name, array in columns.items()}
    own = [array.values[:rows] for array in (ids, numbers, numbers)]
    entries = Entries(*own, np.ones(rows, np.bool_), kept)
    pieces = map(frame.join, cut(0, [messages.encode(OwnedRows({"table": entries}))]))
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before, begin_at = memory_of("VmRSS"), time.perf_counter()
    list(InPieces(WriteShard(folder, 1), token=False, keyed=False, in_files=True)(0, pieces))
    seconds = time.perf_counter() - begin_at
    written = os.path.getsize(Path(folder, name_of(0, 1)))
    return {
        "rows": rows,
        "file_mb": written >> 20,
        "memory_mb": (memory_of("VmHWM") - before) >> 20,
        "seconds": round(seconds, 1),
    }


def checkpoint(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Write the files of shards, each in a process of its own."""
    found = []
    for rows in args.rows:
        with tempfile.TemporaryDirectory(prefix="sparkdl-tiers-", dir=args.folder) as folder:
            command = [sys.executable, __file__, args.part, "--shard", str(rows), "--folder", folder]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout))
    return found


def rows_of(first: int, count: int, since: int, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the message with some rows, made while it is written."""

    def blocks(of: Any) -> Iterator[Any]:
        for begin in range(0, count, 1 << 17):
            yield of(np.arange(begin, min(count, begin + (1 << 17))))

    def streamed(dtype: Any, shape: tuple[int, ...], of: Any) -> Streamed:
        return Streamed(np.dtype(dtype), (count, *shape), lambda: blocks(of))

    known = {
        "ids": streamed(np.int64, (), lambda at: ids_of(first + at * step)),
        "counts": streamed(np.int64, (), np.ones_like),
        "last": streamed(np.int64, (), lambda at: np.full(len(at), since)),
        "admitted": streamed(np.bool_, (), lambda at: np.ones(len(at), np.bool_)),
        "gone": np.empty(0, np.int64),
        "gone_at": np.empty(0, np.int64),
    }
    for name in (ROW, "exp_avg", "exp_avg_sq"):
        known[f"column.{name}"] = streamed(
            np.float32, (WIDTH,), lambda at: np.full((len(at), WIDTH), since, np.float32)
        )
    told = {"scalars": {}, "since": since, "logged": 0}
    meta = {"kind": "rows", "tables": ["table"], "values": [told], "figures": {}}
    return meta, {f"0.{name}": values for name, values in known.items()}


def merge_shard(rows: int, folder: str, steps: int) -> dict[str, Any]:
    """Make a shard's file with all rows, of one that has them and of others with changes."""
    base: dict[str, Any] | None = None
    for number in range(8):
        path = Path(folder, f"iteration-{number + 1:08d}")
        path.mkdir()
        made = rows_of(number * 7, rows // 100, number, 100) if number else rows_of(0, rows, 0, 1)
        digests = {name_of(0, 1): write_whole(str(path / name_of(0, 1)), parts_of([made]))}
        if number < 7:
            digests[WEIGHTS] = write_whole(str(path / WEIGHTS), [b""])
            mark = {"format": 3, "state": {}, "scores": {}, "sha256": digests}
            data = sealed(mark if base is None else {**mark, "base": base})
            (path / STATE).write_bytes(data)
            base = {"iteration": number + 1, "seal": Mark.parse(str(path), data).seal}
    os.sync()
    random, owner = np.random.default_rng(0), Owner(None)
    owner.fill(200_000, 16_384)

    def timed() -> float:
        ids = ids_of(zipf(random, 200_000, 1.05, 16_384))
        begin = time.perf_counter()
        owner.step(ids)
        return 1000 * (time.perf_counter() - begin)

    alone = [timed() for _ in range(steps)]
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before, begin_at, below = (
        memory_of("VmRSS"),
        time.perf_counter(),
        str(path.with_name("iteration-00000007")),
    )
    with ThreadPoolExecutor(1) as thread:
        whole = thread.submit(
            merge, below, str(path), digests, lambda name, parts: write_whole(str(path / name), parts)
        )
        beside = [timed()]
        while not whole.done():
            beside.append(timed())
        whole.result()
    seconds = time.perf_counter() - begin_at
    return {
        "rows": rows,
        "file_mb": os.path.getsize(path / name_of(0, 1)) >> 20,
        "memory_mb": (memory_of("VmHWM") - before) >> 20,
        "seconds": round(seconds, 1),
        "ms_per_step": round(statistics.median(alone), 2),
        "beside": round(statistics.median(beside), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("cost", "torch", "disk", "checkpoint", "merge"))
    parser.add_argument("--bound", type=int, default=128 << 20, help="bytes of memory")
    parser.add_argument("--batch", type=int, default=65_536, help="ids of a batch of an owner")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--times", type=float, nargs="+", default=[0, 0.5, 1, 2, 4, 8], help="table / bound; 0: no bound"
    )
    parser.add_argument("--skews", type=float, nargs="+", default=[0.9, 1.0, 1.1, 1.2])
    parser.add_argument("--skew", type=float, default=1.05, help="in the comparison with torch")
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 2_000_000], help="likewise")
    parser.add_argument("--folder", help="for files; the system's if not given")
    parser.add_argument("--case", type=float, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--shard", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", help="where to write the rows")
    parser.add_argument("--picture", help="where to draw the cost")
    args = parser.parse_args()
    if args.case:
        torch.set_num_threads(1)
        print(json.dumps(case(*args.case, args.bound, args.batch, args.steps)))
        return
    if args.shard:
        torch.set_num_threads(1)
        measured = (
            merge_shard(args.shard, args.folder, args.steps)
            if args.part == "merge"
            else write_shard(args.shard, args.folder)
        )
        print(json.dumps(measured))
        return
    parts = {"cost": cost, "torch": compare, "disk": disk, "checkpoint": checkpoint, "merge": checkpoint}
    rows = parts[args.part](args)
    for row in rows:
        print(json.dumps(row))
    keeping.write(args.json, rows)
    if args.picture:
        draw(rows, args.picture)


if __name__ == "__main__":
    main()
