"""One seed for everything random: derived from (seed, epoch, iteration, partition).

Two tasks with the same coordinates draw the same numbers, wherever and however often they run.
That is what makes a retried, speculated or replayed task return the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Separate streams, so that the order of rows and the dropout masks are independent draws.
ORDER = 0
TASK = 1
STALENESS = 2
OPTIMIZER = 3
SHARES = 4
POPULATION = 5
PROJECTORS = 0xD157


def derive(stream: int, *coordinates: int) -> int:
    """Mix a stream and coordinates into a 64-bit seed (numpy's ``SeedSequence`` hash)."""
    words = np.random.SeedSequence([stream, *coordinates]).generate_state(2, np.uint32)
    return int(words[0]) << 32 | int(words[1])


def shuffled(rows: int, *coordinates: int) -> NDArray[Any]:
    """Return the numbers of some rows in the order that coordinates draw (numpy's PCG64 shuffle)."""
    order = np.arange(rows, dtype=np.int32 if rows < 2**31 else np.int64)
    np.random.Generator(np.random.PCG64(derive(ORDER, *coordinates))).shuffle(order)
    order.flags.writeable = False
    return order


@contextmanager
def drawing(seed: int | None) -> Iterator[None]:
    """Let torch, numpy and ``random`` draw from a seed for a while; ``None`` changes nothing."""
    import random

    import torch

    if seed is None:
        yield
        return
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = torch.cuda.get_rng_state_all() if on_gpu else []
    torch.default_generator.manual_seed(seed)
    if on_gpu:
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - user code draws from the global state
    random.seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        if on_gpu:
            torch.cuda.set_rng_state_all(gpus)
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])


def seed_task(seed: int, epoch: int, iteration: int, partition: int) -> None:
    """Seed torch, numpy and ``random`` in this process for one forward-backward task."""
    import random

    import torch

    value = derive(TASK, seed, epoch, iteration, partition)
    torch.default_generator.manual_seed(value)  # torch.manual_seed would import its compiler first
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    np.random.seed(value & 0xFFFFFFFF)  # noqa: NPY002 - user code draws from the global state
    random.seed(value)
