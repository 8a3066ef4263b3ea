"""Steps that a partition takes by itself, from the common weights, before anything is exchanged.

In place of a gradient the partition sends a pseudo-gradient: weights before minus weights after. The mean
over partitions, taken as a gradient by plain SGD of rate 1, is the average of their weights: local SGD
(Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019). An outer optimizer with momentum in
its place is DiLoCo (Douillard et al., arXiv 2311.08105, algorithm 1).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl.nn.batch import Batch
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import BatchLoss
from sparkdl.optim.reduction import drive
from sparkdl.optim.shard.optimizer import ShardOptimizer, UpdateRule
from sparkdl.wire.frame import Frame, Parts
from sparkdl.wire.held import Held
from sparkdl.wire.layout import ParamLayout


@dataclass(frozen=True, slots=True)
class InnerSteps:
    """The driver's instructions for the partitions' own steps in one iteration."""

    count: int  # how many steps
    # per parameter group, hyper-parameters that replace the inner optimizer's own
    hyper: tuple[Mapping[str, Any], ...] = ()

    def shares(self, rows: int) -> Iterator[slice]:
        """Cut the rows of an iteration into those of its steps; a step without rows is left out."""
        for step in range(self.count):
            start, stop = step * rows // self.count, (step + 1) * rows // self.count
            if start < stop:
                yield slice(start, stop)


@dataclass(frozen=True, slots=True)
class InnerRule:
    """How a partition's own steps follow from its gradients."""

    rule: UpdateRule  # regularisers, clipping and optimizer
    layout: ParamLayout  # of the flat vectors, with this optimizer's parameter groups
    stateful: bool  # whether the optimizer keeps state between steps


@dataclass(frozen=True, slots=True)
class Went:
    """Where a partition's own steps have led."""

    loss: BatchLoss  # mean loss, weight and rows over all steps
    way: torch.Tensor  # weights before minus weights after, shape (n,)
    used: NDArray[np.bool_]  # per parameter of the layout, whether any step had a gradient of it
    state: Parts  # frame of the inner optimizer's state


def take_steps(
    replica: FlatModule,
    batches: Iterable[Batch],
    inner: InnerRule,
    steps: InnerSteps,
    state: Held[Frame] | None,
    compute: Callable[[Batch], BatchLoss],
) -> Went:
    """Take optimizer steps on a replica that has the common weights; a loss that is not finite ends them."""
    optimizer = ShardOptimizer(inner.rule.optimizer, inner.layout, 0, inner.layout.numel, state)
    optimizer.to(replica.device)
    replica.holds = None
    weights, before = replica.params, replica.params.clone()
    used = np.zeros(len(inner.layout.params), np.bool_)
    losses: list[BatchLoss] = []
    for batch in batches:
        result = compute(batch)
        losses.append(result)
        if not math.isfinite(result.loss):
            break
        if result.divisor == 0:
            continue
        own, touched = replica.used, replica.touched
        used |= own
        drive([inner.rule.update(optimizer, weights, replica.lend_gradient(), own, steps.hyper, touched)])
    return Went(_mean(losses), before.sub_(weights), used, optimizer.state_frame())


def _mean(losses: list[BatchLoss]) -> BatchLoss:
    weight = sum(result.weight for result in losses)
    divisors = [result.divisor for result in losses]
    if any(divisor < 0 for divisor in divisors):  # of class weights below 0, which may cancel over the steps
        divisors = [result.weight if result.divisor else 0.0 for result in losses]
    whole = sum(divisors)
    pairs = zip(losses, divisors, strict=True)
    loss = sum(result.loss * divisor for result, divisor in pairs) / whole if whole else 0.0
    sums: defaultdict[str, float] = defaultdict(float)
    having: defaultdict[str, float] = defaultdict(float)
    for result in losses:
        for name, value in result.extras.items():
            counts = result.shares.get(name, result.weight)
            sums[name] += value * counts
            having[name] += counts
    extras = {name: sums[name] / having[name] for name in sums if having[name]}
    shares = {name: having[name] for name in extras if having[name] != weight}
    rows = sum(result.rows for result in losses)
    return BatchLoss(loss, weight, rows, extras, divisor=whole, shares=shares)
