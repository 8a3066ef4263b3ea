"""Triggers: pure functions of the previous and the current state of a run.

``&``, ``|`` and ``~`` combine them::

    end_when = MaxEpoch(20) | MinLoss(0.01)
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl.exceptions import ConfigError
from sparkdl.train.state import TrainState


class Trigger:
    """Base class: decides from two successive states whether something is due."""

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether the trigger fires."""
        raise NotImplementedError

    def __and__(self, other: Trigger) -> Trigger:
        return _Both(self, other)

    def __or__(self, other: Trigger) -> Trigger:
        return _Either(self, other)

    def __invert__(self) -> Trigger:
        return _Not(self)


@dataclass(frozen=True, slots=True)
class MaxEpoch(Trigger):
    """Fires once ``epochs`` epochs are completed."""

    epochs: int

    def __post_init__(self) -> None:
        _check_count("MaxEpoch", self.epochs)

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether enough epochs are completed."""
        return current.epoch >= self.epochs


@dataclass(frozen=True, slots=True)
class MaxIteration(Trigger):
    """Fires once ``iterations`` iterations are completed."""

    iterations: int

    def __post_init__(self) -> None:
        _check_count("MaxIteration", self.iterations)

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether enough iterations are completed."""
        return current.iteration >= self.iterations


@dataclass(frozen=True, slots=True)
class MinLoss(Trigger):
    """Fires when the loss of an iteration falls below ``loss``."""

    loss: float

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether the loss is low enough; never before the first iteration."""
        return current.loss < self.loss


@dataclass(frozen=True, slots=True)
class _Both(Trigger):
    first: Trigger
    second: Trigger

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        return self.first(previous, current) and self.second(previous, current)


@dataclass(frozen=True, slots=True)
class _Either(Trigger):
    first: Trigger
    second: Trigger

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        return self.first(previous, current) or self.second(previous, current)


@dataclass(frozen=True, slots=True)
class _Not(Trigger):
    inner: Trigger

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        return not self.inner(previous, current)


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{name}({value!r}): expected an integer of at least 0")
