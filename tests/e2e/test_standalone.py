"""A real standalone master with two workers, and spark-submit."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from standalone import ENVIRONMENT, HOME, cluster

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "mnist_lenet.py"

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def master() -> Iterator[str]:
    """Start a master and two workers of one core; yield the master's URL."""
    with cluster(workers=2) as running:
        yield running.url


def submit(master: str, *arguments: str) -> str:
    """Run the MNIST example with spark-submit and return what it printed."""
    command = [HOME / "bin" / "spark-submit", "--master", master]
    command += ["--properties-file", ROOT / "conf" / "standalone.conf", "--conf", "spark.executor.memory=1g"]
    command += ["--conf", f"spark.executor.extraJavaOptions={os.environ['SPARK_SUBMIT_OPTS']}"]
    command += [
        "--conf",
        "spark.driver.host=127.0.0.1",
        "--conf",
        "spark.ui.enabled=false",
        EXAMPLE,
        *arguments,
    ]
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=300, env=os.environ | ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def accuracy(output: str) -> float:
    found = re.fullmatch(r"test_accuracy=(0\.\d{4})", output.splitlines()[-1])
    assert found, output
    return float(found[1])


def test_submit_to_a_standalone_cluster(master: str) -> None:
    assert accuracy(submit(master, "--epochs", "1")) > 0.5


@pytest.mark.slow
def test_submit_to_local_cluster() -> None:
    assert accuracy(submit("local-cluster[2,1,2048]", "--epochs", "1")) > 0.5
