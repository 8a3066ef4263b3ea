"""Latency of ``sparkdl serve`` with and without new versions of a model with an embedding variable.

    python benchmarks/refresh.py --seconds 20 --every 1

A table of ``--rows`` ids is published. Clients ask without a pause, each when it has its answer; every answer
must be 200. Then they ask again while every ``--every`` seconds a version arrives in which ``--changed`` rows
are other ones, and the server takes it up (``--watch``). One of eight versions is complete, the others
are changes. The program that publishes, the server and the clients share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from serving import free_port, wait_for
from torch import nn

from sparkdl.keyed.entries import ROW
from sparkdl.ml import TorchModel
from sparkdl.nn import EmbeddingVariable
from sparkdl.online import Publisher

WIDTH, COLUMNS = 16, 8


def make_model() -> nn.Sequential:
    """Return a module of rows of some ids, and a layer above them."""
    return nn.Sequential(EmbeddingVariable(WIDTH, seed=1), nn.Flatten(), nn.Linear(COLUMNS * WIDTH, 1))


def ask(port: int, body: bytes, connections: int, seconds: float) -> tuple[list[float], list[str]]:
    """Ask from several connections, in a process of its own; return the times and versions of the answers."""

    async def client(until: float, times: list[float], versions: dict[str, None]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (begin := time.perf_counter()) < until:
            writer.write(body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if line)
            await reader.readexactly(int(fields[b"content-length"]))
            times.append(time.perf_counter() - begin)
            versions[fields[b"x-model-version"].decode()] = None
        writer.close()

    async def all_clients() -> tuple[list[float], list[str]]:
        await asyncio.gather(*(client(time.perf_counter() + 1, [], {}) for _ in range(connections)))
        times: list[float] = []
        versions: dict[str, None] = {}
        until = time.perf_counter() + seconds
        await asyncio.gather(*(client(until, times, versions) for _ in range(connections)))
        return times, list(versions)

    return asyncio.run(all_clients())


def request(ids: Any) -> bytes:
    """Return a whole request as bytes."""
    body = json.dumps({"rows": [{"features": row} for row in ids.tolist()]}).encode()
    lines = (
        "POST /predict HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


def change(model: nn.Sequential, iteration: int, ids: Any) -> None:
    """Give some ids other rows, as an iteration does."""
    ids, table = np.unique(ids), model[0]
    assert isinstance(table, EmbeddingVariable)
    rows = np.random.default_rng(iteration).normal(size=(len(ids), WIDTH)).astype(np.float32)
    table.store.count(ids, np.ones(len(ids), np.int64), iteration, lambda new: {})
    table.store.update(ids, {ROW: rows}, lambda new: {}, iteration + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency with and without new versions.")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--changed", type=int, default=2_000, help="rows that differ between two versions")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of both parts")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two versions")
    args = parser.parse_args()
    random, model = np.random.default_rng(0), make_model()
    known = np.unique(random.integers(-(2**62), 2**62, args.rows))
    change(model, 0, known)
    example = known[: 2 * COLUMNS].reshape(2, COLUMNS)
    make = partial(TorchModel.from_module, example=example, featuresCol="features")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        publisher = Publisher(folder / "models", make, seconds=None)
        publisher.publish(model, 1)
        port, done = free_port(), threading.Event()
        command = [sys.executable, "-m", "sparkdl", "serve", str(publisher.path), "--port", str(port)]
        body = request(example[:1])
        published: list[float] = []

        def publish() -> None:
            iteration = 1
            while not done.wait(args.every):
                begin = time.perf_counter()
                change(model, iteration, random.choice(known, args.changed, replace=False))
                iteration += 1
                publisher.publish(model, iteration)
                published.append(time.perf_counter() - begin)

        with (folder / "log").open("w") as log:
            server = subprocess.Popen([*command, "--watch", "0.2"], stdout=log, stderr=log)
            thread = threading.Thread(target=publish)
            try:
                wait_for(port, server, folder / "log")
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    for name in ("one version", f"a version every {args.every:g} s"):
                        if name != "one version":
                            thread.start()
                        times, versions = pool.apply(ask, (port, body, args.connections, args.seconds))
                        p50, p99, p999, most = np.percentile(times, [50, 99, 99.9, 100]) * 1e3
                        print(
                            f"{name}: {len(times)} answers, all 200, of {len(versions)} versions; "
                            f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, p99.9 {p999:.2f} ms, longest {most:.1f} ms",
                            flush=True,
                        )
                print(f"{len(published)} versions published, {np.median(published) * 1e3:.0f} ms each")
            finally:
                done.set()
                if thread.is_alive():
                    thread.join()
                server.terminate()
                server.wait()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
