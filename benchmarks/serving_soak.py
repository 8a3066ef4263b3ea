"""Hold ``sparkdl serve`` with all hostile clients of the tests at once, beside clients that check answers.

    python benchmarks/serving_soak.py --seconds 600 --json soak.json
    python benchmarks/serving_soak.py --seconds 60 --tls

Server, good clients and hostile clients are three processes on this machine, over loopback. Good clients ask
for a while alone, which gives the quiet latency, beside the hostile ones in two rounds, and alone again.
Some keep their connection, some open one for each request. A full server may close a new connection, which is
then tried again, as clients of HTTP do; the time counts. Afterwards descriptors must be what they were.
Memory may stay where the first round has left it, as the C library keeps what many connections had at once,
but the second round must not add to it.

One JSON object: both latencies and their ratio, failures, descriptors and memory before, at most and after
each round, and ``problems``, which is empty if all held; if not, the exit status is 1. ``cores_used`` says
how many cores the server, both kinds of clients and other programs took meanwhile. Hostile clients, which
attack from elsewhere in earnest, run at the lowest priority; where all cores are busy, the ratio is also of
who shares them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keeping
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from sparkdl.ml.local import save_local
from support import hostile
from support.hostile import Target
from support.serving import classifier

from sparkdl.serve import Predictor

TOKEN = "a-token-that-nobody-guesses"
KEEPING, OPENING = 4, 2
_ATTEMPTS = 20
_ROUNDS = 2
_SETTLE_SECONDS = 100  # an idle connection is closed after 75 seconds


@dataclass
class Good:
    """What the good clients saw."""

    seconds: list[float] = field(default_factory=list)
    retries: int = 0
    failures: list[str] = field(default_factory=list)
    processor: float = 0.0

    def add(self, more: Good) -> None:
        """Add what they saw later."""
        self.seconds += more.seconds
        self.retries += more.retries
        self.failures += more.failures


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold a server with hostile clients.")
    parser.add_argument("--seconds", type=float, default=600, help="under attack (600)")
    parser.add_argument("--quiet", type=float, default=20, help="seconds before it (20)")
    parser.add_argument("--connections", type=int, default=8, help="of each kind (8)")
    parser.add_argument("--idle", type=int, default=600, help="more connections that say nothing (600)")
    parser.add_argument("--tls", action="store_true", help="with a certificate")
    parser.add_argument("--ratio", type=float, default=3.0, help="most times the quiet p99 (3)")
    parser.add_argument("--json", help="file for the result")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(args, Path(folder))
    print(json.dumps(result))
    keeping.write(args.json, result)
    raise SystemExit(bool(result["problems"]))


def soak(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    model = classifier()
    save_local(model, folder / "model")
    certificate = make_certificate(folder) if args.tls else None
    command = [sys.executable, "-m", "sparkdl", "serve", str(folder / "model"), "--port", "0"]
    if certificate is not None:
        command += ["--certificate", str(certificate), "--key", str(folder / "key.pem")]
    log = folder / "log"
    with log.open("w") as stream:
        environment = {**os.environ, "SPARKDL_SERVE_TOKEN": TOKEN}
        server = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)
    context = multiprocessing.get_context("spawn")
    try:
        port = wait_for_port(server, log)
        x = np.random.default_rng(0).random((16, 64)).astype(np.float32)
        questions = [[row.tolist()] for row in x]
        answers = [row.tolist() for row in Predictor.of(model)(x)]
        good = (port, certificate, questions, answers)
        with context.Pool(2) as pool:
            pool.apply(ask, (*good, 3.0))
            quiet = pool.apply(ask, (*good, args.quiet))
            before = most = usage(server.pid)
            beside, opened, rounds, cores_used = Good(), 0, [before], []
            for _ in range(_ROUNDS):
                seconds, clock = args.seconds / _ROUNDS, Clock(server.pid)
                held = pool.apply_async(hold, (port, args.tls, args.connections, args.idle, seconds))
                asked = pool.apply_async(ask, (*good, seconds))
                while not asked.ready() or not held.ready():
                    time.sleep(0.5)
                    most = max(most[0], usage(server.pid)[0]), max(most[1], usage(server.pid)[1])
                more, hostile_used = held.get()
                cores_used.append(clock.used(asked.get().processor, hostile_used))
                beside.add(asked.get())
                opened += more
                until = time.monotonic() + _SETTLE_SECONDS
                while (after := usage(server.pid))[0] > before[0] and time.monotonic() < until:
                    time.sleep(1)
                rounds.append(after)
            quiet.add(pool.apply(ask, (*good, args.quiet)))
        alive = server.poll() is None
    finally:
        server.terminate()
        server.wait(60)
    ratio = p99(beside) / p99(quiet)
    problems = [*quiet.failures, *beside.failures][:10]
    if not alive:
        problems.append("the server has ended")
    if ratio > args.ratio:
        problems.append(f"p99 beside hostile clients is {ratio:.2f} times the quiet one")
    if after[0] > before[0]:
        problems.append(f"descriptors: {before[0]} before, {after[0]} after")
    if after[1] > rounds[1][1] + 32:
        problems.append(f"memory: {rounds[1][1]} MiB after the first round, {after[1]} MiB after the last")
    return {
        "seconds": args.seconds,
        "tls": args.tls,
        "cores": len(os.sched_getaffinity(0)),
        "hostile_connections_opened": opened,
        "quiet": figures(quiet),
        "beside": figures(beside),
        "p99_ratio": round(ratio, 2),
        "cores_used": cores_used,
        "descriptors": {
            "before": before[0],
            "most": most[0],
            "after_rounds": [each[0] for each in rounds[1:]],
        },
        "memory_mib": {
            "before": before[1],
            "most": most[1],
            "after_rounds": [each[1] for each in rounds[1:]],
        },
        "log_bytes": log.stat().st_size,
        "problems": problems,
    }


def figures(good: Good) -> dict[str, Any]:
    return {
        "requests": len(good.seconds),
        "retries": good.retries,
        "failures": len(good.failures),
        "p50_ms": round(float(np.percentile(good.seconds, 50)) * 1e3, 2),
        "p99_ms": round(p99(good) * 1e3, 2),
    }


def p99(good: Good) -> float:
    return float(np.percentile(good.seconds, 99))


def usage(pid: int) -> tuple[int, int]:
    """Return how many descriptors a process has open, and how many MiB of memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    memory = re.search(r"VmRSS:\s+(\d+)", status)
    return len(os.listdir(f"/proc/{pid}/fd")), int(memory[1]) >> 10 if memory else 0


