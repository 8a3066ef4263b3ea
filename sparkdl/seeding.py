"""One seed for everything random: derived from (seed, epoch, iteration, partition).

Two tasks with the same coordinates draw the same numbers, wherever and however often they run.
That is what makes a retried, speculated or replayed task return the same bits.
"""

from __future__ import annotations

import numpy as np

# Separate streams, so that the order of rows and the dropout masks are independent draws.
ORDER = 0
TASK = 1
STALENESS = 2


def derive(stream: int, *coordinates: int) -> int:
    """Mix a stream and coordinates into a 64-bit seed (numpy's ``SeedSequence`` hash)."""
    words = np.random.SeedSequence([stream, *coordinates]).generate_state(2, np.uint32)
    return int(words[0]) << 32 | int(words[1])


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
