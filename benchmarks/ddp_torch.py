"""The same training by torch's DistributedDataParallel over gloo, in a TorchDistributor's processes.

Either synchronous, with an all-reduce of gradients in each step, or local SGD: each process steps by itself,
and the mean of the weights is taken after every few steps (torch's ``average_parameters``).
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any


def measure(
    spark: Any, folder: str, model: str, batch: int, processes: int, seconds: float, local_steps: int = 1
) -> float:
    """Return the median milliseconds of a step, after a warm-up of half the time.

    Args:
        spark: the session, which has as many task slots as processes.
        folder: where ``workloads.py`` is.
        model: name of the workload.
        batch: rows of a step over all processes.
        processes: number of processes.
        seconds: how long to train.
        local_steps: steps between two averages of the weights; with 1, gradients are averaged in each.

    Raises:
        ValueError: if the rows of a step cannot be shared equally.
    """
    if batch % processes:
        raise ValueError(f"{batch} rows over {processes} processes: steps would have fewer rows than others")
    from pyspark import cloudpickle
    from pyspark.ml.torch.distributor import TorchDistributor

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have this file
    distributor = TorchDistributor(num_processes=processes, local_mode=False, use_gpu=False)
    return float(distributor.run(_train, folder, model, batch, seconds, local_steps))


def _train(folder: str, model: str, batch: int, seconds: float, local_steps: int) -> float:
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.model_averaging.utils import average_parameters

    sys.path.insert(0, folder)
    from workloads import OPTIMIZERS, make

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    work = make(model, batch, None)
    # Local SGD has no use for DDP's hooks on gradients.
    replica = work.module if local_steps > 1 else torch.nn.parallel.DistributedDataParallel(work.module)
    step = OPTIMIZERS[work.optimizer](replica.parameters())
    share, rows = batch // world, len(work.label) // world
    own = slice(rank * rows, (rank + 1) * rows)
    features, label = [x[own] for x in work.features], work.label[own]
    random = np.random.default_rng(rank)
    order, position = random.permutation(rows), 0
    rounds: list[float] = []  # seconds of so many steps and the exchange after them, per step
    begin = time.perf_counter()
    stop = torch.zeros(1)
    while not stop.item():
        start = time.perf_counter()
        for _ in range(local_steps):
            if position + share > rows:
                order, position = random.permutation(rows), 0
            chosen = order[position : position + share]
            position += share
            inputs = [torch.from_numpy(np.take(x, chosen, axis=0)) for x in features]
            target = torch.from_numpy(np.take(label, chosen, axis=0))
            step.zero_grad(set_to_none=False)
            loss = work.loss(replica(*inputs), target)
            loss.backward()
            step.step()
            loss.item()
        if local_steps > 1:
            average_parameters(replica.parameters(), dist.group.WORLD)
        rounds.append((time.perf_counter() - start) / local_steps)
        if local_steps > 1 or len(rounds) % 20 == 0:  # both must do equally many iterations
            stop.fill_(float(time.perf_counter() - begin > seconds))
            dist.all_reduce(stop, dist.ReduceOp.MAX)
    dist.barrier()  # a process that ends while the other still talks to it takes it down
    del replica
    dist.destroy_process_group()
    return 1000 * statistics.median(rounds[len(rounds) // 2 :])
