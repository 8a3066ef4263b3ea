"""Counters of ids that wait for their row: memory, ids that get it too early, time, and bytes of changes.

    python benchmarks/counters.py --ids 6000000

*Once*: so many ids are met once each, which is what fills counters most; then a million others. It tells the
bytes of memory for each id, of a process of its own, and the share of the others that are counted too high.
*Skewed*: ids are drawn with a Zipf distribution, and the counters are for all that were drawn. It tells the
share of ids with fewer than ``min_count`` look-ups that have a row all the same, the microseconds of a
distinct id in a step, and the bytes that a step changes for each of its distinct ids.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import OwnedRows
from sparkdl.keyed.bloom import CountingBloom
from sparkdl.keyed.mix import mix
from sparkdl.keyed.table import KeyedTable, TableRule
from sparkdl.wire import frame

MIN_COUNT = 5
BATCH = 20_000


def table(counters: CountingBloom | None, min_count: int = MIN_COUNT) -> KeyedTable:
    return KeyedTable(TableRule(8, "float32", 0, 0.05, min_count, counters=counters))


def numbered(first: int, count: int) -> Any:
    """Return ids by number, sorted."""
    return np.sort(mix(np.arange(first, first + count).view(np.uint64)).view(np.int64))


def once(counters: CountingBloom | None, size: int) -> tuple[float, float]:
    """Return bytes for each id, and the share of further ids that are counted too high."""
    before = _resident()
    of = table(counters)
    for iteration, first in enumerate(range(0, size, BATCH)):
        count = min(BATCH, size - first)
        of.count(numbered(first, count), np.ones(count, np.int64), iteration, lambda rows: {})
    nbytes = (_resident() - before) / size
    # All others at once: they are counted before any of them is in the counters.
    ids = numbered(size, 1_000_000)
    return nbytes, of.count(ids, np.full(len(ids), MIN_COUNT - 1), iteration, lambda rows: {}) / len(ids)


def _resident() -> int:
    """Return the bytes of memory of this process."""
    gc.collect()
    with open("/proc/self/statm") as told:
        return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def drawn(size: int, steps: int) -> Iterator[tuple[Any, Any]]:
    """Yield the ids of steps, and how often each is looked up."""
    random = np.random.default_rng(0)
    for _ in range(steps):
        numbers = random.zipf(1.2, BATCH) % size
        yield np.unique(mix(numbers.astype(np.uint64)).view(np.int64), return_counts=True)


def skewed(counters: CountingBloom | None, exact: Any, size: int, steps: int) -> tuple[float, float, float]:
    """Return the share of rare ids that have a row, microseconds and bytes for each distinct id of a step."""
    of, seconds, nbytes, distinct = table(counters), 0.0, 0, 0
    for iteration, (ids, counts) in enumerate(drawn(size, steps), 1):
        begin = time.perf_counter()
        of.count(ids, counts, iteration, lambda rows: {})
        seconds += time.perf_counter() - begin
        if iteration > steps - 20:
            change = of.changes(ids, ids[:0], iteration)
            nbytes += len(frame.join(messages.encode(OwnedRows({"table": change}))))
            distinct += len(ids)
    all_ids, totals, looked_up = exact
    rare = all_ids[totals < MIN_COUNT]
    return float(of.look_up(rare)[0].mean()), seconds * 1e6 / looked_up, nbytes / distinct


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=6_000_000, help="distinct ids")
    parser.add_argument("--steps", type=int, default=200, help="steps with skewed ids")
    args = parser.parse_args()
    steps = list(drawn(args.ids, args.steps))
    ids, at = np.unique(np.concatenate([own for own, _ in steps]), return_inverse=True)
    totals = np.bincount(at, np.concatenate([counts for _, counts in steps])).astype(np.int64)
    exact = ids, totals, sum(len(own) for own, _ in steps)
    print(f"skewed: {len(ids):,} ids, {(totals < MIN_COUNT).sum():,} of them rare")
    for error in (None, 0.001, 0.01, 0.1, 0.5):
        filled = None if error is None else CountingBloom(args.ids, error)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            nbytes, high = pool.apply(once, (filled, args.ids))
        own = None if error is None else CountingBloom(len(ids), error)
        early, micros, changed = skewed(own, exact, args.ids, args.steps)
        print(
            f"error={error}: {nbytes:.1f} bytes per id, {high:.4f} too high, {early:.5f} too early, "
            f"{micros:.2f} us, {changed:.0f} bytes changed",
            flush=True,
        )


if __name__ == "__main__":
    main()
