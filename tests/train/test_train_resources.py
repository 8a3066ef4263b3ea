"""What tasks are given: cores, GPUs, devices."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl import Dataset
from sparkdl._spark.jobs import FrameJobs
from sparkdl._spark.tasks import task_resources
from sparkdl.access.classic import task_resource_amounts
from sparkdl.train.resources import task_profile


def test_amounts_of_task_resources() -> None:
    conf = {
        "spark.task.resource.gpu.amount": "0.5",
        "spark.executor.resource.gpu.amount": "1",
        "spark.x": "y",
    }
    assert task_resource_amounts(conf) == {"gpu": 0.5}


@pytest.mark.cluster
def test_a_profile_keeps_the_tasks_gpu(sessions: Any, tmp_path: Path) -> None:
    script = tmp_path / "gpus"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["0"]}'\n""")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    conf = {
        "spark.worker.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": "1",
        "spark.executor.resource.gpu.discoveryScript": str(script),
        "spark.task.resource.gpu.amount": "0.5",
    }
    spark = sessions.get("local-cluster[2,2,1024]", **conf)
    with Dataset.from_numpy(np.zeros((8, 2), np.float32), spark=spark) as data:
        store = data.store()
        profile = task_profile(data.access, store.executors, len(store.partitions))
        assert profile is not None
        jobs = FrameJobs(spark.sparkContext)
        found = jobs.collect(jobs.stage(store.tokens, _resources, profile=profile))
    assert found == [b"{'gpu': ['0']}"] * 2


def _resources(_: int, tokens: Any) -> Any:
    list(tokens)
    yield str(task_resources()).encode()
