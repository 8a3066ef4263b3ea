"""Shuffled batches from Parquet, beside other readers: how fast, how well mixed, what is written.

    python benchmarks/lake_peers.py [--rows 500000] [--json FILE]

The files are sorted by their label, which has ten values. Each reader gives one shuffled epoch in batches of
1,024 arrays of 64 floats, with a window or a buffer of a tenth of the table, in a process of its own with one
thread; the medians are of rounds in which all take their turn::

    sparkdl   ``Dataset.from_parquet``, read batch by batch as a task reads it
    loop      pyarrow's ``iter_batches`` over files in random order, and random rows of a buffer
    torch     an ``IterableDataset`` with such a buffer, row by row, in torch's ``DataLoader``
    store     ``Dataset.from_torch`` of a map-style data set over the files' row groups: Spark starts, and
              writes the rows to a store before the first batch. An ``IterableDataset`` it does not take
    datasets  Hugging Face ``load_dataset(..., streaming=True)``, ``shuffle(buffer_size=)``, format numpy
    ray       Ray Data's ``iter_batches(local_shuffle_buffer_size=)``, files shuffled, two CPUs

``classes`` is how many labels a batch has on average, of the 10 that a batch of all rows would have, and
``spread`` the standard deviation of a label's share in a batch: 0.0094 for rows that are drawn from the
whole table. ``written`` counts bytes that the reader leaves on disk while it reads, its caches included. The
first batch has the start of what the reader needs in it, rows per second only what comes after it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from bisect import bisect
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import keeping
import numpy as np
from lake import BATCH, ROW_BYTES, WIDTH, Batches, arrays, batches, manifest_of, write
from pyarrow import parquet

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


def torch_epoch(folder: Path, buffer: int, seed: int) -> Batches:
    """Yield the batches of a ``DataLoader``."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    torch.set_num_threads(1)

    class Rows(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            random = np.random.default_rng(seed)
            files = sorted(folder.glob("*.parquet"))
            places: list[Any] = []
            for n in random.permutation(len(files)):
                for values, labels in arrays(files[n], BATCH):
                    for row in zip(torch.tensor(values), torch.tensor(labels), strict=True):
                        if len(places) < buffer:
                            places.append(row)
                            continue
                        place = int(random.integers(buffer))
                        yield places[place]
                        places[place] = row
            for place in random.permutation(len(places)):
                yield places[place]

    for x, y in DataLoader(Rows(), batch_size=BATCH):
        yield x.numpy(), y.numpy()


def store_epoch(folder: Path, buffer: int, seed: int) -> Batches:
    """Yield the batches of ``Dataset.from_torch``, as the one task of a fit reads them."""
    from sparkdl import Dataset, session
    from sparkdl.data.sampler import EpochPlace

    class RowGroups:
        """A map-style data set over Parquet files, which has one row group in memory."""

        def __init__(self, folder: Path) -> None:
            self._groups: list[tuple[Path, int]] = []
            self._ends = [0]
            for path in sorted(folder.glob("*.parquet")):
                footer = parquet.read_metadata(path)
                for group in range(footer.num_row_groups):
                    self._groups.append((path, group))
                    self._ends.append(self._ends[-1] + footer.row_group(group).num_rows)
            self._read: tuple[int, Any, Any] = (-1, None, None)

        def __len__(self) -> int:
            return self._ends[-1]

        def __getitem__(self, row: int) -> tuple[Any, Any]:
            index = bisect(self._ends, row) - 1
            if self._read[0] != index:
                path, group = self._groups[index]
                found = parquet.ParquetFile(path).read_row_group(group, ["x", "y"], use_threads=False)
                x, y = (found.column(name).combine_chunks() for name in ("x", "y"))
                self._read = index, x.flatten().to_numpy().reshape(-1, WIDTH), y.to_numpy()
            at = row - self._ends[index]
            return self._read[1][at], self._read[2][at]

    confs = {"spark.local.dir": tempfile.mkdtemp(), "spark.ui.enabled": "false"}
    spark = session.builder("local[1]", "lake-peers", confs).getOrCreate()
    # Neither is released before the process ends: what was written is counted after the last batch.
    (token,) = Dataset.from_torch(RowGroups(folder), spark=spark, num_partitions=1).store().partitions
    steps = -(-token.rows // BATCH)
    for step in range(steps):
        found = EpochPlace(0, step, steps, token.rows).rows(token, seed, True).read()
        yield found["features"], found["label"]


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
    "torch": torch_epoch,
    "store": store_epoch,
    "datasets": datasets_epoch,
    "ray": ray_epoch,
}


OWN = ("sparkdl", "loop", "torch", "store")
"""Readers that need no package of their name."""


def measured(name: str, folder: Path, buffer: int, seed: int, own: Path, answer: Any) -> None:
    """Read an epoch, with a folder of its own for what is written; send what was seen of it."""
    import pyarrow as pa

    pa.set_cpu_count(1)
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
    # A JVM may outlive its program for a moment, and remove files itself.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
        process = context.Process(target=measured, args=(name, folder, buffer, seed, Path(own), there))
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
    names = [name for name in READERS if name in OWN or importlib.util.find_spec(name)]
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
