"""Shuffled batches from Parquet, beside other readers: how fast, how well mixed, what is written.

    python benchmarks/lake_peers.py [--rows 500000] [--json FILE]

The files are sorted by their label, which has ten values. Each reader gives one shuffled epoch in batches of
1,024 arrays of 64 floats, with a window or a buffer of a tenth of the table, in a process of its own with one
thread; the medians are of rounds in which all take their turn::

    sparkdl   ``Dataset.from_parquet``, read batch by batch as a task reads it
    loop      pyarrow's ``iter_batches`` over files in random order, and random rows of a buffer
    datasets  Hugging Face ``load_dataset(..., streaming=True)``, ``shuffle(buffer_size=)``, format numpy
    ray       Ray Data's ``iter_batches(local_shuffle_buffer_size=)``, files shuffled, two CPUs

``classes`` is how many labels a batch has on average, of the 10 that a batch of all rows would have, and
``spread`` the standard deviation of a label's share in a batch: 0.0094 for rows that are drawn from the
whole table. ``written`` counts bytes that the reader leaves on disk while it reads, its caches included.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import keeping
import numpy as np
from lake import BATCH, ROW_BYTES, WIDTH, Batches, arrays, batches, manifest_of, write

from sparkdl.data.scan.reader import Reader


def sparkdl_epoch(folder: Path, buffer: int, seed: int) -> Batches:
    """Yield the batches of ``Dataset.from_parquet``."""
    reader = Reader(manifest_of(folder, buffer * ROW_BYTES))
    yield from batches(reader, seed)
    reader.close()


def loop_epoch(folder: Path, buffer: int, seed: int) -> Batches:
    """Yield batches of random rows of a buffer, into whose places the next rows of the files come."""
    random = np.random.default_rng(seed)
    files = sorted(folder.glob("*.parquet"))
    x = np.empty((buffer, WIDTH), np.float32)
    y = np.empty(buffer, np.int64)
    filled = 0
    for n in random.permutation(len(files)):
        for values, labels in arrays(files[n], BATCH):
            if filled + len(labels) <= buffer:
                x[filled : filled + len(labels)], y[filled : filled + len(labels)] = values, labels
                filled += len(labels)
                continue
            chosen = random.choice(filled, len(labels), replace=False)
            yield x[chosen], y[chosen]
            x[chosen], y[chosen] = values, labels
    rest = random.permutation(filled)
    for begin in range(0, filled, BATCH):
        yield x[rest[begin : begin + BATCH]], y[rest[begin : begin + BATCH]]


def datasets_epoch(folder: Path, buffer: int, seed: int) -> Batches:
    """Yield the batches of a streaming data set."""
    from datasets import load_dataset

    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    stream = load_dataset("parquet", data_files=files, split="train", streaming=True, columns=["x", "y"])
    for batch in stream.shuffle(seed=seed, buffer_size=buffer).with_format("numpy").iter(BATCH):
        yield np.stack(batch["x"]), np.asarray(batch["y"])


def ray_epoch(folder: Path, buffer: int, seed: int) -> Batches:
    """Yield the batches of Ray Data."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.read_parquet(str(folder), columns=["x", "y"], shuffle="files")
    options = {"local_shuffle_buffer_size": buffer, "local_shuffle_seed": seed, "batch_format": "numpy"}
    for batch in rows.iter_batches(batch_size=BATCH, **options):
        x = batch["x"]
        yield np.stack(x) if x.dtype == object else x, batch["y"]
    ray.shutdown()


READERS: dict[str, Callable[[Path, int, int], Batches]] = {
    "sparkdl": sparkdl_epoch,
    "loop": loop_epoch,
    "datasets": datasets_epoch,
    "ray": ray_epoch,
}


def measured(name: str, folder: Path, buffer: int, seed: int, answer: Any) -> None:
    """Read an epoch; send what was seen of it."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    own = Path(tempfile.mkdtemp())
    for variable in ("TMPDIR", "HF_HOME", "RAY_TMPDIR"):
        os.environ[variable] = str(own)
    tempfile.tempdir = str(own)
    shares, rows, first, begin = [], 0, 0.0, time.perf_counter()
    for x, y in READERS[name](folder, buffer, seed):
        first = first or time.perf_counter() - begin
        assert x.shape == (len(y), WIDTH)
        rows += len(y)
        if len(y) > BATCH // 2:  # the last one may be small
            shares.append(np.bincount(y, minlength=10) / len(y))
    seconds = time.perf_counter() - begin
    written = sum(path.lstat().st_size for path in own.rglob("*") if path.is_file() and not path.is_socket())
    table = np.array(shares)
    answer.send(
        {
            "rows": rows,
            "rows/s": round((rows - BATCH) / (seconds - first)),
            "first batch, s": round(first, 2),
            "classes": round(float((table > 0).sum(1).mean()), 2),
            "spread": round(float(table.std(0).mean()), 4),
            "written": written,
        }
    )


def alone(name: str, folder: Path, buffer: int, seed: int) -> dict[str, Any]:
    """Measure a reader in a process of its own."""
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=measured, args=(name, folder, buffer, seed, there))
    process.start()
    there.close()
    try:
        found: dict[str, Any] = here.recv()
    finally:
        process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--groups", type=int, default=250)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    names = [name for name in READERS if name in ("sparkdl", "loop") or importlib.util.find_spec(name)]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder, options.rows, options.groups, sorted_by_label=True)
        for number in range(options.times):
            for name in names:
                found[name].append(alone(name, folder, options.rows // 10, number))
    rows = [
        {"reader": name} | {key: statistics.median(each[key] for each in those) for key in those[0]}
        for name, those in found.items()
    ]
    for row in rows:
        print(json.dumps(row))
    keeping.write(options.json, rows)


if __name__ == "__main__":
    main()
