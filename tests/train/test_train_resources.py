"""What tasks are given: cores, GPUs, devices."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark import TaskContext
from support.gpus import one_gpu
from torch import nn

from sparkdl import Dataset, Trainer, session
from sparkdl._spark.jobs import FrameJobs
from sparkdl._spark.tasks import task_resources
from sparkdl.access.classic import task_resource_amounts
from sparkdl.train import MaxIteration
from sparkdl.train.shipped import threads_per_task


def test_amounts_of_task_resources() -> None:
    conf = {
        "spark.task.resource.gpu.amount": "0.5",
        "spark.executor.resource.gpu.amount": "1",
        "spark.x": "y",
    }
    assert task_resource_amounts(conf) == {"gpu": 0.5}


@pytest.mark.slow
@pytest.mark.cluster
def test_one_task_on_each_executor_has_all_its_cores_and_keeps_its_gpu(sessions: Any, tmp_path: Path) -> None:
    spark = sessions.get("local-cluster[2,2,1024]", **one_gpu(tmp_path))
    with Dataset.from_numpy(np.zeros((8, 2), np.float32), spark=spark) as data:
        store = data.store()
        profile = data.access.profile(threads_per_task(store.executors, len(store.partitions)))
        assert profile is not None
        jobs = FrameJobs(spark.sparkContext)
        found = jobs.collect(jobs.stage(store.tokens, _resources, profile=profile))
        assert len({token.executor for token in store.partitions}) == 2
        loss = loss_of_one_step(data)
    assert found == [b"{'gpu': ['0']}"] * 2
    assert loss == 22


@pytest.mark.slow
@pytest.mark.cluster
def test_tasks_of_several_cores_use_them_all(sessions: Any) -> None:
    spark = sessions.get("local-cluster[1,2,1024]", **{"spark.task.cpus": "2"})
    assert session.executors(spark) == session.Executors(1, 2, 1)
    with Dataset.from_numpy(np.zeros((8, 2), np.float32), spark=spark) as data:
        assert loss_of_one_step(data) == 22


def loss_of_one_step(data: Dataset) -> float:
    trainer = Trainer(
        Concurrent(),
        loss=lambda output, _: output.mean(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=8,
        end_when=MaxIteration(1),
        progress=False,
    )
    return float(trainer.fit(data).history[0]["loss"])


class Concurrent(nn.Module):
    """Its output tells how many threads torch uses and how many cores Spark gave the task."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Any) -> Any:
        context = TaskContext.get()
        cores = context.cpus() if context else 0
        return self.weight * 0 + 10 * torch.get_num_threads() + cores


def _resources(_: int, tokens: Any) -> Any:
    list(tokens)
    yield str(task_resources()).encode()
