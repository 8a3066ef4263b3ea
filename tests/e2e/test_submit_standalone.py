"""``sparkdl submit`` to a cluster whose machines have a bare Python: the job brings its environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from standalone import cluster

import sparkdl
from sparkdl.cli.submit import packing

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SCRIPT = """
from functools import partial

import numpy as np
import torch
from helper import where
from sparkdl import Dataset, Trainer, session
from sparkdl.train import MaxEpoch

spark = session.builder(app_name="shipped").getOrCreate()
if LOOK:
    for prefix, package in set(spark.sparkContext.parallelize(range(4), 4).map(where).collect()):
        print("task", prefix, package)
x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
with Dataset.from_numpy(x, x.sum(1, keepdims=True), spark=spark) as data:
    sgd = partial(torch.optim.SGD, lr=0.1)
    trainer = Trainer(
        torch.nn.Linear(3, 1), loss=torch.nn.MSELoss(), optimizer=sgd, end_when=MaxEpoch(2), progress=False
    )
    print("iterations", len(trainer.fit(data).history))
spark.stop()
"""
HELPER = """
import sys


def where(_):
    import sparkdl

    return sys.prefix, sparkdl.__file__
"""


@pytest.fixture(scope="module")
def master() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("PYTHONPATH", raising=False)  # by it the bare machine would find this checkout
        with cluster(workers=1) as running:
            yield running.url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT.replace("LOOK", "True"))
    (tmp_path / "helper.py").write_text(HELPER)
    return tmp_path


def environment(prefix: Path) -> Path:
    """Make an environment with a copy of sparkdl, which borrows the large packages from this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    site = next(prefix.glob("lib/python3*/site-packages"))
    shutil.copytree(Path(sparkdl.__file__).parent, site / "sparkdl")
    heavy = [path for path in sys.path if path.endswith("site-packages")]
    # On the path only: a site directory would bring this checkout along, which is installed there.
    (site / "heavy.pth").write_text(f"import sys; sys.path += {heavy!r}\n")
    files = [str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()]
    (site / "sparkdl-0.dist-info").mkdir()
    (site / "sparkdl-0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sparkdl\nVersion: 0\n"
    )
    (site / "sparkdl-0.dist-info" / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    return prefix


def submit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "PYTHONPATH")}
    options = ("spark.driver.host=127.0.0.1", "spark.executor.memory=1g", "spark.ui.enabled=false")
    command = [sys.executable, "-m", "sparkdl", "submit", *(f"--conf={option}" for option in options)]
    return subprocess.run(
        [*command, *arguments, "--modules", "train.py"],
        cwd=folder,
        env=kept | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_packed_environment_reaches_executors_that_have_none(master: str, folder: Path) -> None:
    archive = folder / "environment.tar.gz"
    packing.pack(environment(folder / "venv"), archive)
    done = submit(folder, "--master", master, "--env", str(archive))
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    tasks = [line.split() for line in done.stdout.splitlines() if line.startswith("task ")]
    for _, prefix, package in tasks:
        assert prefix.endswith("/environment")
        assert package.startswith(f"{prefix}/lib/")
    assert "iterations 4" in done.stdout
    assert " INFO " not in done.stderr


def test_without_it_the_error_says_what_to_do(master: str, folder: Path) -> None:
    bare = folder / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    (folder / "train.py").write_text(SCRIPT.replace("LOOK", "False"))
    done = submit(folder, "--master", master, "--conf", f"spark.pyspark.python={bare}/bin/python")
    assert done.returncode == 1
    assert "docs/troubleshooting.md#task-environment" in done.stdout
    assert "sparkdl submit --env" in done.stdout
