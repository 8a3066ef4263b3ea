"""Compare a step on a GPU with plain torch on the same device.

    python benchmarks/gpu.py --works resnet50 transformer --json gpu.json

One executor with one task and one GPU. The peer is one process with the same module, rows, batch size and
optimizer, which copies each batch to the device as the task does. Both read the loss of each step.

``ms_per_step`` is wall time: a group's job, and what goes to Spark at its end (weights, optimizer state), are
in it; ``--group`` says how many steps are one. ``ms_in_group`` is what the task itself needs for a step.
``--device cpu`` compares the same on CPUs, which shows whether the script works.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cloudpickle
import keeping
import workloads
from workloads import OPTIMIZERS, Workload, make

from sparkdl import Dataset, Trainer, session
from sparkdl.train import MaxIteration
from sparkdl.train.history import PHASES

cloudpickle.register_pickle_by_value(workloads)  # executors cannot import benchmarks

_BATCHES = {"resnet50": 64, "transformer": 16, "mlp": 128}
_IN_TASK = ("data", "weights_in", "compute", "gradient_out", "update")


def on_spark(args: argparse.Namespace, name: str, work: Workload, precision: str) -> dict[str, Any]:
    """Return the figures of a fit."""
    confs = {"spark.driver.memory": "4g", "spark.executor.memory": "8000m"}
    if args.device == "cuda":
        script = Path(tempfile.mkdtemp()) / "gpus"
        script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["0"]}\'\n')
        script.chmod(0o755)
        for whose in ("worker", "executor"):
            confs[f"spark.{whose}.resource.gpu.amount"] = "1"
            confs[f"spark.{whose}.resource.gpu.discoveryScript"] = str(script)
        confs["spark.task.resource.gpu.amount"] = "1"
    spark = session.builder(args.master, f"benchmark {name}", confs).getOrCreate()
    try:
        with Dataset.from_numpy(work.features, work.label, spark=spark, num_partitions=1) as data:
            data.store()
            begin = time.perf_counter()
            history = (
                Trainer(
                    work.module,
                    loss=work.loss,
                    optimizer=OPTIMIZERS[work.optimizer],
                    batch_size=_BATCHES[name],
                    end_when=MaxIteration(args.group * (args.groups + 1)),
                    iterations_per_job=args.group,
                    precision=precision,
                    progress=False,
                )
                .fit(data)
                .history
            )
            wall = time.perf_counter() - begin
    finally:
        spark.stop()
    rows = history[args.group :]  # the first group warms up
    phases = {name: 1000 * statistics.median(row["phases"][name] for row in rows) for name in PHASES}
    return {
        "ms_per_step": 1000 * statistics.fmean(row["seconds"] for row in rows),
        "phases_ms": {name: round(value, 3) for name, value in phases.items()},
        "fit_seconds": wall,
        "direct": statistics.fmean(row["direct"] for row in rows),
        "losses": [rows[0]["loss"], rows[-1]["loss"]],
    }


def measure(args: argparse.Namespace, name: str, precision: str) -> dict[str, Any]:
    """Return one row."""
    work = make(name, _BATCHES[name], None)
    script = str(Path(__file__).with_name("plain_torch.py"))
    command = [sys.executable, script, name, str(_BATCHES[name]), work.optimizer, "--precision", precision]
    command += ["--device", args.device, "--iterations", str(args.steps), "--threads", str(os.cpu_count())]
    plain = [float(subprocess.check_output(command, text=True))]
    found = on_spark(args, name, work, precision)
    plain.append(float(subprocess.check_output(command, text=True)))
    torch_ms = statistics.fmean(plain)
    in_group = sum(found["phases_ms"][name] for name in _IN_TASK if name in found["phases_ms"])
    return {
        "work": name,
        "precision": precision,
        "torch_ms": plain,
        **found,
        "ms_in_group": in_group,
        "over_torch": found["ms_per_step"] / torch_ms,
        "in_group_over_torch": in_group / torch_ms,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a step on a GPU with plain torch.")
    parser.add_argument("--works", nargs="+", choices=tuple(_BATCHES), default=["resnet50", "transformer"])
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--master", default="local-cluster[1,1,8000]")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=60, help="of plain torch that are measured")
    parser.add_argument("--group", type=int, default=100, help="steps of a job")
    parser.add_argument("--groups", type=int, default=3, help="jobs that are measured, after one")
    parser.add_argument("--json", help="file to write")
    args = parser.parse_args()
    rows: list[keeping.Row] = []
    with keeping.cut_off():
        for name in args.works:
            for precision in args.precisions:
                rows.append(measure(args, name, precision))
                print(rows[-1], flush=True)
                keeping.write(args.json, rows)


if __name__ == "__main__":
    main()
