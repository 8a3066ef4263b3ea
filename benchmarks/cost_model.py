"""Foretell the sync on 8 to 1,024 executors from what scale.py and carrier.py have measured.

    python benchmarks/cost_model.py --scale scale.json --carrier carrier.json --json model.json

What an exchange costs is ``sparkdl/train/planning/costs.py``, which ``sparkdl plan`` uses, too.

The **driver's** part is fitted to the rows of scale.py: processor time of its JVM and its Python is a sum
over jobs, tasks, steps, and reports (one of each rank in each step), by relative error, with no negative
coefficient. It is assumed that the driver does one thing after the other, and nothing else happens
meanwhile.

The part of the **exchange** is that of the sharded plan: each task sends its gradient but for its own
shard, and receives as much; then the same with new weights. A byte takes what the network takes or what the
processor takes for it, if that is more; a message takes the processor time that carrier.py has measured per
peer and ``--packing``, and an exchange the network's latency. Each owner updates its shard (Adam);
everybody copies the weights. By shuffles a byte takes what ``docs/performance.md`` found (3.2 ns).

Sync is what a step takes beyond ``--compute`` seconds of forward and backward. A group has as many steps as
fit into the time that the plan wants (``--group``), at least one, at whose end it persists. What lies
beyond the number of executors that scale.py ran, and all that is about a network, is **extrapolated**; such
rows say so (``*``).

Beside it are the connections of an all-to-all exchange, and from how many peers something else would pay.
An all-to-all reduce-scatter is optimal in bytes: nobody sends less than the vector but for its own share.
What grows is the number of messages: each peer sends n - 1 of them, of 1 / n of the vector, and twice. A
ring sends as many messages, one after the other, so that it adds their latency: it never pays here. Two
levels (rows and columns of a square) send 2 * (sqrt(n) - 1) messages in each direction with the same bytes,
but add partial sums: the order of additions, and so the bits, would depend on the grid. So all-to-all stays
until the time of its messages, 2 * (n - 1) times the overhead of one, is more than a tenth of what its
bytes take, **and** more than a hundredth of the compute: the table says from how many peers each of the two
holds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keeping
import numpy as np
from sync import MODELS, least_squares, table

from sparkdl.allreduce.plan import steps_of_group
from sparkdl.allreduce.plans.sharded import group_seconds
from sparkdl.train.planning import costs
from sparkdl.train.planning.costs import exchange_seconds, moves

EXECUTORS = (8, 16, 32, 64, 128, 256, 512, 1024)
TERMS = ("job", "task", "step", "report")
_FLOAT = 4
_KEPT = 3  # weights, and two vectors of Adam's, of a shard


@dataclass(frozen=True, slots=True)
class Driver(costs.Driver):
    """The driver's part, as it was fitted."""

    error: float = 0.0  # the largest relative error of the fit
    executors: int = 0  # the most executors that were measured


@dataclass(frozen=True, slots=True)
class Carrier(costs.Carrier):
    """The exchange's part."""

    measured: bool = False  # whether that was measured, or is assumed


@dataclass(frozen=True, slots=True)
class Surroundings(costs.Surroundings):
    """Everything around driver and exchange."""

    compute: float = 2.0  # seconds of forward and backward
    group: float | None = None  # seconds of a group; ``None`` for what the sharded plan wants
    update: float = 0.35e-9  # seconds per byte of weights that Adam updates (7 ms for 5 million)
    persist: float = 10e-9  # seconds per byte that Spark keeps at a group's end (10 ms per MB)


def fit_driver(rows: Sequence[Mapping[str, Any]], transport: str) -> Driver | None:
    """Fit the driver's part to the rows of scale.py; ``None`` if there are too few."""
    rows = [row for row in rows if row.get("transport") == transport and "jobs" in row]
    if len(rows) < 2:
        return None
    sizes = {
        "job": np.array([row["jobs"] for row in rows], float),
        "task": np.array([row["tasks"] for row in rows], float),
        "step": np.array([row["steps"] for row in rows], float),
        "report": np.array([row["steps"] * row["executors"] for row in rows], float),
    }
    per_job = [row["driver_jvm_ms"]["job"] + row["driver_python_ms"]["job"] for row in rows]
    seconds = np.array(per_job) / 1e3 * sizes["job"]
    names = list(TERMS)
    # With one number of steps in a job, or of executors, some terms cannot be told apart.
    found = None
    while names and found is None:
        found = least_squares({name: sizes[name] for name in names}, seconds, seconds)
        names = names[:-1]
    terms = {name: (found or {}).get(name, 0.0) for name in TERMS}
    predicted = sum(terms[name] * sizes[name] for name in TERMS)
    error = float(np.abs(predicted / seconds - 1).max())
    return Driver(**terms, error=error, executors=max(row["executors"] for row in rows))


