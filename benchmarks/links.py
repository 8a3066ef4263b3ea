"""Measure steps of direct exchange among hosts whose links have a rate, beside what the cost model says.

    python benchmarks/links.py --json links.json
    python benchmarks/links.py --hosts 2 4 --rates 100mbit --parameters 1e6

Hosts are those of ``tests/support/hosts.py``: network namespaces with a Spark worker of one core each, so
that it takes root and Linux. Each trains one vector by the plan ``sharded``, whose forward pass sleeps; the
driver's own link is not shaped. Per hosts, rate and parameters there are fits with ``k`` and ``2 k`` steps in
a job. A row has of them:

    step_seconds, group_seconds  of one more step, and of a group without steps (medians of groups, warmed up)
    foretold_step_seconds        by ``sparkdl/train/planning/costs.py``; ``error`` is relative to the measured
    plain_seconds                in which plain sockets bring as many bytes from all to all, twice (median);
                                 ``plain_error`` is that of the model with these in place of its bytes
    processor_share              of all cores: what all hosts take in the measured groups of ``2 k`` steps
    first_group_seconds          beyond a later group: workers and connections begin
    connections, *_MB            of one host: open connections of its Python, and its largest memory (PSS)

All processes share this machine's cores: where ``processor_share`` is near 1 the cores are the limit, not
the links, and an error says nothing about the model. What would not fit into memory is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import selectors
import socket
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import keeping
import numpy as np
import psutil
import torch
from scale import SMALL, process_seconds, small_executors, watched
from sync import table
from torch import nn

from sparkdl import Dataset, Trainer, session
from sparkdl.allreduce.transport.base import Group
from sparkdl.train import MaxIteration
from sparkdl.train.planning import costs

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.hosts import Hosts, hosts, unavailable

_BITS = {"mbit": 1e6, "gbit": 1e9}
_SPARE_BYTES = 2 << 30  # that must stay free
_PORT, _PIECE, _PLAIN_ROUNDS = 5555, 256 << 10, 9
_ESTABLISHED = "01"  # in Linux's tables
_WARM = 1  # groups of a fit before the first one counts
_MEASURED = 3  # groups of a fit that count
_GROUP_SECONDS = 5.0  # of the shorter kind
_MOST_STEPS = 10  # of the shorter kind


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure steps among hosts whose links have a rate.")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4, 8, 16, 24, 32])
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit"])
    parser.add_argument("--parameters", type=float, nargs="+", default=[1e6, 7e6, 25.6e6])
    parser.add_argument(
        "--compute", type=float, default=0.5, help="seconds that the forward pass sleeps (0.5)"
    )
    parser.add_argument("--memory", default="512m", help="heap of an executor")
    parser.add_argument("--json", help="where to write the rows, after every figure")
    parser.add_argument("--master", help=argparse.SUPPRESS)  # this is the driver program, on host 0
    parser.add_argument("--outside", default="", help=argparse.SUPPRESS)
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)  # plain sockets, on this host
    args = parser.parse_args()
    if min(args.hosts) < 2 or min(args.parameters) < 1 or args.compute <= 0:
        parser.error("--hosts must be at least 2, --parameters 1, --compute positive")
    if any(rate.lstrip("0123456789") not in _BITS for rate in args.rates):
        parser.error("--rates are whole numbers of mbit or gbit, such as 100mbit")
    return args


def bytes_per_second(rate: str) -> float:
    """Return the bytes per second of a rate such as ``100mbit``."""
    unit = rate.lstrip("0123456789")
    return int(rate.removesuffix(unit)) * _BITS[unit] / 8


def foretold(
    args: argparse.Namespace, numel: int, count: int, rate: str, plain: float | None = None
) -> float:
    """Return the seconds of a step that the cost model says; with what plain sockets take for its bytes."""
    driver, known = costs.Driver(), costs.Surroundings(network=bytes_per_second(rate))
    does = costs.moves("sharded", 4 * numel, count)
    # Plain SGD updates a shard at the speed at which all weights are copied.
    own = known.copy * 4 * numel * (1 + 1 / count)
    sync = costs.exchange_seconds(does, "direct", costs.Carrier(), known) + own
    if plain is not None:
        sync += plain - does.nbytes * known.sent(count)
    return args.compute + sync + driver.step + count * driver.report


# -- the driver program, on host 0 -----------------------------------------------------------------


class Vector(nn.Module):
    """A vector of parameters, each with a gradient, and a forward pass that sleeps."""

    def __init__(self, numel: int, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numel))
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleep, and return predictions that depend on all parameters."""
        time.sleep(self.seconds)
        return x.mean(1, keepdim=True) * self.weight.mean()


