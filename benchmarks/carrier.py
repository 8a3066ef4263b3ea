"""Measure what carries messages between tasks: this project's mesh over sockets, against gloo. No Spark.

    python benchmarks/carrier.py --json carrier.json
    python benchmarks/carrier.py --peers 2 --bytes 100 1e6 --seconds 1

Each carrier does the same work in the same processes, in turn, of one thread each:

    gloo    torch.distributed
    tcp     Mesh over the endpoint's authenticated TCP connections
    unix    Mesh over AF_UNIX stream sockets, for comparison: peers of one machine only

Patterns, for a vector of ``bytes`` in each process:

    gather  everybody gets everybody's vector (gloo: all_gather), as in the replicated plan
    sync    everybody gets the sum (reduce-scatter, sums in source order, all-gather), as in the sharded plan;
            gloo does what DDP does, an all-reduce
    plain   the same as two exchanges of gloo's: all_to_all_single, sums in source order, all_gather

``ms`` is the median of the second half of the time, of the slowest process. ``MB_per_s`` is what a process
sends in that time. ``cpu_ms`` is processor time of a process per operation: with more peers than cores that
is what foretells machines of their own. ``time_over_gloo`` is below 1 where a carrier is faster than gloo's
own way (``gather`` or ``sync``) with as many peers and bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import secrets
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from typing import Any

import keeping
import numpy as np
import torch
import torch.distributed as dist

from sparkdl.allreduce.transport.direct.connection import Connection
from sparkdl.allreduce.transport.direct.endpoint import Endpoint
from sparkdl.allreduce.transport.direct.mesh import Mesh

CARRIERS = ("gloo", "tcp", "unix")
OPERATIONS: Mapping[str, Sequence[str]] = {
    "gather": CARRIERS,
    "sync": CARRIERS,
    "plain": ("gloo",),
}
"""Which carriers do what."""

_PATIENCE = 600.0  # a machine may be busy
_LEAST, _MOST = 4, 3000
_COPIES: Mapping[str, Callable[[int], int]] = {
    "gather": lambda peers: peers + 1,
    "sync": lambda peers: 4,
    "plain": lambda peers: 4,
}
"""Vectors that a process holds."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure this project's mesh against gloo.")
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4, 8])
    sizes = [100, 1e4, 1e5, 1e6, 1e7, 4e7, 2e8]
    parser.add_argument("--bytes", type=float, nargs="+", default=sizes, help="of a process's vector")
    parser.add_argument("--patterns", nargs="+", choices=tuple(OPERATIONS), default=list(OPERATIONS))
    parser.add_argument(
        "--carriers", nargs="+", choices=("gloo", "tcp", "unix"), default=["gloo", "tcp", "unix"]
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each figure (2)")
    parser.add_argument(
        "--most-bytes", type=float, default=4e9, help="of vectors in all processes; what has more is left out"
    )
    parser.add_argument("--json", help="where to write the rows, after every figure")
    args = parser.parse_args()
    if min(args.peers) < 2 or min(args.bytes) < 4 or args.seconds <= 0:
        parser.error("--peers must be at least 2, --bytes at least 4, --seconds positive")
    return args


# -- a process -------------------------------------------------------------------------------------


class Meshed:
    """This project's carrier: exchanges with all peers.

    Args:
        rank: number of this process.
        links: connection to each other one.
    """

    def __init__(self, rank: int, links: Mapping[int, Connection]) -> None:
        self._rank, self._peers, self._number = rank, len(links) + 1, 0
        for link in links.values():
            link.limit = 1 << 40
        self._mesh = Mesh(1, [rank], links, _PATIENCE)

    def gather(self, vector: np.ndarray[Any, Any]) -> list[Any]:
        """Return everybody's vector."""
        return self._exchange(dict.fromkeys(range(self._peers), vector), vector)

    def sync(self, vector: np.ndarray[Any, Any]) -> Any:
        """Return the sum of everybody's vector, added in the order of ranks."""
        cuts = np.array_split(vector, self._peers)
        found = self._exchange(dict(enumerate(cuts)), cuts[self._rank])
        own = add_up(found)
        return np.concatenate(self._exchange(dict.fromkeys(range(self._peers), own), own))

    def _exchange(self, sends: Mapping[int, Any], mine: Any) -> list[Any]:
        own = self._rank
        others = [(own, to, [data.view(np.uint8).data]) for to, data in sends.items() if to != own]
        found = self._mesh.exchange(self._number, others)[own]
        arrived = [np.frombuffer(data, np.float32) for data in found]
        self._number += 1
        arrived.insert(own, mine)
        return arrived


class Gloo:
    """Gloo's carrier."""

    def __init__(self) -> None:
        self._peers = dist.get_world_size()

    def gather(self, vector: np.ndarray[Any, Any]) -> list[Any]:
        """Return everybody's vector."""
        tensor = torch.from_numpy(vector)
        out = [torch.empty_like(tensor) for _ in range(self._peers)]
        dist.all_gather(out, tensor)
        return [part.numpy() for part in out]

    def sync(self, vector: np.ndarray[Any, Any]) -> Any:
        """Return the sum of everybody's vector."""
        tensor = torch.from_numpy(vector).clone()
        dist.all_reduce(tensor)
        return tensor.numpy()

    def plain(self, vector: np.ndarray[Any, Any]) -> Any:
        """Return the sum of everybody's vector, added in the order of ranks."""
        padding = -len(vector) % self._peers
        tensor = torch.from_numpy(np.pad(vector, (0, padding)) if padding else vector)
        arrived = torch.empty_like(tensor)
        dist.all_to_all_single(arrived, tensor)
        own = torch.from_numpy(add_up(list(arrived.view(self._peers, -1).numpy())))
        out = [torch.empty_like(own) for _ in range(self._peers)]
        dist.all_gather(out, own)
        return torch.cat(out).numpy()[: len(vector)]


def add_up(parts: Sequence[np.ndarray[Any, Any]]) -> Any:
    """Return the sum of arrays, added in their order."""
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


class _Local(socket.socket):
    """An AF_UNIX socket that leaves the options of TCP out."""

    def setsockopt(self, level: int, *args: Any) -> None:
        if level != socket.IPPROTO_TCP:
            super().setsockopt(level, *args)


def work(rank: int, peers: int, store: str, secret: bytes, pairs: Mapping[int, Any], pipe: Pipe) -> None:
    """Do what the other side of the pipe asks for, until it is closed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=peers)
    endpoint = Endpoint(secret, "127.0.0.1")
    try:
        pipe.send(endpoint.peer)
        links = endpoint.meet(1, [rank], peers, pipe.recv(), _PATIENCE)
        local: dict[int, Connection] = {}
        for other, sock in pairs.items():
            sock = _Local(fileno=sock.detach())
            sock.setblocking(False)
            local[other] = Connection(sock, bytes([other]))
        carriers = {"gloo": Gloo(), "tcp": Meshed(rank, links), "unix": Meshed(rank, local)}
        while True:
            carrier, pattern, nbytes, times = pipe.recv()
            pipe.send(measure(getattr(carriers[carrier], pattern), rank, peers, pattern, nbytes, times))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass
    finally:
        endpoint.close()
        dist.destroy_process_group()


def measure(
    operation: Callable[[Any], Any], rank: int, peers: int, pattern: str, nbytes: int, times: int
) -> tuple[list[float], float]:
    """Do something so many times; return the seconds of each, and of processor time per operation."""
    vector = np.full(max(1, nbytes // 4), rank + 1, np.float32)
    found = operation(vector)
    check(found if pattern == "gather" else [found], pattern, peers)
    del found
    seconds: list[float] = []
    dist.barrier()
    busy = time.process_time()
    for _ in range(times):
        begin = time.perf_counter()
        operation(vector)
        seconds.append(time.perf_counter() - begin)
    return seconds, (time.process_time() - busy) / times


def check(found: Sequence[Any], pattern: str, peers: int) -> None:
    """Raise if what has arrived is wrong."""
    wanted = range(1, peers + 1) if pattern == "gather" else [sum(range(1, peers + 1))]
    if [(float(part[0]), float(part[-1])) for part in found] != [(float(n), float(n)) for n in wanted]:
        raise RuntimeError(f"{pattern}: wrong values have arrived")


# -- all processes ---------------------------------------------------------------------------------


@contextmanager
def processes(peers: int) -> Iterator[Callable[..., list[Any]]]:
    """Start processes; yields a function that asks all of them for something, and returns the answers."""
    context = multiprocessing.get_context("spawn")
    pairs: list[dict[int, socket.socket]] = [{} for _ in range(peers)]
    for one in range(peers):
        for other in range(one + 1, peers):
            pairs[one][other], pairs[other][one] = socket.socketpair()
    secret = secrets.token_bytes(32)
    with tempfile.TemporaryDirectory(prefix="sparkdl-carrier-") as folder:
        pipes, started = [], []
        for rank in range(peers):
            pipe, theirs = context.Pipe()
            args = (rank, peers, f"{folder}/store", secret, pairs[rank], theirs)
            process = context.Process(target=work, args=args, daemon=True)
            process.start()
            theirs.close()
            pipes.append(pipe)
            started.append(process)

        def ask(*what: Any) -> list[Any]:
            for pipe in pipes:
                pipe.send(what)
            return [pipe.recv() for pipe in pipes]

        try:
            addresses = [pipe.recv() for pipe in pipes]
            for pipe in pipes:
                pipe.send(addresses)
            for own in pairs:
                for sock in own.values():
                    sock.close()
            yield ask
        finally:
            for pipe in pipes:
                pipe.close()
            for process in started:
                process.join(20)
                with suppress(ValueError):
                    process.kill()


def run(args: argparse.Namespace, rows: list[keeping.Row]) -> None:
    """Measure, and leave a row per carrier, pattern, number of peers and bytes in ``rows``."""
    for peers in args.peers:
        with processes(peers) as ask:
            for nbytes in sorted(int(size) for size in args.bytes):
                gloo: dict[str, float] = {}
                for pattern in args.patterns:
                    held = peers * _COPIES[pattern](peers) * nbytes
                    for carrier in OPERATIONS[pattern]:
                        if carrier not in args.carriers or held > args.most_bytes:
                            continue
                        row = figure(ask, carrier, pattern, peers, nbytes, args.seconds)
                        if carrier == "gloo" and pattern != "plain":
                            gloo[pattern] = row["ms"]
                        base = gloo.get("sync" if pattern == "plain" else pattern)
                        row["time_over_gloo"] = round(row["ms"] / base, 3) if base else None
                        print(json.dumps(row), file=sys.stderr, flush=True)
                        rows.append(row)
                        keeping.write(args.json, rows)


def figure(
    ask: Callable[..., list[Any]], carrier: str, pattern: str, peers: int, nbytes: int, seconds: float
) -> keeping.Row:
    """Measure one carrier with one pattern."""
    first = max(statistics.median(took) for took, _ in ask(carrier, pattern, nbytes, 3))
    times = max(_LEAST, min(_MOST, int(seconds / max(first, 1e-6))))
    answers = ask(carrier, pattern, nbytes, times)
    took = max(statistics.median(each[len(each) // 2 :]) for each, _ in answers)
    # A reduce-scatter and an all-gather send a vector but for the own share, twice.
    sent = (peers - 1) * nbytes if pattern == "gather" else 2 * (peers - 1) / peers * nbytes
    return {
        "carrier": carrier,
        "pattern": pattern,
        "peers": peers,
        "bytes": nbytes,
        "ms": round(1e3 * took, 4),
        "MB_per_s": round(sent / took / 1e6, 1),
        "cpu_ms": round(1e3 * statistics.fmean(cpu for _, cpu in answers), 4),
        "times": times,
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def main() -> int:
    args, rows = arguments(), list[keeping.Row]()
    with keeping.cut_off() as causes, contextlib.redirect_stdout(sys.stderr):
        run(args, rows)
    for row in rows:
        print(json.dumps(row))
    return 1 if causes else 0


if __name__ == "__main__":
    sys.exit(main())
