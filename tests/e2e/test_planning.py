"""Commands that rehearse a script, and runs that ask a real cluster for executors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import standalone
import torch
from torch import nn

from sparkdl import Dataset, Trainer, __main__
from sparkdl._spark.jobs import FrameJobs
from sparkdl.cli.plan import numbers
from sparkdl.train import Elastic, Hook, MaxSeconds, Run

SCRIPT = """
from functools import partial
import sys
import numpy as np, torch
from sparkdl import Dataset, Trainer, session
spark = session.builder("local[2]", conf={"spark.ui.enabled": "false"}).getOrCreate()
try:
    x = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    Trainer(
        net,
        loss=torch.nn.MSELoss(),
        optimizer=partial(torch.optim.Adam, lr=0.01),
        batch_size=int(sys.argv[1]),
    ).fit(Dataset.from_numpy(x, x.sum(1, keepdims=True)))
    print("trained")
finally:
    spark.stop()
    print("ended in order")
"""


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "sparkdl", *words, "train.py", "64"],
        cwd=folder,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.mark.slow
@pytest.mark.cluster
def test_a_script_is_planned_as_far_as_its_first_fit(tmp_path: Path) -> None:
    options = ["--rows", "100000", "--executors", "1..4", "--price", "0.1", "--seconds", "0.3"]
    done = command(tmp_path, "plan", *options, "--job", "resources.toml")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ended in order" in done.stdout
    assert "trained" not in done.stdout
    assert "best: " in done.stdout
    assert "[resources]" in (tmp_path / "resources.toml").read_text()


@pytest.mark.slow
@pytest.mark.cluster
def test_a_script_is_profiled(tmp_path: Path) -> None:
    done = command(tmp_path, "profile", "--html", "page.html", "--trace", "trace.json", "--seconds", "0.5")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "bottleneck: " in done.stdout
    page = (tmp_path / "page.html").read_text()
    assert "Linear" in page
    assert "<script" not in page
    events = json.loads((tmp_path / "trace.json").read_text())
    assert {"forward-backward", "0", "2"} <= {event["name"] for event in events}
    assert min(event["ts"] for event in events if "ts" in event) == 0


def test_numbers_of_executors() -> None:
    assert numbers("2..5") == (2, 3, 4, 5)
    assert numbers("4,1,2") == (1, 2, 4)
    for wrong in ("", "0..3", "5..2", "two", "1..100000", f"1..{10**30}"):
        with pytest.raises(Exception, match="expected numbers"):
            numbers(wrong)


def test_what_is_no_script(capsys: Any, tmp_path: Path) -> None:
    assert __main__.main(["plan", str(tmp_path / "none.py")]) == 1
    assert "expected a Python file" in capsys.readouterr().err
    (tmp_path / "empty.py").write_text("")
    assert __main__.main(["plan", str(tmp_path / "empty.py")]) == 1
    assert "without a fit" in capsys.readouterr().err


class Moves(Hook):
    """Stops a run that has reached a number of partitions."""

    def __init__(self, until: int) -> None:
        self.until, self.moves = until, list[tuple[int, int]]()

    def on_resize(self, run: Run, before: int, after: int) -> None:
        self.moves.append((before, after))
        if after == self.until:
            run.stop("there")


def moves_of(
    spark: Any, seconds_per_row: float, until: int, elastic: Elastic | Literal["plan"]
) -> list[tuple[int, int]]:
    def step(module: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(seconds_per_row * batch.rows)  # work that needs no core: there are only two
        return nn.functional.mse_loss(module(batch.inputs), batch.label)

    x = np.random.default_rng(0).normal(size=(640, 8)).astype(np.float32)
    hook = Moves(until)
    with Dataset.from_numpy(x, x.sum(1, keepdims=True), spark=spark) as data:
        Trainer(
            nn.Linear(8, 1),
            step=step,
            optimizer=partial(torch.optim.SGD, lr=0.01),
            batch_size=64,
            elastic=elastic,
            end_when=MaxSeconds(180),
            hooks=[hook],
            progress=False,
        ).fit(data)
    return hook.moves


@pytest.mark.slow
def test_a_run_asks_a_real_cluster_for_executors_and_gives_them_back(cluster: Any) -> None:
    jobs, elastic = FrameJobs(cluster.sparkContext), Elastic(asks=True, settle=1.0, patience=1.0)
    try:
        assert moves_of(cluster, 0.0, 1, elastic) == [(2, 1)]
        assert jobs.count_executors() == 1
        assert moves_of(cluster, 0.005, 2, elastic) == [(1, 2)]
        assert jobs.count_executors() == 2
    finally:
        jobs.ask_for_executors(2)
        while jobs.count_executors() < 2:
            time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_standalone_master_gives_executors_and_takes_them_back(
    sessions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in standalone.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with standalone.cluster(workers=3) as running:
        spark = sessions.get(running.url, **{"spark.executor.memory": "512m"})
        try:
            jobs = FrameJobs(spark.sparkContext)
            while jobs.count_executors() < 3:  # the master starts them when the session is there
                time.sleep(0.1)
            assert moves_of(spark, 0.0, 1, "plan") == [(3, 2), (2, 1)]
            assert len(running.executors()) == 1
            assert moves_of(spark, 0.01, 3, "plan") == [(1, 2), (2, 3)]
            assert len(running.executors()) == 3
        finally:
            sessions.stop()
