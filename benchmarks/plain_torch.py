"""The same training in one torch process: ``python plain_torch.py MODEL BATCH OPTIMIZER ...``.

A process of its own, so that torch's threads are set before anything runs. Prints milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from workloads import OPTIMIZERS, make


def measure(model: str, batch: int, optimizer: str, threads: int, iterations: int, seconds: float) -> float:
    """Return the median milliseconds of an iteration, after a warm-up."""
    torch.set_num_threads(threads)
    work = make(model, batch, optimizer)
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
        inputs = [torch.from_numpy(np.take(x, chosen, axis=0)) for x in work.features]
        label = torch.from_numpy(np.take(work.label, chosen, axis=0))
        step.zero_grad(set_to_none=False)
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
    args = parser.parse_args()
    print(measure(args.model, args.batch, args.optimizer, args.threads, args.iterations, args.seconds))


if __name__ == "__main__":
    main()
