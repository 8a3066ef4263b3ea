"""What a Python worker holds at its peak: a slice with the optimizer's state, two copies of the weights."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn

from sparkdl import Dataset, Trainer
from sparkdl.train import MaxIteration

SLICES = 2
PARAMETERS = 10_000_000
AIM = (4 / SLICES + 2) * 4 * PARAMETERS  # bytes
SLACK = 40 << 20
"""For pieces on their way and holes between them."""


class Flat(nn.Module):
    """One parameter, whose gradient takes no memory of its own: the module's apart, there is nothing else."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numel))

    def forward(self, rows: Tensor) -> Tensor:
        return self.weight.sum() * rows


def mean_output(output: Tensor, _: Tensor) -> Tensor:
    return output.mean()


def peaks_of_a_fit(spark: Any, numel: int) -> dict[int, int]:
    """Return the most memory, in bytes, that each worker of the executors uses in a fit."""
    rows = np.ones((16, 1), np.float32)
    with Dataset.from_numpy(rows, spark=spark, num_partitions=SLICES) as data:
        data.store()
        for process in workers():
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # its peak begins at what it uses now
        Trainer(
            Flat(numel),
            loss=mean_output,
            optimizer=torch.optim.Adam,
            batch_size=16,
            end_when=MaxIteration(12),
            exchange="gather",
            iterations_per_job=4,
            progress=False,
        ).fit(data)
        return {process.pid: peak(process) for process in workers()}


def workers() -> list[psutil.Process]:
    """Return the Python workers, without the daemons that start them."""
    daemons = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # of executors that other tests have killed
            if "pyspark.daemon" in " ".join(process.cmdline()):
                daemons.append(process)
    return [process for process in daemons if process.ppid() in {daemon.pid for daemon in daemons}]


def peak(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (kilobytes,) = [int(line.split()[1]) for line in status if line.startswith("VmHWM:")]
    return kilobytes << 10


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_a_worker_holds_four_slices_and_two_copies_of_the_weights(cluster: Any) -> None:
    small, large = (peaks_of_a_fit(cluster, numel) for numel in (1000, PARAMETERS))
    common = small.keys() & large.keys()
    assert len(common) == SLICES
    for pid in common:
        assert AIM * 0.9 < large[pid] - small[pid] < AIM + SLACK
