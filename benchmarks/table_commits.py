"""What a commit, or an incremental checkpoint, of an embedding variable costs by the rows that have changed.

    python benchmarks/table_commits.py --rows 1000000 --changes 100 5000 100000 --json commits.json

A table with the state of Adam, as an owner has it. A commit is the frame that the owner hands to Spark, and
the driver gets. ``restore`` is how long it takes to put the changes above all rows again. Needs no Spark.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from typing import Any

import keeping
import numpy as np

from sparkdl.allreduce import messages
from sparkdl.allreduce.messages import OwnedRows
from sparkdl.keyed.entries import ROW, merged
from sparkdl.keyed.table import KeyedTable, TableRule
from sparkdl.wire import frame
from sparkdl.wire.frame import Array


def fresh(rows: Array) -> dict[str, Array]:
    """Return the state of new rows."""
    return {"exp_avg": np.zeros_like(rows), "exp_avg_sq": np.zeros_like(rows)}


def commit(table: KeyedTable, since: int) -> tuple[int, float]:
    """Return the bytes of a commit, and the seconds it takes to make it."""
    begin = time.perf_counter()
    data = frame.join(messages.encode(OwnedRows({"table": table.changed(since)})))
    return len(data), time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--changes", type=int, nargs="+", default=[100, 5_000, 100_000])
    parser.add_argument("--json", help="where to write the rows")
    args = parser.parse_args()
    random = np.random.default_rng(0)
    ids = np.unique(random.integers(-(2**62), 2**62, args.rows))
    table = KeyedTable(TableRule(args.width, "float32", 0, 0.05))
    rows: list[dict[str, Any]] = []
    for iteration, count in enumerate([len(ids), *args.changes]):
        own = ids if not iteration else random.choice(ids, count, replace=False)
        before = table.entries()
        table.count(own, np.ones(len(own), np.int64), iteration, fresh)
        table.update(own, {ROW: table.look_up(own)[1], **fresh(table.look_up(own)[1])}, fresh, iteration)
        nbytes, seconds = commit(table, iteration)
        begin = time.perf_counter()
        if iteration:
            merged([before, table.changed(iteration)])
        rows.append(
            {
                "rows": len(table),
                "changed": count,
                "bytes": nbytes,
                "share": round(nbytes / (rows[0]["bytes"] if rows else nbytes), 5),
                "commit_ms": round(1000 * seconds, 2),
                "restore_ms": round(1000 * (time.perf_counter() - begin), 1) if iteration else None,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )
    for row in rows:
        print(json.dumps(row))
    keeping.write(args.json, rows)


if __name__ == "__main__":
    main()
