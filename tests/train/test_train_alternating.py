"""Several optimizers and alternating steps: a GAN, against plain torch with two optimizers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from support.reference import assert_bit_equal
from torch import Tensor, nn
from torch.func import functional_call

from sparkdl import Dataset, Trainer
from sparkdl.train import MaxEpoch

ADAM = partial(torch.optim.Adam, lr=5e-3, betas=(0.5, 0.99))
SLOW = partial(torch.optim.RMSprop, lr=2e-3)
ROWS = np.random.default_rng(0).normal([2.0, -1.0], [0.5, 0.25], size=(600, 2)).astype(np.float32)
bce = nn.functional.binary_cross_entropy_with_logits


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
        self.judge = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))


def noise(iteration: int, rows: int) -> Tensor:
    return torch.randn(rows, 2, generator=torch.Generator().manual_seed(iteration))


def step(module: Any, batch: Any) -> Any:
    """Train the judge in even iterations, the generator in odd ones."""
    made = module.generator(noise(batch.iteration, batch.rows))
    if batch.iteration % 2 == 0:
        real, fake = module.judge(batch.inputs), module.judge(made.detach())
        return {"loss": bce(real, torch.ones_like(real)) + bce(fake, torch.zeros_like(fake))}
    fixed = {name: p.detach() for name, p in module.judge.named_parameters()}
    fake = functional_call(module.judge, fixed, (made,))
    return {"loss": bce(fake, torch.ones_like(fake)), "mean": made.mean()}


def in_torch(epochs: int) -> nn.Module:
    gan = Gan()
    generator, judge = ADAM(gan.generator.parameters()), SLOW(gan.judge.parameters())
    x = torch.from_numpy(ROWS)
    for iteration in range(6 * epochs):
        start = iteration % 6 * 100
        made = gan.generator(noise(iteration, 100))
        if iteration % 2 == 0:
            judge.zero_grad()
            real, fake = gan.judge(x[start : start + 100]), gan.judge(made.detach())
            (bce(real, torch.ones_like(real)) + bce(fake, torch.zeros_like(fake))).backward()
            judge.step()
        else:
            generator.zero_grad()
            fake = gan.judge(made)
            bce(fake, torch.ones_like(fake)).backward()
            generator.step()
    return gan


def test_a_gan(spark: Any) -> None:
    optimizers = {"generator.*": ADAM, "judge.*": SLOW}
    options: dict[str, Any] = {"batch_size": 100, "shuffle": False, "progress": False}
    with Dataset.from_numpy(ROWS, spark=spark, num_partitions=1) as data:
        found = Trainer(Gan(), step=step, optimizer=optimizers, end_when=MaxEpoch(60), **options).fit(data)
    assert_bit_equal(found.module, in_torch(60))
    with torch.no_grad():
        made = found.module.generator(torch.randn(2000, 2, generator=torch.Generator().manual_seed(9)))
        before = Gan().generator(torch.randn(2000, 2, generator=torch.Generator().manual_seed(9)))
    # It has learned where the rows lie.
    wanted = torch.tensor([2.0, -1.0])
    assert (made.mean(0) - wanted).norm() < 1 < (before.mean(0) - wanted).norm()
