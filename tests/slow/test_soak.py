"""Thousands of iterations stay flat in memory, threads, files and time."""

from __future__ import annotations

import json
import os
import statistics
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.train import MaxIteration, TrainState, Trigger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ITERATIONS = int(os.environ.get("SPARKDL_SOAK_ITERATIONS", "5000"))


class Probe(Trigger):
    """Never fires; takes a sample of everything that could grow."""

    def __init__(self, spark: Any, every: int) -> None:
        self.spark, self.every = spark, every
        self.samples: list[dict[str, Any]] = []
        tasks = spark.sparkContext.parallelize([0], 1)  # of other sessions' folders nothing is to be counted
        (self._folders,) = tasks.map(lambda _: os.environ["SPARK_LOCAL_DIRS"]).collect()

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        if current.iteration % self.every == 0 and current.iteration:
            self.samples.append({"iteration": current.iteration} | self.sample())
        return False

    def sample(self) -> dict[str, Any]:
        sc = self.spark.sparkContext
        for _ in range(3):
            sc._jvm.System.gc()
        runtime = sc._jvm.java.lang.Runtime.getRuntime()
        me = psutil.Process()
        workers_mb = [memory for c in me.children(recursive=True) if (memory := _worker_mb(c))]
        folders = [Path(sc._temp_dir), *map(Path, self._folders.split(","))]
        storage = sc._jsc.sc().getExecutorMemoryStatus().values().head()
        return {
            "driver_mb": me.memory_info().rss / 2**20,
            "driver_threads": threading.active_count(),
            "heap_mb": (runtime.totalMemory() - runtime.freeMemory()) / 2**20,
            "jvm_threads": sc._jvm.java.lang.Thread.activeCount(),
            "workers": len(workers_mb),
            "workers_mb": sum(workers_mb),
            "files": sum(len(files) for folder in folders for _, _, files in os.walk(folder)),
            "persisted": sc._jsc.getPersistentRDDs().size(),
            "storage_kb": (storage._1() - storage._2()) / 2**10,
        }


def _worker_mb(process: psutil.Process) -> float:
    """Return a Python worker's memory; 0 for other processes, and for those that end just now."""
    try:
        return process.memory_info().rss / 2**20 if "pyspark" in " ".join(process.cmdline()) else 0.0
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return 0.0


@pytest.mark.parametrize("inline", [True, False], ids=["inline weights", "broadcast weights"])
def test_long_runs_stay_flat(spark: Any, inline: bool, monkeypatch: Any, tmp_path: Path) -> None:
    if not inline:
        monkeypatch.setattr("sparkdl.access.classic._INLINE_BYTES", 0)
    x = np.random.default_rng(0).normal(size=(64, 10)).astype(np.float32)
    probe = Probe(spark, every=ITERATIONS // 10)
    with Dataset.from_numpy(x, x.sum(axis=1, keepdims=True), spark=spark, num_partitions=2) as data:
        result = Trainer(
            nn.Linear(10, 1),
            loss=nn.MSELoss(),
            optimizer=partial(torch.optim.Adam, lr=1e-3),
            batch_size=32,
            end_when=MaxIteration(ITERATIONS) | probe,
            progress=False,
        ).fit(data)
    for sample in probe.samples:
        print(json.dumps({k: round(v, 1) for k, v in sample.items()}))
    seconds = result.history.column("seconds")
    fifth = ITERATIONS // 5
    early, late = statistics.median(seconds[fifth : 2 * fifth]), statistics.median(seconds[-fifth:])
    print(json.dumps({"early_ms": round(1000 * early, 1), "late_ms": round(1000 * late, 1)}))

    first, last = probe.samples[1], probe.samples[-1]  # from a fifth of the run on
    assert last["driver_mb"] < first["driver_mb"] + 10
    assert last["heap_mb"] < first["heap_mb"] + 15
    assert last["workers_mb"] < first["workers_mb"] * 1.1 + 20
    assert last["driver_threads"] <= first["driver_threads"]
    assert last["jvm_threads"] <= 1.4 * first["jvm_threads"]  # thread pools breathe
    assert last["files"] <= first["files"] + 20
    assert last["persisted"] <= first["persisted"]
    # Released broadcasts leave a little later, so single samples swing by as much as one of them holds.
    half = len(probe.samples) // 2
    early_kb, late_kb = (
        min(s["storage_kb"] for s in part) for part in (probe.samples[:half], probe.samples[half:])
    )
    assert late_kb <= early_kb + 100
    assert late < 1.3 * early
