"""Learning-rate schedules: torch's own schedulers, run on the driver on shadow optimizers.

A schedule is what makes a scheduler from an optimizer, stepped once per epoch unless it is wrapped::

    schedule = partial(StepLR, step_size=30)                           # per epoch
    schedule = PerIteration(partial(CosineAnnealingLR, T_max=10_000))  # per iteration
    schedule = partial(ReduceLROnPlateau, patience=2)                  # after each validation
    schedule = warmup(500, then=polynomial(10_000, power=2.0))

The shadow optimizers have the groups of the real one and a weight each that nobody trains. What the
schedulers change in them travels to the tasks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from sparkdl.exceptions import ConfigError
from sparkdl.optim.spec import OptimizerSpec

SchedulerFactory = Callable[[Optimizer], LRScheduler]
"""From an optimizer to a scheduler: ``partial(StepLR, step_size=3)``."""


@dataclass(frozen=True, slots=True)
class PerIteration:
    """A schedule whose scheduler is stepped after every iteration."""

    factory: SchedulerFactory

    def __post_init__(self) -> None:
        _check_factory(self.factory)


@dataclass(frozen=True, slots=True)
class PerEpoch:
    """A schedule whose scheduler is stepped after every epoch, like a bare factory."""

    factory: SchedulerFactory

    def __post_init__(self) -> None:
        _check_factory(self.factory)


Schedule = SchedulerFactory | PerIteration | PerEpoch
"""What ``schedule=`` takes."""


class ScheduledHyper:
    """The hyper-parameters of each parameter group as a schedule changes them.

    The first ones are those that the scheduler sets when it is built: a warm-up starts with the first
    iteration. With several optimizers each gets a scheduler of its own from the same factory.

    Args:
        optimizer: the run's optimizer.
        schedule: how its hyper-parameters change; ``None`` for not at all.
        higher_is_better: whether larger scores are better, for a ``ReduceLROnPlateau`` whose
            ``mode`` was not given.

    Raises:
        ConfigError: if the schedule cannot be built for the optimizer.
    """

    def __init__(
        self, optimizer: OptimizerSpec, schedule: Schedule | None, *, higher_is_better: bool = False
    ) -> None:
        self._optimizer = optimizer
        self._shadows: Sequence[Optimizer] = optimizer.shadow()
        self._per_iteration = isinstance(schedule, PerIteration)
        self._schedulers: list[LRScheduler] = []
        self._hyper: tuple[dict[str, Any], ...] | None = None
        self._scale = 1.0
        if schedule is None:
            return
        wrapped = isinstance(schedule, PerIteration | PerEpoch)
        factory = schedule.factory if isinstance(schedule, PerIteration | PerEpoch) else schedule
        _check_factory(factory)
        self._schedulers = [_build(_with_mode(factory, higher_is_better), s) for s in self._shadows]
        if wrapped and self.needs_validation:
            raise ConfigError(
                f"schedule={schedule!r:.200}: ReduceLROnPlateau is stepped after each validation; pass "
                "its factory without PerEpoch or PerIteration"
            )
        for shadow in self._shadows:
            # Nothing happens, for there are no gradients, but torch warns if a scheduler is stepped
            # before its optimizer. Some optimizers insist on a closure.
            shadow.step(lambda: 0.0)

    @property
    def needs_validation(self) -> bool:
        """Whether the schedule follows the monitored score."""
        return any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in self._schedulers)

    def hyper(self) -> tuple[dict[str, Any], ...]:
        """Return, for each parameter group, the values that differ from the optimizer's own."""
        if self._hyper is None:
            self._hyper = self._optimizer.hyper_of(self._shadows)
            if self._scale != 1.0:
                groups = [group for shadow in self._shadows for group in shadow.param_groups]
                for hyper, group in zip(self._hyper, groups, strict=True):
                    if "lr" in group:
                        hyper["lr"] = float(group["lr"]) * self._scale
        return self._hyper

    def scale(self, factor: float) -> None:
        """Multiply all learning rates by a factor from now on, instead of the one before."""
        if factor != self._scale:
            self._scale, self._hyper = factor, None

    def learning_rate(self) -> float:
        """Return the first group's learning rate, NaN if the optimizer has none."""
        return float(self._shadows[0].param_groups[0].get("lr", math.nan)) * self._scale

    def after_iteration(self) -> None:
        """Count an iteration, also one without rows.

        Raises:
            ConfigError: if the scheduler cannot go on, such as OneCycleLR after its last step.
        """
        if self._per_iteration:
            self._step()

    def after_epoch(self) -> None:
        """Count an epoch, after its last iteration.

        Raises:
            ConfigError: if the scheduler cannot go on.
        """
        if not self._per_iteration:
            self._step()

    def after_validation(self, score: float) -> None:
        """Take note of the monitored score."""
        for scheduler in self._schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(score)
        self._hyper = None

    def _step(self) -> None:
        self._hyper = None
        for scheduler in self._schedulers:
            if not isinstance(scheduler, ReduceLROnPlateau):
                try:
                    scheduler.step()
                except Exception as error:
                    name = type(scheduler).__name__
                    raise ConfigError(f"schedule: {name} cannot be stepped again: {error}") from error

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the schedulers' state and of the groups they work on."""
        groups = [[_without_params(group) for group in s.param_groups] for s in self._shadows]
        return copy.deepcopy({"schedulers": [s.state_dict() for s in self._schedulers], "groups": groups})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where :meth:`state_dict` was called.

        Raises:
            ConfigError: if the state is of another number of schedulers or groups.
        """
        found = (len(state["schedulers"]), [len(groups) for groups in state["groups"]])
        own = (len(self._schedulers), [len(s.param_groups) for s in self._shadows])
        if found != own:
            raise ConfigError(
                f"the schedule's saved state has {found[0]} schedulers and groups {found[1]}, this run "
                f"{own[0]} and {own[1]}; use the optimizer and schedule that it was saved with"
            )
        state = copy.deepcopy(dict(state))  # torch takes what it is given apart
        for scheduler, values in zip(self._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(values)
        self._hyper = None
        for shadow, groups in zip(self._shadows, state["groups"], strict=True):
            for group, values in zip(shadow.param_groups, groups, strict=True):
                group.update(values)


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
            _check_factory(factory)
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

        >>> lr, schedule = linear_scaling(0.1, 256, 8192, warmup_epochs=5, iterations_per_epoch=157)
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


def _build(factory: SchedulerFactory, shadow: Optimizer) -> LRScheduler:
    try:
        scheduler = factory(shadow)
    except Exception as error:
        raise ConfigError(
            f"schedule={factory!r:.200}: cannot be built for {type(shadow).__name__}: {error}"
        ) from error
    if not isinstance(scheduler, LRScheduler):
        raise ConfigError(
            f"schedule={factory!r:.200}: returned {scheduler!r:.100}, expected a scheduler of "
            "torch.optim.lr_scheduler"
        )
    if scheduler.optimizer is not shadow:
        raise ConfigError(
            f"schedule={factory!r:.200}: made a scheduler for another optimizer than the one it was given"
        )
    return scheduler


def _with_mode(factory: SchedulerFactory, higher_is_better: bool) -> SchedulerFactory:
    """Give a ReduceLROnPlateau the direction of the monitored score, unless the user chose one."""
    cls = factory.func if isinstance(factory, partial) else factory
    if not (isinstance(cls, type) and issubclass(cls, ReduceLROnPlateau)):
        return factory
    if isinstance(factory, partial) and "mode" in factory.keywords:
        return factory
    choose: Callable[..., LRScheduler] = factory
    return partial(choose, mode="max" if higher_is_better else "min")


def _without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _check_factory(factory: object) -> None:
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
    fits = isinstance(value, int) or (isinstance(value, float) and not integer)
    if not fits or isinstance(value, bool) or not 0 < cast(float, value) < math.inf:
        expected = "an integer of at least 1" if integer else "a finite number above 0"
        raise ConfigError(f"{function}({name}={value!r}): expected {expected}")
