"""Say what a worker's step is made of inside a group that exchanges directly.

    python benchmarks/profile_step.py --works mlp ncf-2048 --json profile.json
    python benchmarks/profile_step.py --works mlp --functions 30

Trains the works of peers.py as peers.py does, with ``transport="direct"``. Each task that runs a whole
group charges its time to what it is doing, by functions of this project and of torch that are wrapped in
the worker: time in a wrapped function that another wrapped one calls is the other one's. ``percent`` is of
the time from a task's first phase to its last, ``ms_per_step`` the mean, ``waiting`` the time in which a
rank waits for bytes of the others (whose work, and whose turn on a shared core, that is). ``other`` is what
no wrapped function did: the plan's own Python. Wrapping costs some 0.5 us per call, which is in the figures
of whoever calls.

``--functions`` profiles by cProfile instead, and prints so many functions by their own time. That costs
more per call than it finds: it says where, the shares say how much.

Tasks write what they have found to a folder of this machine: the master must be ``local`` or
``local-cluster``.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import functools
import importlib
import io
import json
import os
import pstats
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import keeping
from peers import WORKS, After
from workloads import OPTIMIZERS, make

from sparkdl import Dataset, Trainer, session
from sparkdl.allreduce.transport.direct.task import GroupTask

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors cannot import benchmarks

_TRANSPORT = "sparkdl.allreduce.transport.direct"
PARTS: Mapping[str, tuple[str, ...]] = {
    "torch: forward, backward": ("sparkdl.compute.forward_backward:forward_backward",),
    "torch: optimizer": ("torch.optim.sgd:SGD.step", "torch.optim.adam:Adam.step"),
    "update": (
        "sparkdl.allreduce.plans.replicated:update_shard",
        "sparkdl.allreduce.plans.sharded:update_shard",
    ),
    "mean of gradients": ("sparkdl.allreduce.update.combine:weighted_mean",),
    "weights into the module": (
        "sparkdl.nn.flat:FlatModule.load",
        "sparkdl.compute.live_model:LiveModel.apply",
    ),
    "rows": ("sparkdl.data.store.partition:read_rows", "sparkdl.data.sampler:EpochPlace.rows"),
    "batch": ("sparkdl.compute.forward_backward:make_batch", "sparkdl.seeding:seed_task"),
    "gradient out": (
        "sparkdl.nn.flat:FlatModule.on_host",
        "sparkdl.allreduce.messages:Shard.of",
        "sparkdl.allreduce.plan:_rows",
    ),
    "packing": (
        "sparkdl.allreduce.messages:encode",
        "sparkdl.allreduce.messages:decode",
        "sparkdl.allreduce.messages:read",
    ),
    "sockets: send": (f"{_TRANSPORT}.connection:Connection.flush",),
    "sockets: receive": (f"{_TRANSPORT}.connection:Connection.receive",),
    "sockets: exchange": (f"{_TRANSPORT}.mesh:Mesh.exchange",),
    "waiting": (f"{_TRANSPORT}.mesh:Mesh._wait",),
    "own messages": (
        f"{_TRANSPORT}.task:_Mine.send",
        f"{_TRANSPORT}.task:_Mine.read",
        "sparkdl.compute.local_store:LocalStore.forget_all",
    ),
    "reports": (
        "sparkdl.allreduce.plan:report_of",
        "sparkdl.allreduce.plans.replicated:combine_reports",
        "sparkdl.allreduce.plans.sharded:combine_reports",
        "sparkdl.compute.stopwatch:Stopwatch.facts",
    ),
    "checks": (
        "sparkdl.compute.forward_backward:ForwardBackward._check",
        "sparkdl.compute.forward_backward:changed_buffers",
        "sparkdl.data.store.manifest:Manifest.has_other_values",
        "sparkdl.allreduce.update.combine:Gradients.prepare",
        "sparkdl.allreduce.update.combine:checksum",
        "sparkdl.allreduce.update.shard:checksum",
    ),
    "memory": ("sparkdl.compute.worker:Worker.end_task",),
}
"""What is wrapped, by what its time counts as; names that a version lacks are left out."""

OTHER = "other"


class Ledger:
    """Charges time to parts: whichever was entered last and not left.

    Attributes:
        seconds: by part.
        calls: by part.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._stack: list[str] = []
        self._since = 0.0

    def enter(self, part: str) -> None:
        """Charge to a part from now on."""
        self._charge()
        self.calls[part] += 1
        self._stack.append(part)

    def leave(self) -> None:
        """Charge to the part before it again."""
        self._charge()
        self._stack.pop()

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now


