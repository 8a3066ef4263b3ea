"""Measure what Spark takes for an iteration in which nobody computes: the floor under the other benchmarks.

    python benchmarks/bare.py --bytes 100 2.7e6

The jobs are those of sparkdl's groups, chains of stages with an exchange of all with all between them,
made by the same code. A task reads what arrives and sends so many bytes to each other partition.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from sparkdl import Dataset, session
from sparkdl._spark.frames import key
from sparkdl._spark.jobs import FrameJobs
from sparkdl.access.in_pieces import RESULT
from sparkdl.access.stages import StageChain
from sparkdl.compute.memory import exempt_objects, keep_freed_memory
from sparkdl.wire import frame
from sparkdl.wire.frame import Parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

cloudpickle.register_pickle_by_value(sys.modules[__name__])

_STAGES = 25


@dataclass(frozen=True)
class Send:
    """Task that sends a frame of so many bytes to each other partition, and an empty one to its own."""

    partitions: int
    nbytes: int

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterator[bytes]:
        """Yield two keyed frames for each partition, as a chain expects."""
        deque(frames, maxlen=0)
        # One per process: new memory would cost more than sending it.
        kept: dict[int, bytes] = sys.__dict__.setdefault("_sparkdl_bare", {})
        if self.nbytes not in kept:
            if not kept:  # as sparkdl's workers do
                keep_freed_memory()
                exempt_objects()
            kept.clear()
            kept[self.nbytes] = b"\1" * self.nbytes
        for n in range(self.partitions):
            yield key(n)
            yield kept[self.nbytes] if n != partition else b""
            yield key(n)
            yield b""


def end(_: int, frames: Iterator[bytes]) -> Iterator[bytes | Parts]:
    """Task of the last stage: read what arrives, and tell the driver nothing."""
    deque(frames, maxlen=0)
    yield key(RESULT)
    yield frame.pack({"kind": "nothing"})


def milliseconds_per_stage(spark: SparkSession, data: Dataset, nbytes: int, seconds: float) -> float:
    """Return the median of chains in the second half of the time.

    Args:
        spark: the session.
        data: its store's partitions are those of the chain.
        nbytes: bytes of a frame.
        seconds: how long to measure, and to warm up.
    """
    store = data.store()
    partitions = len(store.partitions)
    tasks: list[Any] = [*[Send(partitions, nbytes)] * _STAGES, end]
    chain = StageChain(
        FrameJobs(spark.sparkContext), store.tokens, len(store.partitions), None, gathers=False
    )
    times: list[float] = []
    begin = time.monotonic()
    try:
        while len(times) < 4 or time.monotonic() - begin < seconds:
            started = time.perf_counter()
            chain.run(tasks, [], "bare stages", nbytes)
            times.append(1000 * (time.perf_counter() - started) / _STAGES)
    finally:
        chain.release()
    return statistics.median(times[len(times) // 2 :])


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure chains of stages in which nobody computes.")
    parser.add_argument("--master", default="local-cluster[2,1,4096]")
    parser.add_argument("--bytes", type=float, nargs="+", default=[100, 2.7e6], help="of a frame")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each size in each round")
    parser.add_argument("--conf", nargs="+", default=[], metavar="NAME=VALUE", help="further Spark confs")
    args = parser.parse_args()
    conf = dict(pair.split("=", 1) for pair in args.conf)
    spark = session.builder(args.master, "benchmark bare", conf).getOrCreate()
    try:
        rows = np.zeros((100, 1), np.float32)
        with Dataset.from_numpy(rows, spark=spark) as data:
            for turn in range(args.rounds):
                for nbytes in map(int, args.bytes):
                    took = milliseconds_per_stage(spark, data, nbytes, args.seconds)
                    row = {"round": turn, "bytes": nbytes, "ms_per_stage": round(took, 1)}
                    print(json.dumps(row), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
