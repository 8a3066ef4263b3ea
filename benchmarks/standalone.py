"""A standalone Spark cluster of one machine, whose executors can be made to fail."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

HOME = Path(pyspark.__path__[0])
_ROLE = "org.apache.spark.deploy"
ENVIRONMENT = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster.

    Attributes:
        url: the master's.
        master: process id of the master's JVM.
        workers: process ids of the workers' JVMs.
    """

    url: str
    master: int
    workers: tuple[int, ...]

    def executors(self) -> list[psutil.Process]:
        """Return the executors' JVMs, by process id."""
        found = []
        for worker in self.workers:
            for process in psutil.Process(worker).children(recursive=True):
                try:
                    if any(part.endswith("CoarseGrainedExecutorBackend") for part in process.cmdline()):
                        found.append(process)
                except (psutil.NoSuchProcess, psutil.ZombieProcess):
                    continue
        return sorted(found, key=lambda process: process.pid)

    def signal(self, processes: list[psutil.Process], number: signal.Signals) -> int:
        """Send a signal to executors and return how many of them were there to get it."""
        sent = 0
        for process in processes:
            try:
                process.send_signal(number)
                sent += 1
            except psutil.NoSuchProcess:
                pass
        return sent


def master_of(url: str) -> tuple[str, ...]:
    """Return the arguments of ``spark-class`` for a master."""
    host, _, port = url.removeprefix("spark://").partition(":")
    return (f"{_ROLE}.master.Master", "--host", host, "--port", port, "--webui-port", "0")


@contextmanager
def cluster(workers: int = 2, cores: int = 1) -> Iterator[Cluster]:
    """Start a master and workers, which start executors anew as often as they die; stop all at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkdl-cluster-")))

        def start(name: str, *arguments: str) -> int:
            log = stack.enter_context((folder / f"{name}.log").open("w"))
            process = subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), *arguments],
                stdout=log,
                stderr=log,
                env=os.environ | ENVIRONMENT,
                start_new_session=True,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process.pid

        master = start("master", *master_of(url))
        options = ["-c", str(cores), "-m", "1500m", "--webui-port", "0"]
        pids = tuple(
            start(f"worker{n}", f"{_ROLE}.worker.Worker", *options, "-d", str(folder / f"work{n}"), url)
            for n in range(workers)
        )
        deadline = time.monotonic() + 120
        while (folder / "master.log").read_text().count("Registering worker") < workers:
            if time.monotonic() > deadline:
                raise TimeoutError((folder / "master.log").read_text())
            time.sleep(0.2)
        yield Cluster(url, master, pids)
