"""Measure requests per second and their latency, of ``sparkdl serve`` and of a peer, on the same cores.

    python benchmarks/serving.py --seconds 5 --json serving.json

A classifier of 784 numbers is saved as sparkdl's model and as an MLflow model. Each server runs in a process
of its own, the clients in another one: they keep connections open, and send the next request when they have
the answer. Servers take turns. ``torch`` is a plain loop over the same module with one thread, in batches of
as many rows as a request has: no server can be faster by itself. ``mlflow`` is ``mlflow models serve``, one
worker, the same model in MLflow's flavour.

One JSON line per case: server, format, rows of a request, connections, requests and rows per second, and
milliseconds at the median and the 99th percentile, of the best turn by requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keeping
import numpy as np
import pyarrow as pa
import torch
from torch import nn

from sparkdl.ml import TorchClassificationModel
from sparkdl.ml.persistence.local import save_local
from sparkdl.serve import Predictor
from sparkdl.serve.server.arrow_ipc import MEDIA_TYPE, write_table

FEATURES = 784
JSON = "application/json"


@dataclass(frozen=True)
class Case:
    """A server and what it is asked."""

    server: str
    format: str
    rows: int
    connections: int


@dataclass(frozen=True)
class Result(Case):
    """What a case came to."""

    requests_per_second: float
    rows_per_second: float
    p50_ms: float
    p99_ms: float


CASES = [
    Case("torch", "arrays", 1, 1),
    Case("torch", "arrays", 64, 1),
    *(Case(s, "json", 1, c) for c in (1, 16, 64) for s in ("sparkdl", "mlflow")),
    *(Case(s, "json", 64, 4) for s in ("sparkdl", "mlflow")),
    Case("sparkdl", "arrow", 1, 16),
    Case("sparkdl", "arrow", 64, 4),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure servers.")
    parser.add_argument("--seconds", type=float, default=5, help="of a turn (5)")
    parser.add_argument("--turns", type=int, default=3, help="of each case (3)")
    parser.add_argument("--servers", nargs="+", default=["torch", "sparkdl", "mlflow"])
    parser.add_argument("--json", help="file for all results")
    args = parser.parse_args()
    torch.manual_seed(0)
    layers = nn.Linear(FEATURES, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    example = np.zeros((2, FEATURES), np.float32)
    model = TorchClassificationModel.from_module(nn.Sequential(*layers), example=example)
    best: dict[Case, Result] = {}
    cases = [case for case in CASES if case.server in args.servers]
    with tempfile.TemporaryDirectory() as folder, servers(model, Path(folder), args.servers) as ports:
        for _ in range(args.turns):
            for case in cases:
                result = turn(case, model, ports, args.seconds)
                if case not in best or result.requests_per_second > best[case].requests_per_second:
                    best[case] = result
    for case in cases:
        print(json.dumps(asdict(best[case])))
    meta = {"cores": len(os.sched_getaffinity(0)), "torch": torch.__version__, "features": FEATURES}
    keeping.write(args.json, {**meta, "results": [asdict(best[case]) for case in cases]})


@contextmanager
def servers(model: Any, folder: Path, wanted: list[str]) -> Iterator[dict[str, int]]:
    """Start servers, and give their ports once they answer."""
    save_local(model, folder / "model")
    processes, ports = [], {}
    commands = {"sparkdl": [sys.executable, "-m", "sparkdl", "serve", str(folder / "model"), "--port"]}
    if "mlflow" in wanted:
        import sparkdl.mlflow

        sparkdl.mlflow.save_model(model, folder / "mlflow")
        serve = ["models", "serve", "-m", str(folder / "mlflow"), "--env-manager", "local", "--port"]
        commands["mlflow"] = [sys.executable, "-m", "mlflow", *serve]
    here = str(Path(sys.executable).parent)  # MLflow looks for uvicorn on the path
    environment = {**os.environ, "PATH": os.pathsep.join([here, os.environ["PATH"]])}
    try:
        for name, command in commands.items():
            if name in wanted:
                ports[name] = free_port()
                log = (folder / f"{name}.log").open("w")
                whole = [*command, str(ports[name])]
                processes.append(subprocess.Popen(whole, stdout=log, stderr=log, env=environment))
        for process, (name, port) in zip(processes, ports.items(), strict=True):
            wait_for(port, process, (folder / f"{name}.log"))
        yield ports
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 600
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"a server does not start: {log.read_text()[-1000:]}")


def turn(case: Case, model: Any, ports: dict[str, int], seconds: float) -> Result:
    x = np.random.default_rng(0).random((case.rows, FEATURES)).astype(np.float32)
    if case.server == "torch":
        times = loop(model, x, seconds)
    else:
        request = http_request(case, x)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            times = pool.apply(ask, (ports[case.server], request, case.connections, seconds))
    rate = len(times) / seconds
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    return Result(
        **asdict(case),
        requests_per_second=round(rate, 1),
        rows_per_second=round(rate * case.rows, 1),
        p50_ms=round(float(p50), 2),
        p99_ms=round(float(p99), 2),
    )


def loop(model: Any, x: Any, seconds: float) -> list[float]:
    """Return the time of each batch of a plain loop."""
    predict = Predictor.of(model)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    times: list[float] = []
    until = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < until:
        predict(x)
        times.append(time.perf_counter() - begin)
    torch.set_num_threads(before)
    return times


def http_request(case: Case, x: Any) -> bytes:
    """Return a whole request as bytes."""
    if case.format == "arrow":
        column = pa.array(x.tolist(), pa.list_(pa.float32()))
        kind, body = MEDIA_TYPE, write_table(pa.table({"features": column}))
    else:
        records = [{"features": [round(float(v), 4) for v in row]} for row in x]
        kind = JSON
        body = json.dumps({"rows" if case.server == "sparkdl" else "dataframe_records": records}).encode()
    path = "/predict" if case.server == "sparkdl" else "/invocations"
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


def ask(port: int, request: bytes, connections: int, seconds: float) -> list[float]:
    """Ask from several connections, and return the time of each answer; runs in a process of its own."""

    async def client(until: float, times: list[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (begin := time.perf_counter()) < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            lines = head.lower().split(b"\r\n")
            length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
            await reader.readexactly(length)
            times.append(time.perf_counter() - begin)
        writer.close()

    async def all_clients() -> list[float]:
        warm: list[float] = []
        await asyncio.gather(*(client(time.perf_counter() + 0.5, warm) for _ in range(connections)))
        times: list[float] = []
        until = time.perf_counter() + seconds
        await asyncio.gather(*(client(until, times) for _ in range(connections)))
        return times

    return asyncio.run(all_clients())


if __name__ == "__main__":
    main()
