"""A program whose driver is killed twice: the command starts it again, and it ends with the same bits."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import standalone

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

SCRIPT = """
import hashlib
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sparkdl import Dataset, Trainer, session
from sparkdl.summary import JsonLines
from sparkdl.train import Checkpoint, EveryIterations, Hook, MaxIteration


class Kill(Hook):
    def __init__(self, iterations):
        self.iterations = iterations

    def on_iteration_end(self, run):
        reached = run.state.iteration
        mark = Path(f"killed-{reached}")
        if reached in self.iterations and not mark.exists():
            mark.touch()
            # First the Python process, then the JVM that is its parent.
            os.kill(os.getpid() if reached == self.iterations[0] else os.getppid(), signal.SIGKILL)


spark = session.builder(app_name="killed").getOrCreate()
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8)).astype("float32")
torch.manual_seed(0)
with Dataset.from_numpy(x, x.sum(1, keepdims=True), spark=spark, num_partitions=2) as data:
    trainer = Trainer(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)),
        loss=torch.nn.MSELoss(),
        optimizer=partial(torch.optim.Adam, lr=0.01),
        batch_size=16,
        end_when=MaxIteration(60),
        progress=False,
        hooks=[
            JsonLines("runs/history.jsonl"),
            Checkpoint("runs/checkpoints", every=EveryIterations(5)),
            Kill([int(n) for n in sys.argv[1:]]),
        ],
    )
    result = trainer.fit(data)
weights = torch.cat([p.detach().flatten() for p in result.module.parameters()]).numpy()
Path("weights").write_bytes(weights.tobytes())
print("iterations", len(result.history))
spark.stop()
"""


LOSES_MASTER = SCRIPT.replace(
    "    def on_iteration_end(self, run):\n",
    """    def on_iteration_end(self, run):
        if run.state.iteration == int(sys.argv[2]) and not Path("no-master").exists():
            Path("no-master").touch()
            os.kill(int(sys.argv[1]), signal.SIGKILL)
            time.sleep(5)  # until Spark has noticed
""",
).replace("sys.argv[1:]", "sys.argv[3:]")
"""Kills the master in iteration ``argv[2]``, and goes on until it kills itself."""


def submit(folder: Path, *arguments: str, retries: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "sparkdl", "submit", "--master", "local[2]", "--retries", retries]
    return subprocess.run(
        [*command, "--retry-delay", "0.1", "--conf", "spark.ui.enabled=false", "train.py", *arguments],
        cwd=folder,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_a_driver_killed_twice_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = submit(tmp_path / "a", retries="0")
    assert undisturbed.returncode == 0, undisturbed.stderr[-5000:]
    done = submit(tmp_path / "b", "22", "41", retries="1")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert (tmp_path / "b" / "killed-41").exists()
    assert "attempt 1: SIGKILL killed the driver; reached: iteration" in done.stderr
    assert "attempt 3 begins" in done.stderr
    assert "iterations 60" in done.stdout
    first, second = (hashlib.sha256((tmp_path / f / "weights").read_bytes()) for f in ("a", "b"))
    assert first.digest() == second.digest()
    assert '"attempt": 3' in (tmp_path / "b" / "runs" / "history.jsonl").read_text()


def test_a_master_that_is_lost_with_the_driver_and_comes_back(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOSES_MASTER)
    log = tmp_path / "stderr"
    with standalone.cluster(workers=1) as running, ExitStack() as stack:
        command = [sys.executable, "-m", "sparkdl", "submit", "--master", running.url, "--retries", "3"]
        command += ["--retry-delay", "1", "--conf", "spark.ui.enabled=false"]
        command += ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1"]
        job = subprocess.Popen(
            [*command, "train.py", str(running.master), "10", "42"],
            cwd=tmp_path,
            env=os.environ | standalone.ENVIRONMENT,
            stdout=stack.enter_context((tmp_path / "stdout").open("w")),
            stderr=stack.enter_context(log.open("w")),
        )
        stack.callback(job.wait)
        stack.callback(job.terminate)
        # Attempt 1 went on without a master; attempt 2 finds none.
        _wait_for(log, "attempt 2: ", job)
        again = subprocess.Popen(
            [str(standalone.HOME / "bin" / "spark-class"), *standalone.master_of(running.url)],
            env=os.environ | standalone.ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(again.wait)
        stack.callback(again.terminate)
        assert job.wait(timeout=400) == 0, log.read_text()[-5000:]
    told = log.read_text()
    assert "attempt 1: SIGKILL killed the driver; reached: iteration" in told
    assert "attempt 2: the driver lost its cluster: " in told
    assert "iterations 60" in (tmp_path / "stdout").read_text()


def _wait_for(log: Path, words: str, job: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while words not in log.read_text():
        assert job.poll() is None, log.read_text()[-5000:]
        assert time.monotonic() < deadline, log.read_text()[-5000:]
        time.sleep(0.5)


def test_an_error_of_the_script_ends_the_job_at_once(tmp_path: Path) -> None:
    done = submit(tmp_path / "c", "none", retries="5")
    assert done.returncode == 1
    assert "attempt 1: the script ended with ValueError: invalid literal" in done.stderr
    assert "attempt 2" not in done.stderr
