"""Sums over all shards, in the middle of an update.

A shard is updated by a task of its own, and a norm of all weights is known to none of them. An update
is therefore a generator: it yields its part of the sums and is sent the totals. Between the two may
lie a Spark job, and the generator may be run again from its beginning up to where it had got.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Sums = NDArray[np.float64]

Reduction = Generator[Sums, Sums, None]
"""Yields partial sums and is sent totals of the same shape, any number of times."""


def add_up(partials: Iterable[Sums]) -> Sums:
    """Return the totals of the partial sums of all shards, added in the order of the shards."""
    first, *others = partials
    totals = np.array(first)
    for part in others:
        totals += part
    return totals


def drive(shards: Sequence[Reduction]) -> None:
    """Run the updates of all shards in this process, in lock step."""
    totals: Sums | None = None
    while True:
        partials: list[Sums] = []
        for part in shards:
            try:
                partials.append(next(part) if totals is None else part.send(totals))
            except StopIteration:
                continue
        if not partials:
            return
        if len(partials) != len(shards):
            raise RuntimeError(f"{len(partials)} of {len(shards)} shards wait for totals, the others ended")
        totals = add_up(partials)