@dataclass(slots=True)
class Clock:
    """When groups began, and the processor seconds of the hosts until then.

    Attributes:
        outside: the namespace of networks of processes that are on no host.
        begun: these two, of each group.
        fallen_back: groups that did not go directly, or found somebody lost.
    """

    outside: str
    begun: list[tuple[float, float]] = field(default_factory=list)
    fallen_back: int = 0

    def begin(self, group: Group) -> None:
        """Note the start of a group."""
        self.begun.append((time.perf_counter(), processor_seconds(self.outside)))


def processor_seconds(outside: str) -> float:
    """Return the processor seconds of all hosts so far, and those in which the machine handled packets.

    Args:
        outside: the namespace of networks of processes that are on no host.
    """
    total = psutil.cpu_times().softirq
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.readlink(folder / "ns" / "net") != outside:
                total += process_seconds(folder.name)
    return total


def drive(args: argparse.Namespace) -> None:
    """Run the fits of one number of hosts and one rate; print a line of JSON for each of parameters."""
    (count,), (rate,) = args.hosts, args.rates
    conf = {
        **small_executors(args.memory),
        "spark.executor.extraJavaOptions": f"{SMALL} -Xmn64m",
        "spark.cores.max": str(count),
        "spark.locality.wait": "0s",
    }
    spark = session.builder(args.master, app_name="links", conf=conf).getOrCreate()
    for numel in map(int, args.parameters):
        step = foretold(args, numel, count, rate)
        short = min(_MOST_STEPS, max(1, round(_GROUP_SECONDS / step)))
        found = [fit(spark, numel, count, args, k) for k in (short, 2 * short)]
        (a, first, _), (b, _, share) = found
        row = {"parameters": numel, "steps_per_job": [short, 2 * short]}
        row |= {"step_seconds": round((b - a) / short, 4), "group_seconds": round(2 * a - b, 3)}
        row |= {"first_group_seconds": round(first - a, 2), "processor_share": round(share, 3)}
        print(json.dumps(row), flush=True)
    spark.stop()


def fit(
    spark: Any, numel: int, count: int, args: argparse.Namespace, steps: int
) -> tuple[float, float, float]:
    """Return the seconds of a group, and of the first one, and the share of the processors."""
    rows = np.random.default_rng(0).standard_normal((64 * count, 4), dtype=np.float32)
    clock = Clock(args.outside)
    with (
        Dataset.from_numpy(rows, rows[:, :1].copy(), spark=spark, num_partitions=count) as data,
        watched("direct", clock),
    ):
        Trainer(
            Vector(numel, args.compute),
            loss=nn.MSELoss(),
            optimizer=partial(torch.optim.SGD, lr=1e-3),
            batch_size=2 * count,
            # The last group has nobody begin after it, so it ends the clock alone.
            end_when=MaxIteration(steps * (_WARM + _MEASURED) + 1),
            progress=False,
            exchange="sharded",
            transport="direct",
            iterations_per_job=steps,
            commit_every=0,
        ).fit(data)
    if clock.fallen_back:
        raise RuntimeError(f"{clock.fallen_back} of {len(clock.begun)} groups did not go directly")
    moments = clock.begun
    lasted = [later[0] - sooner[0] for sooner, later in itertools.pairwise(moments)]
    (start, before), (end, after) = moments[_WARM], moments[-1]
    share = (after - before) / (end - start) / (os.cpu_count() or 1)
    return statistics.median(lasted[_WARM:]), lasted[0], share


