"""Rows from Parquet where they lie: how fast an epoch is read, what is written, the first step, memory.

    python benchmarks/lake.py [--rows 2000000] [--folder DIR] [--json FILE]

Beside each other, in turn and in one process: a plain scan of the same columns by pyarrow with one thread,
and an epoch of ``Dataset.from_parquet`` read batch by batch as a task reads it, shuffled with a window of a
tenth of the table; then the same with a cache of row groups, which the first epoch writes. Then a fit in
``local[2]``: seconds until its first step, and bytes that are in the executors' folders then.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from sparkdl.compute.memory import keep_freed_memory
from sparkdl.data.columns import ColumnPlan
from sparkdl.data.scan.cache import RowGroupCache
from sparkdl.data.scan.files import File
from sparkdl.data.scan.manifest import ScanManifest, streams_for
from sparkdl.data.scan.reader import Reader
from sparkdl.data.streams import FROM_THE_BEGINNING

WIDTH = 64
COLUMNS = (
    ColumnPlan("features", "x", dtype="float32", shape=(WIDTH,)),
    ColumnPlan("label", "y", dtype="int64", shape=()),
)
ROW_BYTES = sum(column.row_bytes for column in COLUMNS)
BATCH = 1024

Batches = Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]


def write(folder: Path, rows: int, groups: int, files: int = 8, *, sorted_by_label: bool = False) -> None:
    """Write a table of 64 floats and a class in each row."""
    generator = np.random.default_rng(0)
    per_file = rows // files
    for number in range(files):
        values = generator.normal(size=(per_file, WIDTH)).astype(np.float32)
        label = generator.integers(0, 10, per_file)
        if sorted_by_label:
            label = (number * per_file + np.arange(per_file)) * 10 // rows
        lists = pa.ListArray.from_arrays(
            pa.array(np.arange(per_file + 1, dtype=np.int32) * WIDTH), pa.array(values.reshape(-1))
        )
        table = pa.table(
            {"x": lists, "y": pa.array(label), "other": pa.array(generator.normal(size=per_file))}
        )
        parquet.write_table(table, folder / f"part-{number:05d}.parquet", row_group_size=rows // groups)


def manifest_of(folder: Path, window: int) -> ScanManifest:
    """Return what tasks find out about a folder."""
    files, file, number, rows = [], [], [], []
    for index, path in enumerate(sorted(folder.glob("*.parquet"))):
        status, footer = path.stat(), parquet.read_metadata(path)
        files.append(File(str(path), status.st_size, status.st_mtime_ns))
        for group in range(footer.num_row_groups):
            file.append(index)
            number.append(group)
            rows.append(footer.row_group(group).num_rows)
    found = ScanManifest(str(folder), tuple(files), *(np.array(values) for values in (file, number, rows)))
    return found.resolved(COLUMNS, window, streams_for(found.rows, ROW_BYTES, window, len(COLUMNS)))


def plain(folder: Path) -> float:
    """Return rows per second of a scan by one thread, which makes arrays of what it decodes."""
    begin, rows = time.perf_counter(), 0
    for path in sorted(folder.glob("*.parquet")):
        for _, labels in arrays(path, 1 << 15):
            rows += len(labels)
    return rows / (time.perf_counter() - begin)


def arrays(path: Path, rows: int) -> Batches:
    """Yield so many rows of a file at a time, decoded by one thread."""
    for batch in parquet.ParquetFile(path).iter_batches(rows, columns=["x", "y"], use_threads=False):
        values = batch.column("x").flatten().to_numpy(zero_copy_only=False).reshape(-1, WIDTH)
        yield values, batch.column("y").to_numpy(zero_copy_only=False)


def batches(reader: Reader, number: int) -> Batches:
    """Yield the batches of an epoch, as the one task of a fit reads them."""
    rows = reader.manifest.layout.rows
    steps = -(-rows // BATCH)
    for step in range(steps):
        slots = FROM_THE_BEGINNING.slots(rows, steps, step)
        found = reader.in_epoch(slots, 0, number, True, 0, 1).read()
        yield found["features"], found["label"]


def epoch(manifest: ScanManifest, number: int, cache: RowGroupCache | None = None) -> tuple[float, float]:
    """Return rows per second of an epoch that is read batch by batch, and rows decoded per row."""
    reader, rows = Reader(manifest, cache=cache), manifest.layout.rows
    begin = time.perf_counter()
    seen = sum(len(labels) for _, labels in batches(reader, number))
    seconds = time.perf_counter() - begin
    reader.close()
    assert seen == rows
    return rows / seconds, reader.decoded / rows


def first_step(folder: Path, window: int) -> dict[str, Any]:
    """Return the seconds until the first step of a fit, and the bytes that are on the executors then."""
    import torch

    from sparkdl import Dataset, session
    from sparkdl.train import Hook, MaxIteration, Trainer

    local = tempfile.mkdtemp()
    spark = session.builder(
        "local[2]", "lake", {"spark.local.dir": local, "spark.ui.enabled": "false"}
    ).getOrCreate()

    class Seen(Hook):
        def on_iteration_end(self, run: Any) -> None:
            if run.state.iteration == 1:
                self.after = time.perf_counter()
                stored = [path for path in Path(local).rglob("sparkdl/*/*/*") if path.is_file()]
                self.stored = sum(path.stat().st_size for path in stored)
                self.manifests = sum(path.stat().st_size for path in stored if path.name == "scan.bin")

    def fit() -> dict[str, Any]:
        seen, begin = Seen(), time.perf_counter()
        with Dataset.from_parquet(
            folder, features="x", label="y", window=window, num_partitions=2, spark=spark
        ) as data:
            Trainer(
                torch.nn.Linear(WIDTH, 10),
                loss=torch.nn.CrossEntropyLoss(),
                optimizer=partial(torch.optim.SGD, lr=0.1),
                batch_size=BATCH,
                end_when=MaxIteration(2),
                iterations_per_job=1,
                hooks=[seen],
                progress=False,
            ).fit(data)
        return {
            "seconds": round(seen.after - begin, 2),
            "bytes of rows written": seen.stored - seen.manifests,
            "bytes of manifests": seen.manifests,
        }

    try:
        return {"first fit of a session": fit(), "second fit": fit()}
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--without-spark", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        folder.mkdir(exist_ok=True)
        if not any(folder.glob("*.parquet")):
            made_by = get_context("spawn").Process(target=write, args=(folder, options.rows, options.groups))
            made_by.start()  # a process of its own: its memory is not to count
            made_by.join()
        window = options.rows * ROW_BYTES // 10
        manifest = manifest_of(folder, window)
        keep_freed_memory()  # as tasks do
        warm = Reader(manifest)
        warm.in_order(0, 10).read()
        warm.close()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        epoch(manifest, 0)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        ratios, speeds, decoded = [], [], 0.0
        by_cache: list[tuple[float, float]] = []
        for number in range(options.times):
            scan = plain(folder)
            speed, decoded = epoch(manifest, number)
            speeds.append((scan, speed))
            ratios.append(speed / scan)
            with tempfile.TemporaryDirectory() as name:
                cache = RowGroupCache([Path(name)], 1 << 40)
                first, second = (epoch(manifest, number + n, cache)[0] / scan for n in range(2))
                by_cache.append((first, second))
        found: dict[str, Any] = {
            "rows": manifest.layout.rows,
            "row groups": len(manifest.rows),
            "bytes of a row": ROW_BYTES,
            "bytes of files": sum(file.size for file in manifest.files),
            "window": window,
            "streams": manifest.streams,
            "rows of a chunk": manifest.window,
            "plain scan, rows/s": [round(scan) for scan, _ in speeds],
            "epoch, rows/s": [round(speed) for _, speed in speeds],
            "ratio": [round(ratio, 2) for ratio in ratios],
            "median ratio": round(statistics.median(ratios), 2),
            "with a cache, first epoch, ratio": [round(first, 2) for first, _ in by_cache],
            "with a cache, later epochs, ratio": [round(later, 2) for _, later in by_cache],
            "rows decoded per row": round(decoded, 3),
            "bytes of memory for an epoch": after - before,
            "load": os.getloadavg()[0],
        }
        if not options.without_spark:
            found["first step"] = first_step(folder, window)
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
