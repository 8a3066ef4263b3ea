"""A partition store three times the executor's heap."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import psutil
import pytest
import torch
from pyspark.sql import functions as F
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.train import MaxIteration

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(3600)]

WIDTH = 1024
ROWS = 3 * 2**30 // (4 * WIDTH)


def test_a_store_of_3_gb_on_a_heap_of_1_gb_trains(sessions: Any) -> None:
    spark = sessions.get("local-cluster[1,1,1024]")  # spark.executor.memory is 1g by default
    df = spark.range(ROWS, numPartitions=24).select(
        F.array_repeat(F.rand(seed=0).cast("float"), WIDTH).alias("x"), (F.col("id") % 2).alias("y")
    )
    with Dataset.from_dataframe(df, features="x", label="y") as data:
        begin = time.monotonic()
        (token,) = data.store().partitions
        built = time.monotonic() - begin
        assert token.nbytes > 3 * 2**30
        result = Trainer(
            nn.Linear(WIDTH, 2),
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.SGD, lr=0.01),
            batch_size=4096,
            end_when=MaxIteration(30),
            progress=False,
        ).fit(data)
        workers = [
            child.memory_full_info().uss
            for child in psutil.Process().children(recursive=True)
            if "pyspark.worker" in child.cmdline()
        ]
    print(
        json.dumps(
            {
                "store_gb": round(token.nbytes / 2**30, 2),
                "build_seconds": round(built, 1),
                "largest_worker_mb": round(max(workers) / 2**20),
                "ms_per_iteration": round(1000 * sorted(result.history.column("seconds"))[15], 1),
            }
        )
    )
    assert len(result.history) == 30
    assert max(workers) < 1.5 * 2**30
