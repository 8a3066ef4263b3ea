"""The same training in plain torch, without Spark."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl import seeding
from sparkdl.data import sampler
from sparkdl.data.streams import FROM_THE_BEGINNING, Dealt, epoch_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Partition:
    """Rows of one partition."""

    x: Array
    y: Array


def iteration_rows(
    partitions: Sequence[Partition], batch_size: int, iteration: int, seed: int
) -> tuple[int, list[Array]]:
    """Return the epoch and each partition's row numbers of an iteration, if a source keeps its partitions."""
    sizes = [len(p.x) for p in partitions]
    steps = sampler.iterations_per_epoch(sum(sizes), batch_size)
    epoch, step = divmod(iteration, steps)
    return epoch, [
        sampler.rows_of(n, steps, step, seed=seed, epoch=epoch, partition=p, shuffle=True)
        for p, n in enumerate(sizes)
    ]


def dealt_rows(
    partitions: Sequence[Partition], batch_size: int, iteration: int, seed: int, shuffle: bool = True
) -> tuple[int, list[Array]]:
    """Return the same if rows are dealt to partitions; the batch of any number of these is that of one."""
    (whole,) = partitions
    steps = sampler.iterations_per_epoch(len(whole.x), batch_size)
    epoch, step = divmod(iteration, steps)
    order = epoch_of(Dealt(len(whole.x), 0, 1), seed, epoch, shuffle)
    return epoch, [order.rows(FROM_THE_BEGINNING.slots(len(whole.x), steps, step))]


def dealt_shares(
    partitions: Sequence[Partition], batch_size: int, iteration: int, seed: int
) -> tuple[int, list[Array]]:
    """Return the same if these partitions are what rows were dealt to."""
    total = sum(len(p.x) for p in partitions)
    steps = sampler.iterations_per_epoch(total, batch_size)
    epoch, step = divmod(iteration, steps)
    slots = FROM_THE_BEGINNING.slots(total, steps, step)
    return epoch, [
        epoch_of(Dealt(total, p, len(partitions)), seed, epoch, True).rows(slots)
        for p in range(len(partitions))
    ]


@contextmanager
def threads(count: int) -> Any:
    """Run torch with a number of threads: bits depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def plain(
    module: nn.Module,
    loss: Callable[[Any, Any], torch.Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    partitions: Sequence[Partition],
    batch_size: int,
    iterations: int,
    seed: int,
    *,
    rows_of: Callable[..., tuple[int, list[Array]]] = iteration_rows,
    on_begin: Callable[[int, nn.Module], None] = lambda *_: None,
    on_backward: Callable[[int, nn.Module], None] = lambda *_: None,
    on_step: Callable[[int, nn.Module, torch.optim.Optimizer], None] = lambda *_: None,
) -> nn.Module:
    """Train on whole global batches, as a torch user would write it.

    The callbacks get the iteration, counted from 0: before it, between backward and step, after it.
    """
    module = copy.deepcopy(module).train()
    steps = optimizer(module.parameters())
    for iteration in range(iterations):
        on_begin(iteration, module)
        _, rows = rows_of(partitions, batch_size, iteration, seed)
        x = np.concatenate([p.x[r] for p, r in zip(partitions, rows, strict=True)])
        y = np.concatenate([p.y[r] for p, r in zip(partitions, rows, strict=True)])
        steps.zero_grad()
        loss(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        on_backward(iteration, module)
        steps.step()
        on_step(iteration, module, steps)
    return module


def decomposed(
    module: nn.Module,
    loss: Callable[[Any, Any], torch.Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    partitions: Sequence[Partition],
    batch_size: int,
    iterations: int,
    seed: int,
    *,
    rows_of: Callable[..., tuple[int, list[Array]]] = iteration_rows,
) -> nn.Module:
    """Train with one replica per partition: gradients and buffers averaged by sample count."""
    module = copy.deepcopy(module).train()
    trained = [p for p in module.parameters() if p.requires_grad]
    steps = optimizer(trained)
    for iteration in range(iterations):
        epoch, rows = rows_of(partitions, batch_size, iteration, seed)
        total = sum(len(r) for r in rows)
        replicas: list[tuple[float, nn.Module]] = []
        for p, (partition, r) in enumerate(zip(partitions, rows, strict=True)):
            if len(r):
                replica = copy.deepcopy(module)
                replica.zero_grad(set_to_none=True)
                seeding.seed_task(seed, epoch, iteration, p)
                x, y = torch.from_numpy(partition.x[r]), torch.from_numpy(partition.y[r])
                loss(replica(x), y).backward()
                replicas.append((len(r) / total, replica))
        for index, parameter in enumerate(trained):
            parameter.grad = None
            for share, replica in replicas:
                gradient = [p for p in replica.parameters() if p.requires_grad][index].grad
                if gradient is not None:
                    scaled = gradient * np.float32(share) if share != 1.0 else gradient
                    parameter.grad = scaled if parameter.grad is None else parameter.grad + scaled
        steps.step()
        for index, buffer in enumerate(module.buffers()):
            values = [list(replica.buffers())[index] for _, replica in replicas]
            if buffer.is_floating_point():
                mean = values[0].clone()
                for (share, _), value in zip(replicas[1:], values[1:], strict=True):
                    mean += (value - values[0]) * np.float32(share)
                buffer.copy_(mean)
            else:
                buffer.copy_(torch.stack(values).amax(dim=0))
    return module


def assert_bit_equal(found: nn.Module, expected: nn.Module) -> None:
    """Compare all parameters and buffers bit for bit."""
    for name, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), f"{name} differs"


def relative_error(found: nn.Module, expected: nn.Module) -> float:
    """Return the norm of the difference of all parameters relative to their norm."""
    a = torch.cat([p.detach().reshape(-1) for p in found.parameters()]).double()
    b = torch.cat([p.detach().reshape(-1) for p in expected.parameters()]).double()
    return float((a - b).norm() / b.norm())
