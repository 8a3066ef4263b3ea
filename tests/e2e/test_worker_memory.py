"""What a Python worker holds at its peak: a shard with the optimizer's state, two copies of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import sync
import torch

from sparkdl import Dataset, Trainer
from sparkdl.train import MaxIteration

cloudpickle.register_pickle_by_value(sync)  # executors cannot import benchmarks

SHARDS = 2
PARAMETERS = 30_000_000
AIM = (4 / SHARDS + 2) * 4 * PARAMETERS / 1e6  # MB
SLACK = (40 << 20) / 1e6
"""For pieces on their way and holes between them."""


def peaks_of_a_fit(spark: Any, numel: int) -> dict[int, float]:
    """Return the most memory, in MB, that each worker of the executors uses in a fit."""
    rows = np.ones((16, 1), np.float32)
    with Dataset.from_numpy(rows, spark=spark, num_partitions=SHARDS) as data:
        data.store()
        sync.forget_peaks()
        Trainer(
            sync.Flat(numel),
            loss=sync.mean_output,
            optimizer=torch.optim.Adam,
            batch_size=16,
            end_when=MaxIteration(4),
            exchange="sharded",
            iterations_per_job=2,
            progress=False,
        ).fit(data)
        return {process.pid: sync.peak(process) for process in sync.workers()}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_a_worker_holds_four_shards_and_two_copies_of_the_weights(cluster: Any) -> None:
    small, large = (peaks_of_a_fit(cluster, numel) for numel in (1000, PARAMETERS))
    common = small.keys() & large.keys()
    assert len(common) == SHARDS
    for pid in common:
        print(f"worker {pid}: {large[pid] - small[pid]:.0f} MB, aim {AIM:.0f}")
        assert AIM * 0.9 < large[pid] - small[pid] < AIM + SLACK
