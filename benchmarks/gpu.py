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
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import keeping
import numpy as np
import torch
from torch import nn

from sparkdl import Dataset, Trainer, session
from sparkdl.nn.models.resnet import ResNet
from sparkdl.train import MaxIteration
from sparkdl.train.history import PHASES

_WORDS, _LENGTH = 16_000, 256
SGD, ADAM = partial(torch.optim.SGD, lr=0.01, momentum=0.9), partial(torch.optim.Adam, lr=1e-4)


class Images(nn.Module):
    """ResNet-50 for images of bytes, which a batch's copy to the device is a quarter of."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ResNet(50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.net(x.float() / 255 - 0.5)  # type: ignore[no-any-return]


class Words(nn.Module):
    """A transformer of 12 layers of 768 and 16,000 words: 97.9 million parameters; predicts the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, 768)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.places = nn.Parameter(torch.zeros(_LENGTH, 768))
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(_LENGTH), persistent=False
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits of the next word, by class first."""
        found = self.layers(self.embedding(words) + self.places, mask=self.mask, is_causal=True)
        return (found @ self.embedding.weight.T).transpose(1, 2)  # type: ignore[no-any-return]


def make(work: str) -> tuple[nn.Module, np.ndarray[Any, Any], np.ndarray[Any, Any], Callable[..., Any], int]:
    """Return module, rows, labels, optimizer and batch size of a work."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    if work == "resnet50":
        x = random.integers(0, 256, (512, 3, 224, 224), np.uint8)
        return Images(), x, random.integers(0, 1000, 512), SGD, 64
    if work == "transformer":
        x = random.integers(0, _WORDS, (1024, _LENGTH))
        return Words(), x, np.roll(x, -1, 1), ADAM, 16
    x = random.standard_normal((4096, 256), dtype=np.float32)
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), x, random.integers(0, 10, 4096), ADAM, 128


def plain_torch(work: str, precision: str, device: str, steps: int) -> float:
    """Return the median milliseconds of a step without Spark."""
    module, x, y, optimizer, batch = make(work)
    module.to(device)
    step, random, loss_of = optimizer(module.parameters()), np.random.default_rng(0), nn.CrossEntropyLoss()
    times, order, position = [], random.permutation(len(x)), 0
    for _ in range(2 * steps):
        start = time.perf_counter()
        if position + batch > len(x):
            order, position = random.permutation(len(x)), 0
        chosen = order[position : position + batch]
        position += batch
        inputs, label = (torch.from_numpy(values[chosen]).to(device, non_blocking=True) for values in (x, y))
        step.zero_grad()
        low = precision == "bf16"
        with torch.autocast(device, torch.bfloat16) if low else nullcontext():
            loss = loss_of(module(inputs), label)
        loss.backward()
        step.step()
        loss.item()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[steps:])


def on_spark(args: argparse.Namespace, work: str, precision: str) -> dict[str, Any]:
    """Return the figures of a fit."""
    module, x, y, optimizer, batch = make(work)
    confs = {"spark.driver.memory": "4g", "spark.executor.memory": "8000m"}
    if args.device == "cuda":
        script = Path(tempfile.mkdtemp()) / "gpus"
        script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["0"]}\'\n')
        script.chmod(0o755)
        for whose in ("worker", "executor"):
            confs[f"spark.{whose}.resource.gpu.amount"] = "1"
            confs[f"spark.{whose}.resource.gpu.discoveryScript"] = str(script)
        confs["spark.task.resource.gpu.amount"] = "1"
    spark = session.builder(args.master, f"benchmark {work}", confs).getOrCreate()
    try:
        with Dataset.from_numpy([x], y, spark=spark, num_partitions=1) as data:
            data.store()
            begin = time.perf_counter()
            history = (
                Trainer(
                    module,
                    loss=nn.CrossEntropyLoss(),
                    optimizer=optimizer,
                    batch_size=batch,
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


def measure(args: argparse.Namespace, work: str, precision: str) -> dict[str, Any]:
    """Return one row."""
    command = [sys.executable, __file__, "--plain", "--works", work, "--precisions", precision]
    command += ["--device", args.device, "--steps", str(args.steps)]
    plain = [float(subprocess.check_output(command, text=True))]
    found = on_spark(args, work, precision)
    plain.append(float(subprocess.check_output(command, text=True)))
    torch_ms = statistics.fmean(plain)
    in_group = sum(found["phases_ms"][name] for name in _IN_TASK if name in found["phases_ms"])
    return {
        "work": work,
        "precision": precision,
        "torch_ms": plain,
        **found,
        "ms_in_group": in_group,
        "over_torch": found["ms_per_step"] / torch_ms,
        "in_group_over_torch": in_group / torch_ms,
    }


_IN_TASK = ("data", "weights_in", "compute", "gradient_out", "update")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a step on a GPU with plain torch.")
    parser.add_argument("--works", nargs="+", default=["resnet50", "transformer"])
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--master", default="local-cluster[1,1,8000]")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=60, help="of plain torch that are measured")
    parser.add_argument("--group", type=int, default=100, help="steps of a job")
    parser.add_argument("--groups", type=int, default=3, help="jobs that are measured, after one")
    parser.add_argument("--json", help="file to write")
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.plain:
        print(plain_torch(args.works[0], args.precisions[0], args.device, args.steps))
        return
    rows: list[keeping.Row] = []
    with keeping.cut_off():
        for work in args.works:
            for precision in args.precisions:
                rows.append(measure(args, work, precision))
                print(rows[-1], flush=True)
                keeping.write(args.json, rows)


if __name__ == "__main__":
    main()