class Clock:
    """Says who used the processors since it was made.

    Args:
        pid: of the server.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._begin = time.monotonic(), self._server(), self._all()

    def used(self, good: float, hostile: float) -> dict[str, float]:
        """Return how many cores each used, of those of the clients by their seconds."""
        begin, server, busy = self._begin
        server, busy = self._server() - server, self._all() - busy
        seconds = {"server": server, "good": good, "hostile": hostile}
        seconds["others"] = busy - sum(seconds.values())
        return {name: round(own / (time.monotonic() - begin), 2) for name, own in seconds.items()}

    def _server(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _all(self) -> float:
        user, nice, system, _idle, _wait, *interrupts = Path("/proc/stat").read_text().split()[1:9]
        return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


def wait_for_port(server: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + 120
    while time.monotonic() < until and server.poll() is None:
        if found := re.search(r"at 127\.0\.0\.1:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.1)
    raise SystemExit(f"the server does not start: {log.read_text()[-1000:]}")


def make_certificate(folder: Path) -> Path:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key)]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", *made, "-out", str(certificate), "-days", "1", *subject]
    subprocess.run(command, check=True, capture_output=True)
    return certificate


# -- clients, each in a process of its own ------------------------------------------------------


def hold(port: int, tls: bool, connections: int, idle: int, seconds: float) -> tuple[int, float]:
    """Run the hostile clients; return how many connections they opened, and their processor time."""
    me = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, me, 19)  # what they do costs the server time; how they do it should not
    begin = time.process_time()
    context = None
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    header = f"Authorization: Bearer {TOKEN}\r\n".encode()  # the worst ones have it
    kinds = list(hostile.ALL.values()) * connections + [hostile.silent] * idle
    opened = asyncio.run(hostile.attack(Target(port, context, header), kinds, 1, seconds, pause=0.5))
    os.setpriority(os.PRIO_PROCESS, me, 0)  # the process may run good clients next
    return opened, time.process_time() - begin


def ask(port: int, certificate: Path | None, questions: Any, answers: Any, seconds: float) -> Good:
    """Run the good clients."""
    begin = time.process_time()
    good, context = Good(), certificate and ssl.create_default_context(cafile=certificate)
    where: dict[str, Any] = {"host": "127.0.0.1", "port": port, "ssl": context}
    where["server_hostname"] = "localhost" if context else None

    async def once(streams: Any, question: Any, answer: Any) -> None:
        reader, writer = streams
        body = json.dumps({"columns": {"features": question}}).encode()
        head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + kind).encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        found = await reader.readexactly(length)
        status = lines[0].split()[1].decode()
        if status == "503":
            raise ConnectionError("busy")
        if status != "200":
            good.failures.append(f"status {status}: {found[:200]!r}")
        elif not np.allclose(json.loads(found)["columns"]["rawPrediction"][0], answer, atol=1e-5):
            good.failures.append(f"a wrong answer: {found[:200]!r}")

    async def client(keeps: bool, number: int) -> None:
        until, streams = time.perf_counter() + seconds, None
        while (begin := time.perf_counter()) < until:
            number = (number + 1) % len(questions)
            for attempt in range(_ATTEMPTS):
                try:
                    async with asyncio.timeout(30):
                        streams = streams or await asyncio.open_connection(**where)
                        await once(streams, questions[number], answers[number])
                    break
                except (OSError, asyncio.IncompleteReadError) as error:
                    good.retries += 1
                    if streams is not None:
                        streams[1].transport.abort()
                    streams = None
                    if attempt == _ATTEMPTS - 1 or isinstance(error, TimeoutError):
                        good.failures.append(f"no answer: {error!r}")
                        break
                    await asyncio.sleep(0.005)
            good.seconds.append(time.perf_counter() - begin)
            if not keeps and streams is not None:
                streams[1].transport.abort()
                streams = None
            await asyncio.sleep(0.02)
        if streams is not None:
            streams[1].transport.abort()

    async def all_clients() -> None:
        await asyncio.gather(*(client(n < KEEPING, n) for n in range(KEEPING + OPENING)))

    asyncio.run(all_clients())
    good.processor = time.process_time() - begin
    return good


if __name__ == "__main__":
    main()