def fit_carrier(rows: Sequence[Mapping[str, Any]]) -> Carrier:
    """Fit the exchange's part to carrier.py's rows of ``sync`` over TCP: two exchanges, sums in between."""
    rows = [row for row in rows if row["carrier"] == "tcp" and row["pattern"] == "sync"]
    if len({row["peers"] for row in rows}) < 2 or len({row["bytes"] for row in rows}) < 2:
        return Carrier()
    seconds = np.array([row["cpu_ms"] / 1e3 for row in rows])
    peers = np.array([row["peers"] for row in rows], float)
    size = np.array([row["bytes"] for row in rows], float)
    sizes = {
        "exchange": np.full(len(rows), 2.0),
        "message": 2 * (peers - 1),
        "byte": 2 * size * (1 - 1 / peers),
    }
    found = least_squares(sizes, seconds, seconds) or {}
    return Carrier(**{name: found.get(name, 0.0) for name in sizes}, measured=True)


def sync_seconds(
    nbytes: int, ranks: int, transport: str, driver: Driver, carrier: Carrier, around: Surroundings
) -> tuple[float, float]:
    """Return the seconds of a step's sync with the sharded plan, and those of the driver among them."""
    does = moves("sharded", nbytes, ranks)
    own = around.update * nbytes / ranks + around.copy * nbytes
    exchange = exchange_seconds(does, transport, carrier, around)
    each = around.compute + own + exchange
    # A group's fixed cost is shared by its steps; those of shuffles cost a stage each, and one more.
    persist = around.persist * _KEPT * nbytes / ranks
    fixed = 0.0 if around.group else persist + driver.seconds(ranks, 0, 1)
    steps = steps_of_group(around.group or group_seconds(nbytes), each, fixed)
    stages = 1 if transport == "direct" else 2 * steps + 1
    scheduling = driver.seconds(ranks, steps, stages) / steps
    own += persist / steps
    return own + exchange + scheduling, scheduling


def from_peers(nbytes: int, carrier: Carrier, around: Surroundings) -> dict[str, int]:
    """Return from how many peers an all-to-all exchange's messages count."""
    byte = max(carrier.byte, around.sent(math.inf))
    each = carrier.message + around.packing
    of_bytes = 0.1 * nbytes * byte / each + 1
    of_compute = 0.01 * around.compute / (2 * each) + 1
    return {
        "messages_are_10_percent_of_bytes": math.ceil(of_bytes),
        "messages_are_1_percent_of_compute": math.ceil(of_compute),
        "something_else_pays": math.ceil(max(of_bytes, of_compute)),
    }


def surroundings(args: argparse.Namespace, gigabits: float) -> Surroundings:
    """Return what the options say."""
    return Surroundings(
        gigabits / 8 * 1e9, packing=args.packing / 1e6, compute=args.compute, group=args.group
    )


