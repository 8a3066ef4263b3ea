"""What the cases of ``characterise.py`` are made of: rows, modules and hooks. Nothing here needs Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.train import EveryIterations, Hook, Run, TrainState

ROWS = 160
CLASSES, WIDTH = 4, 12
USERS, ITEMS = 50, 20

LAYOUTS: Mapping[str, Sequence[int]] = {
    "p1": [160],
    "p2": [90, 70],
    "p3": [83, 19, 58],
    "p3-empty": [90, 0, 70],
    "p7": [40, 7, 23, 31, 12, 26, 21],
}
"""Rows of each partition."""

# -- rows ------------------------------------------------------------------------------------------

Row = tuple[Any, ...]


def classes() -> list[Row]:
    random = np.random.default_rng(1)
    x = random.standard_normal((ROWS, WIDTH), dtype=np.float32)
    return list(zip(x, random.integers(0, CLASSES, ROWS), strict=True))


def weighted() -> list[Row]:
    weights = np.random.default_rng(2).random(ROWS, dtype=np.float32)
    weights[::9] = 0
    return [(*row, weight) for row, weight in zip(classes(), weights, strict=True)]


def pairs() -> list[Row]:
    random = np.random.default_rng(3)
    both = np.stack([random.integers(0, USERS, ROWS), random.integers(0, ITEMS, ROWS)], 1)
    return list(zip(both, random.standard_normal(ROWS, dtype=np.float32), strict=True))


def noise(x: Tensor) -> Tensor:
    """Augment by chance, from torch's generator."""
    return x + 0.1 * torch.randn_like(x)


MAKES: Mapping[str, Callable[[], list[Row]]] = {
    "classes": classes,
    "noisy": classes,
    "weighted": weighted,
    "doubles": classes,
    "pairs": pairs,
}
TRANSFORMS: Mapping[str, Callable[[Tensor], Tensor]] = {"noisy": noise, "doubles": Tensor.double}


# -- modules ---------------------------------------------------------------------------------------


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def double_perceptron() -> nn.Module:
    return perceptron().double()


def normed() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, CLASSES)]
    return nn.Sequential(*layers)


def half_frozen() -> nn.Module:
    module = perceptron()
    module[0].requires_grad_(False)  # type: ignore[operator]
    return module


class SometimesUnused(nn.Module):
    """A branch is used by batches of an even number of rows, another one by none; one weight is tied."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, 16)
        self.even = nn.Linear(16, 16)
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.even.weight
        self.never = nn.Linear(3, 3)
        self.odd = nn.Linear(16, 16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        hidden = torch.relu(self.first(x))
        hidden = self.tied(torch.relu(self.even(hidden))) if len(x) % 2 == 0 else self.odd(hidden)
        return self.head(torch.relu(hidden))  # type: ignore[no-any-return]


class Factors(nn.Module):
    """Two tables with row-sparse gradients and a dense part with buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.user = nn.Embedding(USERS, 6, sparse=True)
        self.item = nn.Embedding(ITEMS, 6, sparse=True)
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(12))

    def forward(self, both: Tensor) -> Tensor:
        """Return a score for each pair."""
        found = torch.cat([self.user(both[:, 0]), self.item(both[:, 1])], 1)
        if self.training:
            self.calls += 1
            self.mean = 0.9 * self.mean + 0.1 * found.detach().mean(0)
        return self.head(torch.relu(self.norm(found))).squeeze(-1)  # type: ignore[no-any-return]


class Spoilt(nn.Module):
    """Gives NaN after eleven iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        if self.training:
            self.calls += 1
        scores: Tensor = self.inner(x)
        return scores * torch.nan if self.calls > 11 else scores


# -- hooks -----------------------------------------------------------------------------------------


class Seen(Hook):
    """Writes down what it sees, as a digest."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def see(self, run: Run) -> None:
        """Take the weights of this moment into the digest."""
        now = run.snapshot()
        for part in (now.params, now.buffers, now.counters):
            self.digest.update(part.tobytes())


class Surprise(Seen):
    """Looks at weights and gradients without notice, and replaces the weights once."""

    gradients = EveryIterations(4)

    def on_iteration_end(self, run: Run) -> None:
        """Look, and replace."""
        for name, gradient in run.gradients().items():
            self.digest.update(name.encode() + gradient.tobytes())
        if run.state.iteration in (3, 11):
            self.see(run)
        if run.state.iteration == 9:
            now = run.snapshot()
            run.replace(replace(now, params=now.params * now.params.dtype.type(0.5)))


class Announced(Seen):
    """Looks at the weights after iterations that it has announced, and changes the learning rate once."""

    every = EveryIterations(5)

    def looks(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether it will look."""
        return self.every.foresees(previous, current)

    def on_iteration_end(self, run: Run) -> None:
        """Look."""
        if self.every(run.previous, run.state):
            self.see(run)
        if run.state.iteration == 12:
            run.learning_rate_scale = 0.5


class FreezeMidway(Hook):
    """Freezes parameters in the middle of an epoch and lets them go on in the middle of another."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def on_iteration_end(self, run: Run) -> None:
        """Freeze after six iterations, until thirteen are over."""
        if run.state.iteration == 6:
            run.freeze(self.pattern)
        if run.state.iteration == 13:
            run.unfreeze(self.pattern)
