"""Measure how many records a transform scores per second, and print one JSON line per model.

    python benchmarks/inference.py --master 'local[2]' --models mlp resnet20 --column array

The rows lie in Spark's memory (a cached DataFrame), and the columns that a classifier adds go to a
sink that drops them. ``torch_records_per_second`` is a plain loop over the same rows, in batches of
the same size in the memory of one process, with as many torch threads as the master has cores or
with one, whichever is faster. They take turns, so that a busy machine slows all alike; what counts is
the median turn of each. ``ratio`` divides transform and loop; the transform also reads the rows from
Spark's memory, moves them to Python and the results back. ``best_ratio`` divides the best turns.

``jvm_us``, ``python_us`` and ``torch_us`` are microseconds of processor time per record, medians as well:
of the JVM, of the Python workers, and of the loop with one thread. ``cpu_ratio`` divides torch and the sum
of the others. On a busy machine it is the one that can be trusted.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from torch import nn

from sparkdl import session
from sparkdl.ml import TorchClassificationModel
from sparkdl.nn import ResNet20

SHAPES: dict[str, tuple[int, ...]] = {"mlp": (784,), "resnet20": (3, 32, 32)}
_WARM_UP = 8
ROWS = {"mlp": 160_000, "resnet20": 2_000}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the throughput of a transform.")
    parser.add_argument("--master", default="local[2]", help="Spark master (local[2])")
    parser.add_argument("--models", nargs="+", choices=tuple(SHAPES), default=list(SHAPES))
    parser.add_argument("--column", choices=("array", "vector", "binary"), default="array")
    parser.add_argument("--batch", type=int, help="rows per forward pass; 1 MiB of them by default")
    parser.add_argument(
        "--arrow", help="bytes per Arrow batch, as in 64m; what session.builder sets, if not given"
    )
    parser.add_argument("--rows", type=int, help="records; 160000 for mlp and 2000 for resnet20 by default")
    parser.add_argument("--turns", type=int, default=9, help="turns that count, after eight to warm up (9)")
    args = parser.parse_args()
    conf = {"spark.driver.memory": "4g", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = session.builder(args.master, "inference", conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if args.arrow:
        spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", args.arrow)
    cores = int(found.group(1)) if (found := re.fullmatch(r"local\[(\d+)\]", args.master)) else 1
    for name in args.models:
        print(json.dumps(measure(spark, name, cores, args)), flush=True)
    spark.stop()


def measure(spark: SparkSession, name: str, cores: int, args: argparse.Namespace) -> dict[str, Any]:
    shape, rows = SHAPES[name], args.rows or ROWS[name]
    torch.manual_seed(0)
    module = make_module(name).eval()
    values = np.random.default_rng(0).standard_normal((rows, int(np.prod(shape))), dtype=np.float32)
    batch = args.batch or max(32, min(4096, (1 << 20) // values[0].nbytes))
    df = make_rows(spark, values, cores, args.column)
    params = {"inputShapes": [shape], "inputTypes": ["float32"], "inferenceBatchSize": batch}
    model = TorchClassificationModel.from_module(module, featuresCol="x", **params)
    scored = model.transform(df)
    tensors = torch.from_numpy(values.reshape(rows, *shape))

    def loop(threads: int) -> None:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            for start in range(0, rows, batch):
                module(tensors[start : start + batch])

    def transform() -> None:
        scored.write.format("noop").mode("overwrite").save()

    work = {"spark": transform, "one": partial(loop, 1), "all": partial(loop, cores)}
    turns: dict[str, list[Turn]] = {side: [] for side in work}
    for turn in range(args.turns + _WARM_UP):
        for side, run in work.items():
            done = timed(run)
            turns[side] += [done] if turn >= _WARM_UP else []
    df.unpersist()
    seconds = {side: median(turn.seconds for turn in done) for side, done in turns.items()}
    best = {side: min(turn.seconds for turn in done) for side, done in turns.items()}
    jvm, python = (median(getattr(turn, kind) for turn in turns["spark"]) for kind in ("jvm", "python"))
    torch_cpu = median(turn.here for turn in turns["one"])
    torch_seconds = min(seconds["one"], seconds["all"])
    return {
        "model": name,
        "column": args.column,
        "parameters": sum(p.numel() for p in module.parameters()),
        "records": rows,
        "cores": cores,
        "batch": batch,
        "arrow": spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch", None),
        "records_per_second": round(rows / seconds["spark"]),
        "torch_records_per_second": round(rows / torch_seconds),
        "ratio": round(torch_seconds / seconds["spark"], 3),
        "best_ratio": round(min(best["one"], best["all"]) / best["spark"], 3),
        "jvm_us": round(1e6 * jvm / rows, 1),
        "python_us": round(1e6 * python / rows, 1),
        "torch_us": round(1e6 * torch_cpu / rows, 1),
        "cpu_ratio": round(torch_cpu / (jvm + python), 3),
    }


def make_module(name: str) -> nn.Module:
    if name == "resnet20":
        return ResNet20()
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers)


def make_rows(spark: SparkSession, values: Any, partitions: int, column: str) -> DataFrame:
    """Put rows into Spark's memory."""
    flat, width = pa.array(values.reshape(-1)), values.shape[1]
    offsets = np.arange(0, values.size + 1, width, dtype=np.int32)
    if column == "binary":
        bits = (offsets * 4).astype(np.int32)
        x = pa.BinaryArray.from_buffers(
            pa.binary(), len(values), [None, pa.py_buffer(bits), flat.buffers()[1]]
        )
    else:
        x = pa.ListArray.from_arrays(pa.array(offsets), flat)
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"id": np.arange(len(values)), "x": x}), f"{folder}/rows.parquet")
        df = spark.read.parquet(folder).repartition(partitions)
        if column == "vector":
            df = df.withColumn("x", array_to_vector(col("x")))
        df = df.cache()
        df.count()
    return df


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds of a piece of work, and of processor time in this process, Spark's JVM and Python workers."""

    seconds: float
    here: float
    jvm: float
    python: float


def timed(work: Callable[[], None]) -> Turn:
    """Measure a piece of work."""
    before, start = cpu_seconds(), time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return Turn(seconds, *(after - then for after, then in zip(cpu_seconds(), before, strict=True)))


def cpu_seconds() -> tuple[float, float, float]:
    """Return the processor time of this process, of the JVM and of the Python workers that still run."""
    here = psutil.Process()
    own = here.cpu_times()
    jvm = python = 0.0
    for process in here.children(recursive=True):
        try:
            times, name = process.cpu_times(), process.name()
        except psutil.NoSuchProcess:
            continue
        if name.startswith("java"):
            jvm += times.user + times.system
        else:
            python += times.user + times.system
    return own.user + own.system, jvm, python


if __name__ == "__main__":
    main()