# -- plain sockets, a process on each host ---------------------------------------------------------


def plain(args: argparse.Namespace) -> None:
    """Send the bytes of an exchange to all other hosts, and receive theirs; print the median seconds."""
    (count,), (numel,) = args.hosts, args.parameters
    nbytes = int(4 * numel / count)
    sockets = meet(args.peer, count)
    for each in sockets:
        each.setblocking(False)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seconds = []
    for _ in range(_PLAIN_ROUNDS):
        begin = time.perf_counter()
        exchange(sockets, bytes(nbytes))
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": statistics.median(seconds)}), flush=True)


def meet(rank: int, count: int) -> list[socket.socket]:
    """Return connections to all other hosts; those with higher numbers connect."""
    server = socket.create_server(("", _PORT), backlog=count)
    found = []
    for other in range(1, rank):
        while True:
            try:
                found.append(socket.create_connection((f"h{other}", _PORT)))
                break
            except OSError:
                time.sleep(0.1)
    return [*found, *(server.accept()[0] for _ in range(count - rank))]


def exchange(sockets: list[socket.socket], data: bytes) -> None:
    """Send the data to each, and receive as much from each, all at once."""
    left = {each: [len(data), len(data)] for each in sockets}  # to be received, to be sent
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            selector.register(each, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while selector.get_map():
            for key, ready in selector.select():
                peer: Any = key.fileobj
                todo = left[peer]
                if ready & selectors.EVENT_READ and todo[0]:
                    todo[0] -= len(peer.recv(min(_PIECE, todo[0])))
                if ready & selectors.EVENT_WRITE and todo[1]:
                    begin = len(data) - todo[1]
                    todo[1] -= peer.send(memoryview(data)[begin : begin + _PIECE])
                wanted = selectors.EVENT_READ * bool(todo[0]) | selectors.EVENT_WRITE * bool(todo[1])
                if wanted:
                    selector.modify(peer, wanted)
                else:
                    selector.unregister(peer)


# -- the hosts -------------------------------------------------------------------------------------


def connections(pid: int) -> int:
    """Return the TCP connections that a process has open, in its own namespace of networks."""
    files = (os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir())
    own = {name[len("socket:[") : -1] for name in files if name.startswith("socket:[")}
    lines = (Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:] for kind in ("tcp", "tcp6"))
    fields = (line.split() for table in lines for line in table)
    return sum(each[3] == _ESTABLISHED and each[9] in own for each in fields)


