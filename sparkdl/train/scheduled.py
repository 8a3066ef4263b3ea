"""A schedule at work: torch's own schedulers, run on the driver on shadow optimizers.

A shadow optimizer has the groups of the real one, and one dummy weight per group. Values that the
schedulers change in it travel to the tasks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sparkdl.exceptions import ConfigError
from sparkdl.optim.shard.lazy_rows import check_unspoilt
from sparkdl.optim.spec import OptimizerSpec
from sparkdl.train.options.schedule import PerEpoch, PerIteration, Schedule, SchedulerFactory, check_factory


class ScheduledHyper:
    """The hyper-parameters of each parameter group as a schedule changes them.

    The first ones are those that the scheduler sets when it is built: a warm-up starts with the first
    iteration. With several optimizers each gets a scheduler of its own from the same factory.
    ``higher_is_better`` counts for a ``ReduceLROnPlateau`` whose ``mode`` was not given. ``tables`` are the
    groups of embedding variables, of which a step changes some rows alone.
    """

    def __init__(
        self,
        optimizer: OptimizerSpec,
        schedule: Schedule | None,
        *,
        higher_is_better: bool = False,
        tables: Mapping[str, int] | None = None,
    ) -> None:
        self._optimizer, self._tables = optimizer, tables or {}
        self._shadows: Sequence[Optimizer] = optimizer.shadow()
        self._per_iteration = isinstance(schedule, PerIteration)
        self._schedulers: list[LRScheduler] = []
        self._hyper: tuple[dict[str, Any], ...] | None = None
        self._scale = 1.0
        if schedule is None:
            return
        wrapped = isinstance(schedule, PerIteration | PerEpoch)
        factory = schedule.factory if isinstance(schedule, PerIteration | PerEpoch) else schedule
        check_factory(factory)
        self._schedulers = [_build(_with_mode(factory, higher_is_better), s) for s in self._shadows]
        if wrapped and self.needs_validation:
            raise ConfigError(
                f"schedule={schedule!r:.200}: ReduceLROnPlateau is stepped after each validation; pass "
                "its factory without PerEpoch or PerIteration"
            )
        for shadow in self._shadows:
            _let_step(shadow)

    @property
    def needs_validation(self) -> bool:
        """Whether the schedule follows the monitored score."""
        return bool(self.modes)

    @property
    def modes(self) -> set[str]:
        """Directions of the scores that it follows: ``"min"`` where smaller ones are better, or ``"max"``."""
        return {one.mode for one in self._schedulers if isinstance(one, ReduceLROnPlateau)}

    @property
    def brings_state(self) -> bool:
        """Whether it sets more than learning rates, or may: a momentum has state where SGD had none.

        Torch's own schedulers set what they will when they are built.
        """
        return any(group.keys() - {"lr"} for group in self.hyper()) or any(map(_is_own, self._schedulers))

    def hyper(self) -> tuple[dict[str, Any], ...]:
        """Return, for each parameter group, the values that differ from the optimizer's own.

        Raises ConfigError if such a value would change rows of embedding variables without a gradient.
        """
        if self._hyper is None:
            self._hyper = self._optimizer.hyper_of(self._shadows)
            for name, index in self._tables.items():
                check_unspoilt(self._hyper[index], name, "schedule")
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
        """Count an iteration, also one without rows; ConfigError if a scheduler (OneCycleLR) has ended."""
        if self._per_iteration:
            self._step()

    def after_epoch(self) -> None:
        """Count an epoch, after its last iteration."""
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
        """Go on from where :meth:`state_dict` was called."""
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


def _is_own(scheduler: LRScheduler) -> bool:
    """Return whether a scheduler, or one in it, is a class of the user's."""
    parts: Sequence[LRScheduler] = getattr(scheduler, "_schedulers", ())
    return not type(scheduler).__module__.startswith("torch.optim.") or any(map(_is_own, parts))


def follows_scores(schedule: Schedule) -> bool:
    """Return whether a schedule makes a ReduceLROnPlateau, of an optimizer like most."""
    if isinstance(schedule, PerIteration | PerEpoch):
        return False
    try:
        return isinstance(_build(schedule, Adam([torch.zeros(1)])), ReduceLROnPlateau)
    except ConfigError:  # it asks for an optimizer of its own
        return False


def _with_mode(factory: SchedulerFactory, higher_is_better: bool) -> SchedulerFactory:
    """Give a ReduceLROnPlateau the direction of the monitored score, unless the user chose one."""
    cls = factory.func if isinstance(factory, partial) else factory
    if not isinstance(cls, type) or not issubclass(cls, ReduceLROnPlateau):
        return factory
    if isinstance(factory, partial) and "mode" in factory.keywords:
        return factory
    choose: Callable[..., LRScheduler] = factory
    return partial(choose, mode="max" if higher_is_better else "min")


def _let_step(shadow: Optimizer) -> None:
    """Let an optimizer make a step without gradients: torch warns of a scheduler that is stepped before.

    Some optimizers insist on a closure. What one counts in its groups is taken back.
    """
    before = copy.deepcopy([_without_params(group) for group in shadow.param_groups])
    shadow.step(lambda: 0.0)
    for group, values in zip(shadow.param_groups, before, strict=True):
        group.update(values)


def _without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