def foretell(drivers: Mapping[str, Driver], carrier: Carrier, args: argparse.Namespace) -> list[keeping.Row]:
    """Return a row per model, network, transport and number of executors."""
    rows = []
    for name, numel in MODELS.items():
        for gigabits in args.network:
            around = surroundings(args, gigabits)
            for transport, driver in drivers.items():
                for ranks in EXECUTORS:
                    sync, scheduling = sync_seconds(_FLOAT * numel, ranks, transport, driver, carrier, around)
                    rows.append(
                        {
                            "model": name,
                            "parameters": numel,
                            "gigabits": gigabits,
                            "transport": transport,
                            "executors": ranks,
                            "sync_seconds": round(sync, 4),
                            "sync_percent": round(100 * sync / around.compute, 2),
                            "driver_percent": round(100 * scheduling / around.compute, 2),
                            "connections": ranks * (ranks - 1) // 2,
                            "connections_per_process": ranks - 1,
                            "driver_extrapolated": ranks > driver.executors,
                            "network_extrapolated": True,
                        }
                    )
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Foretell the sync on larger clusters.")
    parser.add_argument("--scale", required=True, help="what scale.py has written")
    parser.add_argument("--carrier", help="what carrier.py has written; without it overheads are assumed")
    parser.add_argument(
        "--network", type=float, nargs="+", default=[10.0, 25.0], help="Gbit/s of each machine"
    )
    parser.add_argument("--compute", type=float, default=2.0, help="seconds of forward and backward (2)")
    parser.add_argument("--group", type=float, help="seconds of a group, if not what the plan wants")
    parser.add_argument(
        "--packing", type=float, default=50.0, help="us of packing and of reading a message (assumed: 50)"
    )
    parser.add_argument("--json", help="where to write the rows")
    args = parser.parse_args()
    if min(args.compute, 1 if args.group is None else args.group, *args.network) <= 0:
        parser.error("--network, --compute and --group must be positive")
    return args


def show(
    rows: Sequence[keeping.Row], drivers: Mapping[str, Driver], carrier: Carrier, args: argparse.Namespace
) -> None:
    """Print what was fitted and what follows."""
    print("\nThe driver's milliseconds, fitted to scale.py's rows:\n")
    columns = ("transport", "job", "task", "step", "report of a rank", "largest error", "measured up to")
    fitted = []
    for name, driver in drivers.items():
        terms = [f"{1e3 * getattr(driver, term):.3g}" for term in TERMS]
        fitted.append((name, *terms, f"{driver.error:.0%}", driver.executors))
    table(columns, fitted)
    said = "fitted to carrier.py's rows" if carrier.measured else "ASSUMED, not measured"
    costs = f"{1e6 * carrier.message:.3g} us per message, {1e6 * carrier.exchange:.3g} us per exchange"
    print(f"\nThe exchange, {said}: {costs}, {1e9 * carrier.byte:.3g} ns per byte.")
    print(f"Packing, assumed: {args.packing:g} us per message.")
    print(f"\nSync in percent of {args.compute:g} s, the driver's part in brackets.")
    print("* extrapolated beyond the executors that were measured; the network always is.\n")
    lines: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        key = (row["model"], f"{row['gigabits']:g} GbE", row["transport"])
        star = "*" if row["driver_extrapolated"] else ""
        lines.setdefault(key, []).append(f"{row['sync_percent']:.3g} ({row['driver_percent']:.2g}){star}")
    table(
        ("model", "network", "transport", *map(str, EXECUTORS)),
        [(*key, *cells) for key, cells in lines.items()],
    )
    print("\nConnections of an all-to-all exchange, each of two file descriptors:\n")
    own = ["per process", *(str(n - 1) for n in EXECUTORS)]
    whole = ["in all", *(str(n * (n - 1) // 2) for n in EXECUTORS)]
    table(("", *map(str, EXECUTORS)), [own, whole])
    print("\nAll-to-all is enough up to so many peers (extrapolated; two levels would change the bits):\n")
    found = []
    for name, numel in MODELS.items():
        for gigabits in args.network:
            around = surroundings(args, gigabits)
            found.append((name, f"{gigabits:g} GbE", *from_peers(_FLOAT * numel, carrier, around).values()))
    names = ("messages 10 % of bytes", "messages 1 % of compute", "something else pays")
    table(("model", "network", *names), found)


def main() -> int:
    args = arguments()
    measured = json.loads(Path(args.scale).read_text())
    drivers = {name: fit_driver(measured, name) for name in ("shuffle", "direct")}
    known = {name: driver for name, driver in drivers.items() if driver is not None}
    if not known:
        print("too few rows: scale.py --executors 2 4 --groups 5 25 is the least", file=sys.stderr)
        return 1
    carrier = fit_carrier(json.loads(Path(args.carrier).read_text())) if args.carrier else Carrier()
    rows = foretell(known, carrier, args)
    fitted = {name: asdict(driver) for name, driver in known.items()}
    keeping.write(args.json, [{"driver": fitted, "carrier": asdict(carrier)}, *rows])
    show(rows, known, carrier, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