@dataclass
class Watch:
    """Looks at the processes of a host now and then.

    Attributes:
        made: the hosts.
        host: which one.
        connections: the most connections of its Python.
        python: its Python's largest memory, in bytes.
        jvms: its JVMs' largest memory.
    """

    made: Hosts
    host: int = 1
    connections: int = 0
    python: float = 0.0
    jvms: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look until the end."""
        while not self._ended.wait(2.0):
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                self._look()

    def _look(self) -> None:
        python, jvms, open_now = 0.0, 0.0, 0
        for process in map(psutil.Process, self.made.pids(self.host)):
            used = process.memory_full_info().pss
            if "java" in process.name():
                jvms += used
            elif "python" in process.name():
                python += used
                open_now = max(open_now, connections(process.pid))
        self.python, self.jvms = max(self.python, python), max(self.jvms, jvms)
        self.connections = max(self.connections, open_now)

    @contextlib.contextmanager
    def going(self) -> Any:
        """Look as long as the block lasts."""
        looking = threading.Thread(target=self.run)
        looking.start()
        try:
            yield self
        finally:
            self._ended.set()
            looking.join()


def measure(args: argparse.Namespace, rows: list[keeping.Row]) -> None:
    """Measure, and leave a row per number of hosts, rate and number of parameters in ``rows``."""
    add = partial(keeping.add, args.json, rows)
    sizes = sorted(map(int, args.parameters))
    each = {numel: 600e6 + 24 * numel for numel in sizes}  # bytes of a host, first guesses
    for count in sorted(args.hosts):
        room = psutil.virtual_memory().available - _SPARE_BYTES
        fitting = [numel for numel in sizes if count * each[numel] < room]
        for numel in sizes[len(fitting) :]:
            wanted = f"{count * each[numel] / 1e9:.1f} GB for hosts, {max(room, 0) / 1e9:.1f} GB are free"
            add({"hosts": count, "parameters": numel, "skipped": wanted})
        if not fitting:
            continue
        memory = f"{int(args.memory.removesuffix('m')) + 500}m"
        with (
            tempfile.TemporaryDirectory() as folder,
            hosts(Path(folder), count, memory=memory, daemon_memory="128m") as made,
        ):
            for rate in args.rates:
                for host in range(1, count + 1):
                    made.rate(host, rate)
                for numel in fitting:  # a session each, so that memory is that of one size
                    row = of_size(args, made, rate, numel)
                    each[numel] = 1e6 * (row.get("python_MB", 0) + row.get("jvms_MB", 0)) or each[numel]
                    add(row)


def of_size(args: argparse.Namespace, made: Hosts, rate: str, numel: int) -> keeping.Row:
    """Return the row of so many parameters, among hosts whose links have a rate."""
    given = ["--hosts", str(made.count), "--rates", rate, "--parameters", str(numel)]
    given += ["--compute", str(args.compute), "--memory", args.memory]
    given += ["--outside", os.readlink("/proc/self/ns/net")]
    row: keeping.Row = {"hosts": made.count, "rate": rate, "parameters": numel}
    program = Path(__file__).resolve()
    everybody = range(1, made.count + 1)
    peers = [made.drive(*given, "--peer", str(host), host=host, program=program) for host in everybody]
    bare = 2 * statistics.median(peer.result()["seconds"] for peer in peers)
    with Watch(made).going() as seen:
        try:
            row |= made.drive(*given, program=program).result(seconds=1800)
        except AssertionError as error:  # the other figures count all the same
            return row | {"error": str(error).strip().splitlines()[-1]}
    said = foretold(args, numel, made.count, rate)
    row |= {"foretold_step_seconds": round(said, 4), "error": round(said / row["step_seconds"] - 1, 3)}
    said = foretold(args, numel, made.count, rate, bare)
    row |= {"plain_seconds": round(bare, 4), "plain_error": round(said / row["step_seconds"] - 1, 3)}
    row |= {"connections": seen.connections, "python_MB": round(seen.python / 1e6)}
    return row | {"jvms_MB": round(seen.jvms / 1e6), "load_average": round(os.getloadavg()[0], 2)}


COLUMNS: tuple[str, ...] = (
    "hosts",
    "rate",
    "parameters",
    "step_seconds",
    "foretold_step_seconds",
    "error",
    "plain_error",
)
COLUMNS += ("processor_share", "group_seconds", "first_group_seconds", "connections", "python_MB", "jvms_MB")


def show(rows: list[keeping.Row]) -> None:
    """Print the table."""
    flat = [{**row, "rate": row.get("rate", row.get("skipped"))} for row in rows]
    table(COLUMNS, [[row.get(name) for name in COLUMNS] for row in flat])


def main() -> int:
    args, rows = arguments(), list[keeping.Row]()
    if args.peer:
        plain(args)
        return 0
    if args.master:
        drive(args)
        return 0
    if reason := unavailable():
        print(reason, file=sys.stderr)
        return 1
    with keeping.cut_off() as causes, contextlib.redirect_stdout(sys.stderr):
        measure(args, rows)
    show(rows)
    return 1 if causes else 0


if __name__ == "__main__":
    sys.exit(main())
