"""The same training in one torch process: ``python plain_torch.py MODEL BATCH OPTIMIZER ...``.

A process of its own, so that torch's threads are set before anything runs. Prints milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext

import numpy as np
import torch
from workloads import OPTIMIZERS, make


def measure(
    model: str,
    batch: int,
    optimizer: str,
    threads: int,
    iterations: int,
    seconds: float,
    device: str = "cpu",
    precision: str = "fp32",
) -> float:
    """Return the median milliseconds of an iteration, after a warm-up."""
    torch.set_num_threads(threads)
    work = make(model, batch, optimizer)
    work.module.to(device)
    step = OPTIMIZERS[work.optimizer](work.module.parameters())
    rows = len(work.label)
    random = np.random.default_rng(0)
    times: list[float] = []
    warmup = iterations  # as many again, up to a share of the time
    begin = time.perf_counter()
    order, position = random.permutation(rows), 0
    while len(times) < warmup + iterations and time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        if position + batch > rows:
            order, position = random.permutation(rows), 0
        chosen = order[position : position + batch]
        position += batch
        arrays = [np.take(x, chosen, axis=0) for x in (*work.features, work.label)]
        *inputs, label = (torch.from_numpy(x).to(device, non_blocking=True) for x in arrays)
        step.zero_grad(set_to_none=device != "cpu")  # each the faster one there
        with torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext():
            loss = work.loss(work.module(*inputs), label)
        loss.backward()
        step.step()
        loss.item()  # the driver reads the loss of each iteration too
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[len(times) // 2 :])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("optimizer")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    print(measure(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
