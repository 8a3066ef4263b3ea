"""Learning-rate schedules: what ``schedule=`` takes, and what makes it.

A schedule is what makes a scheduler from an optimizer, stepped once per epoch unless it is wrapped::

    schedule = partial(StepLR, step_size=30)                           # per epoch
    schedule = PerIteration(partial(CosineAnnealingLR, T_max=10_000))  # per iteration
    schedule = partial(ReduceLROnPlateau, patience=2)                  # after each validation
    schedule = warmup(500, then=polynomial(10_000, power=2.0))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
)

from sparkdl.exceptions import ConfigError, is_integer, is_number

SchedulerFactory = Callable[[Optimizer], LRScheduler]
"""From an optimizer to a scheduler: ``partial(StepLR, step_size=3)``."""


@dataclass(frozen=True, slots=True)
class PerIteration:
    """A schedule whose scheduler is stepped after every iteration."""

    factory: SchedulerFactory

    def __post_init__(self) -> None:
        check_factory(self.factory)


@dataclass(frozen=True, slots=True)
class PerEpoch:
    """A schedule whose scheduler is stepped after every epoch, like a bare factory."""

    factory: SchedulerFactory

    def __post_init__(self) -> None:
        check_factory(self.factory)


Schedule = SchedulerFactory | PerIteration | PerEpoch
"""What ``schedule=`` takes."""


def warmup(
    iterations: int, then: SchedulerFactory | PerIteration | None = None, start_factor: float = 0.01
) -> PerIteration:
    """Raise the learning rate linearly to the optimizer's own, per iteration.

    Args:
        iterations: length of the warm-up.
        then: schedule from there on; it counts iterations, from 0 at the end of the warm-up.
        start_factor: first learning rate as a share of the optimizer's own, in (0, 1].

    Raises:
        ConfigError: if an argument cannot work.
    """
    _check_positive("warmup", "iterations", iterations, integer=True)
    _check_positive("warmup", "start_factor", start_factor)
    if start_factor > 1:
        raise ConfigError(f"warmup(start_factor={start_factor!r}): expected a number of at most 1")
    rise = partial(LinearLR, start_factor=start_factor, total_iters=iterations)
    return PerIteration(rise) if then is None else sequence([(rise, iterations), (then, None)])


def polynomial(total_iters: int, power: float = 1.0) -> PerIteration:
    """Lower the learning rate to 0 as lr × (1 − iteration / total_iters) ^ power.

    Args:
        total_iters: iterations until it is 0; it stays there.
        power: 1 for a straight line.

    Raises:
        ConfigError: if an argument cannot work.
    """
    _check_positive("polynomial", "total_iters", total_iters, integer=True)
    _check_positive("polynomial", "power", power)
    return PerIteration(partial(PolynomialLR, total_iters=total_iters, power=power))


def sequence(parts: Iterable[tuple[SchedulerFactory | PerIteration, int | None]]) -> PerIteration:
    """Follow one schedule after the other, per iteration, by torch's SequentialLR.

    Args:
        parts: schedules, each with the number of iterations it is followed; the last one stays, so
            its number may be ``None``. A part counts iterations from 0 when its turn comes.

    Raises:
        ConfigError: if there is no part, or a part cannot be followed so.
    """
    flat: list[tuple[SchedulerFactory, int | None]] = []
    parts = list(parts)
    for index, (part, iterations) in enumerate(parts):
        if isinstance(part, PerEpoch):
            raise ConfigError(
                f"sequence: part {index} is per epoch ({part!r:.100}), but all parts of a sequence count "
                "iterations; give its factory, with its steps in iterations"
            )
        factory = part.factory if isinstance(part, PerIteration) else part
        last = index == len(parts) - 1
        if not last:
            _check_positive("sequence", f"iterations of part {index}", iterations, integer=True)
        if isinstance(factory, _Sequence) and last:
            flat += factory.parts
        elif isinstance(factory, _Sequence):
            raise ConfigError(f"sequence: part {index} is a sequence itself; list its parts instead")
        else:
            check_factory(factory)
            flat.append((factory, None if last else iterations))
    if not flat:
        raise ConfigError("sequence([]): expected at least one (factory, iterations)")
    return PerIteration(_Sequence(tuple(flat)))


def one_cycle(max_lr: float | list[float], total_steps: int, **options: Any) -> PerIteration:
    """Raise the learning rate to ``max_lr`` and lower it to nearly 0, per iteration.

    torch's OneCycleLR, which ignores the optimizer's own learning rate and, unless
    ``cycle_momentum=False``, also lowers and raises ``momentum`` or the first of ``betas``. Smith and
    Topin, "Super-Convergence", 2018, arXiv 1708.07120.

    Args:
        max_lr: highest learning rate; a list has one for each parameter group.
        total_steps: iterations of the cycle; training further raises ``ConfigError``.
        **options: further arguments of OneCycleLR, such as ``pct_start``.

    Raises:
        ConfigError: if ``total_steps`` is not a positive integer.
    """
    _check_positive("one_cycle", "total_steps", total_steps, integer=True)
    return PerIteration(partial(OneCycleLR, max_lr=max_lr, total_steps=total_steps, **options))


def linear_scaling(
    base_lr: float,
    base_batch_size: int,
    batch_size: int,
    warmup_epochs: float,
    iterations_per_epoch: int,
    then: SchedulerFactory | PerIteration | None = None,
) -> tuple[float, Schedule | None]:
    """Scale a learning rate with the batch size, and warm up from the original one.

    Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, arXiv
    1706.02677.

    Args:
        base_lr: learning rate that is good for ``base_batch_size``.
        base_batch_size: batch size it was found with.
        batch_size: batch size to train with.
        warmup_epochs: epochs in which the learning rate rises from ``base_lr``; 0 for none.
        iterations_per_epoch: rows divided by ``batch_size``, rounded up.
        then: schedule after the warm-up; it counts iterations, from 0 at the end of the warm-up.

    Returns:
        The learning rate to give to the optimizer, and the schedule. A batch size that is not
        larger than the base needs no warm-up.

    Raises:
        ConfigError: if an argument cannot work.

    Examples:
        A learning rate of 0.1 is known to be good for batches of 256:

        >>> lr, schedule = linear_scaling(
        ...     0.1, 256, 8192, warmup_epochs=5, iterations_per_epoch=157
        ... )
        >>> lr
        3.2

        Both are then given to the ``Trainer``, with ``optimizer=partial(SGD, lr=lr)``.
    """
    where = "linear_scaling"
    _check_positive(where, "base_lr", base_lr)
    _check_positive(where, "base_batch_size", base_batch_size, integer=True)
    _check_positive(where, "batch_size", batch_size, integer=True)
    _check_positive(where, "iterations_per_epoch", iterations_per_epoch, integer=True)
    if warmup_epochs != 0:
        _check_positive(where, "warmup_epochs", warmup_epochs)
    lr = base_lr * batch_size / base_batch_size
    rising = round(warmup_epochs * iterations_per_epoch)
    if batch_size > base_batch_size and rising:
        return lr, warmup(rising, then, start_factor=base_batch_size / batch_size)
    return lr, None if then is None else sequence([(then, None)])


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Factory of a SequentialLR; unlike a closure it can be looked into and pickled."""

    parts: tuple[tuple[SchedulerFactory, int | None], ...]

    def __call__(self, optimizer: Optimizer) -> LRScheduler:
        schedulers = [factory(optimizer) for factory, _ in self.parts]
        milestones: list[int] = []
        for index, (scheduler, (_, iterations)) in enumerate(zip(schedulers, self.parts, strict=True)):
            # Torch would fail only when their turn comes.
            if isinstance(scheduler, SequentialLR | ChainedScheduler):
                raise ValueError(f"part {index} is a {type(scheduler).__name__}; list its parts instead")
            if iterations is not None:
                milestones.append(iterations + (milestones[-1] if milestones else 0))
        return SequentialLR(optimizer, schedulers, milestones)


def check_factory(factory: object) -> None:
    """Check that something may be a factory of schedulers."""
    if isinstance(factory, LRScheduler):
        raise ConfigError(
            f"schedule={type(factory).__name__} instance: it belongs to an optimizer that does not train; "
            f"expected a factory such as partial({type(factory).__name__}, ...)"
        )
    if isinstance(factory, PerIteration | PerEpoch):
        raise ConfigError(f"schedule={factory!r:.200}: wrapped twice in PerIteration or PerEpoch")
    if not callable(factory):
        raise ConfigError(
            f"schedule={factory!r:.200}: expected a factory such as partial(StepLR, step_size=3)"
        )


def _check_positive(function: str, name: str, value: object, *, integer: bool = False) -> None:
    if not (is_integer(value, 1) if integer else is_number(value) and 0 < value < math.inf):
        expected = "an integer of at least 1" if integer else "a finite number above 0"
        raise ConfigError(f"{function}({name}={value!r}): expected {expected}")
