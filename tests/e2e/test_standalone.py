"""A real standalone master with two workers, and spark-submit."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

HOME = Path(pyspark.__path__[0])
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "mnist_lenet.py"

pytestmark = pytest.mark.cluster


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a master and two workers of one core; yield the master's URL."""
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    logs = tmp_path_factory.mktemp("standalone")
    env = os.environ | {
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    role = "org.apache.spark.deploy"
    commands = [[f"{role}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    commands += [
        [
            f"{role}.worker.Worker",
            "-c",
            "1",
            "-m",
            "1500m",
            "-d",
            str(logs / f"work{n}"),
            "--webui-port",
            "0",
            url,
        ]
        for n in (1, 2)
    ]
    with ExitStack() as stack:
        started = []
        for n, command in enumerate(commands):
            log = stack.enter_context((logs / f"{n}.log").open("w"))
            process = subprocess.Popen(
                [HOME / "bin" / "spark-class", *command],
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            started.append(logs / f"{n}.log")
        deadline = time.monotonic() + 60
        while started[0].read_text().count("Registering worker") < 2:
            assert time.monotonic() < deadline, started[0].read_text()
            time.sleep(0.2)
        yield url


def submit(master: str, *arguments: str) -> str:
    """Run the MNIST example with spark-submit and return what it printed."""
    command = [HOME / "bin" / "spark-submit", "--master", master]
    command += ["--properties-file", ROOT / "conf" / "standalone.conf", "--conf", "spark.executor.memory=1g"]
    command += [
        "--conf",
        "spark.driver.host=127.0.0.1",
        "--conf",
        "spark.ui.enabled=false",
        EXAMPLE,
        *arguments,
    ]
    env = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def accuracy(output: str) -> float:
    found = re.search(r"^test_accuracy=([\d.]+)$", output, re.MULTILINE)
    assert found, output
    return float(found[1])


def test_submit_to_a_standalone_cluster(master: str) -> None:
    assert accuracy(submit(master, "--epochs", "1")) > 0.5


def test_submit_to_local_cluster() -> None:
    assert accuracy(submit("local-cluster[2,1,2048]", "--epochs", "1")) > 0.5
