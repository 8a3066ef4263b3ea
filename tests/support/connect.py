"""A Spark Connect server in a process of its own, and scripts that run on both kinds of session."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from support import forking

_NEEDED = ("grpc", "grpc_status", "google.rpc", "zstandard")
_HOME = Path(pyspark.__file__).parent
_SEPARATOR = "FOUND"
_ROOT = str(Path(__file__).parents[2])


def missing() -> list[str]:
    """Return what is not installed of all that a server and its clients need."""

    def is_there(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # the parent of a dotted name
            return False

    found = [name for name in _NEEDED if not is_there(name)]
    jars = _HOME.glob("jars/spark-connect_*.jar")
    return found if any(jars) else [*found, "the server's jar, which pip's pyspark has from 4.0 on,"]


def _environment(packages: Path | None = None) -> dict[str, str]:
    first = [] if packages is None else [str(packages)]
    path = os.pathsep.join([*first, _ROOT, str(Path(_ROOT, "tests")), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_GATEWAY_PORT", "SPARK_LOCAL_DIRS"):
        env.pop(name, None)
    return env


@dataclass(frozen=True)
class Server:
    """A server.

    Attributes:
        url: of the server.
        pid: of its process, whose children are the executors of a ``local-cluster``.
    """

    url: str
    pid: int


@contextmanager
def server(
    folder: Path,
    master: str = "local[2]",
    conf: Mapping[str, str] | None = None,
    packages: Path | None = None,
) -> Iterator[Server]:
    """Start a server.

    Args:
        folder: for its files.
        master: as Spark's.
        conf: more confs.
        packages: folder with another version of PySpark.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    confs = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        # A machine that sleeps for some minutes has lost nobody.
        "spark.network.timeout": "3600s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "3600000",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        # Each query runs once: the Java code that Spark writes for one costs more to compile than it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    if master.startswith("local["):  # executors of a cluster have one worker each
        confs["spark.python.daemon.module"] = forking.NAME
    confs |= conf or {}
    home = _HOME if packages is None else packages / "pyspark"
    command = [str(home / "bin/spark-submit"), "--master", master]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in confs.items():
        command += ["--conf", f"{name}={value}"]
    log = folder / "server.log"
    env = _environment(packages) | {"SPARK_HOME": str(home)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "spark-internal"], env=env, cwd=folder, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 600
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, log.read_text()[-5000:]
            assert time.monotonic() < deadline, log.read_text()[-5000:]
            time.sleep(0.2)
        yield Server(f"sc://127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def run_client(
    folder: Path, script: Path, *arguments: str, timeout: float = 1200, packages: Path | None = None
) -> dict[str, Any]:
    """Run a script, and return what it has found: JSON after a word of its own.

    Args:
        folder: where it runs.
        script: the script.
        arguments: of the script.
        timeout: seconds.
        packages: folder with another version of PySpark.
    """
    run = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=_environment(packages),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert _SEPARATOR in run.stdout, run.stdout[-3000:] + run.stderr[-8000:]
    found: dict[str, Any] = json.loads(run.stdout.split(_SEPARATOR, 1)[1])
    return found


def tell(found: Mapping[str, Any]) -> None:
    """Tell what a script has found."""
    print(_SEPARATOR, json.dumps(found))
