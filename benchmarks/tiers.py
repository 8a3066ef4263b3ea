"""What a row of an embedding variable costs its owner, by size and skew of the table; needs no Spark.

    python benchmarks/tiers.py cost --json cost.json --picture cost.png
    python benchmarks/tiers.py torch
    python benchmarks/tiers.py disk

One owner does what it does in a training: it counts the ids of a batch, sends their rows, and updates them
with ``SparseAdam``, as in ``sparkdl/allreduce/plans/owned_rows.py``. Ids have Zipf's distribution.

``cost``: the table is some times as large as the bound for memory, each case in a process of its own.
``memory`` is what the process has come to have since the table was empty, without the batches, over the
bound. ``hot`` is the share of the rows of a batch that are in memory.

``torch``: rows looked up and updated in a second, compared with ``EmbeddingBag(sparse=True)`` and
``SparseAdam``, both with one thread, on a table that fits in memory. The two take turns.

``disk``: reading records of the file that are on the disk alone, one at a time and many at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl.allreduce.directives import Directives
from sparkdl.allreduce.messages import RowGradients
from sparkdl.allreduce.update.table import beginning, update_table
from sparkdl.compute.lookup import RowGradient
from sparkdl.keyed.memory import RowMemory
from sparkdl.keyed.mix import mix
from sparkdl.keyed.table import KeyedTable, TableRule
from sparkdl.optim.rule import UpdateRule
from sparkdl.optim.spec import optimizer_spec

WIDTH, RECORD = 16, 3 * 16 * 4
Ids = np.ndarray[Any, np.dtype[np.int64]]


def zipf(random: np.random.Generator, rows: int, skew: float, count: int) -> Ids:
    """Return numbers below ``rows``, of which small ones are frequent; all equally likely if skew is 0."""
    uniform = random.random(count)
    if not skew:
        return (uniform * rows).astype(np.int64)
    end, power = rows + 1.0, 1 - skew
    drawn = end**uniform if power == 0 else ((end**power - 1) * uniform + 1) ** (1 / power)
    return np.minimum(drawn.astype(np.int64), rows) - 1


def ids_of(numbers: Ids) -> Ids:
    """Return an id for each number; ids that are used equally often are not neighbours."""
    return mix(numbers.view(np.uint64)).view(np.int64)


class Owner:
    """An owner of a table, which trains.

    Args:
        memory: bounds its memory.
    """

    def __init__(self, memory: RowMemory | None) -> None:
        layer = nn.Linear(1, 1, bias=False)
        spec, _ = optimizer_spec(partial(torch.optim.SparseAdam, lr=0.01), layer, ())
        self.rule = UpdateRule(optimizer=spec)
        self.table = KeyedTable(TableRule(WIDTH, "float32", 0, 0.05), memory)
        self.iteration = 0

    def step(self, asked: Ids, rows_of: Callable[[], Any] = lambda: None) -> int:
        """Look the rows of a batch up, and update them; return how many there are."""
        table = self.table
        ids, counts = np.unique(asked, return_counts=True)
        table.count(ids, counts, self.iteration, beginning(self.rule, 0, table))
        rows_of()
        _, rows = table.look_up(ids)
        gradients = [RowGradients(0, 1.0, {"table": RowGradient(ids, rows)})]
        directives = Directives(self.rule.optimizer.defaults())
        update_table(table, "table", 0, self.rule, gradients, directives, self.iteration)
        self.iteration += 1
        return len(ids)