def wrap(ledger: Ledger, parts: Mapping[str, tuple[str, ...]] = PARTS) -> list[str]:
    """Wrap functions in this process; return the names that were not found."""
    lacking = []
    for part, names in parts.items():
        for name in names:
            module, _, path = name.partition(":")
            try:
                owner: Any = importlib.import_module(module)
                *outer, last = path.split(".")
                for each in outer:
                    owner = getattr(owner, each)
                kept = vars(owner)[last]
            except (ImportError, AttributeError, KeyError):
                lacking.append(name)
                continue
            if isinstance(kept, classmethod | staticmethod):
                setattr(owner, last, type(kept)(_charged(ledger, part, kept.__func__)))
            else:
                setattr(owner, last, _charged(ledger, part, kept))
    return lacking


def _charged(ledger: Ledger, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def charged(*args: Any, **options: Any) -> Any:
        ledger.enter(part)
        try:
            return function(*args, **options)
        finally:
            ledger.leave()

    return charged


# -- in the worker ---------------------------------------------------------------------------------


def ledger_of_process() -> Ledger:
    """Return this process's ledger; functions are wrapped at first use."""
    found: Ledger | None = sys.__dict__.get("_sparkdl_ledger")
    if found is None:
        found = sys.__dict__["_sparkdl_ledger"] = Ledger()
        found.lacking = wrap(found)  # type: ignore[attr-defined]
    return found


class Profiled(GroupTask):
    """A group's task that writes down where its time goes."""

    __slots__ = ()
    folder = ""
    functions = 0

    def _run(self, *args: Any) -> Iterator[Any]:
        """Run all phases."""
        steps = len(self.phases) - 1
        name = f"{self.folder}/{os.getpid()}-{time.time_ns()}"
        if self.functions:
            profile = cProfile.Profile()
            sends = profile.runcall(list, super()._run(*args))
            profile.dump_stats(f"{name}.prof")
            yield from sends
            return
        ledger = ledger_of_process()
        before, calls = dict(ledger.seconds), Counter(ledger.calls)
        ledger.enter(OTHER)
        try:
            sends = list(super()._run(*args))
        finally:
            ledger.leave()
        found = {
            "steps": steps,
            "seconds": {part: s - before.get(part, 0.0) for part, s in ledger.seconds.items()},
            "calls": dict(ledger.calls - calls),
            "lacking": ledger.lacking,  # type: ignore[attr-defined]
        }
        Path(f"{name}.json").write_text(json.dumps(found))
        yield from sends


@contextlib.contextmanager
def profiled(folder: str, functions: int) -> Iterator[None]:
    """Let the groups of the fits in this block be profiled."""
    transport: Any = importlib.import_module(f"{_TRANSPORT}.transport")
    before = transport.GroupTask
    Profiled.folder, Profiled.functions = folder, functions
    transport.GroupTask = Profiled
    try:
        yield
    finally:
        transport.GroupTask = before


# -- the driver ------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Say what a step inside a direct group is made of.")
    parser.add_argument("--master", default="local-cluster[2,1,4096]")
    parser.add_argument("--works", nargs="+", choices=tuple(WORKS), default=["mlp", "ncf-2048"])
    parser.add_argument("--exchange", choices=("replicated", "sharded"), default="replicated")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each work; the first half warms up")
    parser.add_argument("--functions", type=int, default=0, help="profile by cProfile, and print so many")
    parser.add_argument("--json", help="where to write the rows, after every work")
    args = parser.parse_args()
    if args.seconds <= 0 or args.functions < 0:
        parser.error("--seconds must be positive, --functions at least 0")
    return args


def run(args: argparse.Namespace, rows: list[keeping.Row], texts: list[str]) -> None:
    """Profile, and leave a row per work and part in ``rows``, or a table of functions in ``texts``."""
    spark = session.builder(args.master, "profile step", {"spark.driver.memory": "4g"}).getOrCreate()
    try:
        for name in args.works:
            model, batch = WORKS[name]
            work = make(model, batch, None)
            with (
                tempfile.TemporaryDirectory(prefix="sparkdl-profile-") as folder,
                Dataset.from_numpy(work.features, work.label, spark=spark) as data,
            ):
                with profiled(folder, args.functions):
                    Trainer(
                        work.module,
                        loss=work.loss,
                        optimizer=OPTIMIZERS[work.optimizer],
                        batch_size=batch,
                        end_when=After(args.seconds),
                        progress=False,
                        exchange=args.exchange,
                        transport="direct",
                    ).fit(data)
                if args.functions:
                    texts.append(f"{name}\n{functions(Path(folder), args.functions)}")
                else:
                    rows += shares(name, args.exchange, Path(folder))
                    keeping.write(args.json, rows)
    finally:
        spark.stop()


def shares(work: str, exchange: str, folder: Path) -> list[keeping.Row]:
    """Return a row per part, of the later half of the groups' files."""
    files = sorted(folder.glob("*.json"), key=lambda path: int(path.stem.partition("-")[2]))
    found = [json.loads(path.read_text()) for path in files[len(files) // 2 :]]
    steps = sum(each["steps"] for each in found)
    if not steps:
        raise RuntimeError(f"{work}: no group was exchanged directly")
    seconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for each in found:
        seconds.update(each["seconds"])
        calls.update(each["calls"])
    whole = sum(seconds.values())
    if found[0]["lacking"]:
        print(f"not found, so not told apart: {', '.join(found[0]['lacking'])}", file=sys.stderr)
    torch = sum(s for part, s in seconds.items() if part.startswith("torch"))
    away = whole - seconds["waiting"]
    rows = [
        {
            "work": work,
            "exchange": exchange,
            "part": part,
            "ms_per_step": round(1e3 * s / steps, 4),
            "percent": round(100 * s / whole, 2),
            "percent_without_waiting": None if part == "waiting" else round(100 * s / away, 2),
            "calls_per_step": round(calls[part] / steps, 2),
        }
        for part, s in seconds.most_common()
    ]
    sums = {"torch in all": torch, "step": whole}
    for part, s in sums.items():
        rows.append(
            {
                "work": work,
                "exchange": exchange,
                "part": part,
                "ms_per_step": round(1e3 * s / steps, 4),
                "percent": round(100 * s / whole, 2),
                "percent_without_waiting": round(100 * s / away, 2) if part != "step" else None,
                "calls_per_step": None,
            }
        )
    return rows


def functions(folder: Path, count: int) -> str:
    """Return the functions with the most time of their own, over the later half of the groups' files."""
    files = sorted(folder.glob("*.prof"), key=lambda path: int(path.stem.partition("-")[2]))
    chosen = [str(path) for path in files[len(files) // 2 :]]
    if not chosen:
        return "no group was exchanged directly"
    out = io.StringIO()
    pstats.Stats(*chosen, stream=out).sort_stats("tottime").print_stats(count)
    return out.getvalue()


def show(rows: list[keeping.Row]) -> None:
    """Print the table."""
    if rows:
        print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join("" if value is None else str(value) for value in row.values()) + " |")


def main() -> int:
    args, rows, texts = arguments(), list[keeping.Row](), list[str]()
    with keeping.cut_off() as causes, contextlib.redirect_stdout(sys.stderr):
        run(args, rows, texts)
    show(rows)
    for text in texts:
        print(text)
    return 1 if causes else 0


if __name__ == "__main__":
    sys.exit(main())
