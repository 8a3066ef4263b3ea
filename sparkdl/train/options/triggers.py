"""Triggers: pure functions of the previous and the current state of a run.

Those named *Every* fire at the moment something has happened once more; the others from the moment
a limit is reached. ``&``, ``|`` and ``~`` combine them::

    end_when = MaxEpoch(20) | MinLoss(0.01)
    validate_when = EveryEpoch() | EveryIterations(500)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparkdl.exceptions import ConfigError, is_integer, is_number
from sparkdl.train.state import TrainState


class Trigger:
    """Base class: decides from two successive states whether something is due.

    Examples:
        >>> from sparkdl.train import EveryEpoch, MaxEpoch, MinLoss, TrainState
        >>> before, now = TrainState(epoch=4, loss=0.3), TrainState(epoch=5, loss=0.2)
        >>> (MaxEpoch(20) | MinLoss(0.25))(before, now)
        True
        >>> (EveryEpoch() & MaxEpoch(10))(before, now)
        False
    """

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether the trigger fires."""
        raise NotImplementedError

    @property
    def needs_score(self) -> bool:
        """Whether it can fire after validations only."""
        return False

    @property
    def foreseeable(self) -> bool:
        """Whether it depends on nothing but completed epochs, iterations and validations.

        Iterations run in groups (``iterations_per_job=``), which end where a foreseeable trigger fires. Where
        another one fires, the rest of the group is undone.
        """
        return False

    def foresees(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether it will fire, for a state of which neither loss nor time is known yet."""
        return self.foreseeable and self(previous, current)

    def __and__(self, other: Trigger) -> Trigger:
        return _Both(self, other)

    def __or__(self, other: Trigger) -> Trigger:
        return _Either(self, other)

    def __invert__(self) -> Trigger:
        return _Not(self)


class _Foreseeable(Trigger):
    @property
    def foreseeable(self) -> bool:
        """Whether it depends on nothing but completed epochs, iterations and validations."""
        return True


class _OfScore(_Foreseeable):
    @property
    def needs_score(self) -> bool:
        """Whether it can fire after validations only."""
        return True


@dataclass(frozen=True, slots=True)
class EveryEpoch(_Foreseeable):
    """Fires at the end of each epoch."""

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether an epoch has ended."""
        return current.epoch > previous.epoch


@dataclass(frozen=True, slots=True)
class EveryIterations(_Foreseeable):
    """Fires after iterations ``iterations``, 2 × ``iterations`` and so on, counted from the first epoch.

    Raises:
        ConfigError: if ``iterations`` is not a positive integer.
    """

    iterations: int

    def __post_init__(self) -> None:
        _check_count("EveryIterations", self.iterations, least=1)

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether a multiple of the iterations has been completed."""
        return current.iteration // self.iterations > previous.iteration // self.iterations


@dataclass(frozen=True, slots=True)
class EverySeconds(Trigger):
    """Fires after the first iteration that ends ``seconds``, 2 × ``seconds``, ... into the run.

    An iteration in which several of these moments lie fires once.

    Raises:
        ConfigError: if ``seconds`` is not a positive number.
    """

    seconds: float

    def __post_init__(self) -> None:
        _check_number("EverySeconds", self.seconds)
        if self.seconds <= 0:
            raise ConfigError(f"EverySeconds({self.seconds!r}): expected a number above 0")

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether a multiple of the seconds has passed."""
        return current.seconds // self.seconds > previous.seconds // self.seconds


@dataclass(frozen=True, slots=True)
class MaxEpoch(_Foreseeable):
    """Fires once ``epochs`` epochs are completed.

    Raises:
        ConfigError: if ``epochs`` is no integer of at least 0.
    """

    epochs: int

    def __post_init__(self) -> None:
        _check_count("MaxEpoch", self.epochs)

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether enough epochs are completed."""
        return current.epoch >= self.epochs


@dataclass(frozen=True, slots=True)
class MaxIteration(_Foreseeable):
    """Fires once ``iterations`` iterations are completed.

    Raises:
        ConfigError: if ``iterations`` is no integer of at least 0.
    """

    iterations: int

    def __post_init__(self) -> None:
        _check_count("MaxIteration", self.iterations)

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether enough iterations are completed."""
        return current.iteration >= self.iterations


@dataclass(frozen=True, slots=True)
class MaxSeconds(Trigger):
    """Fires once the run has taken ``seconds`` of wall-clock time.

    Raises:
        ConfigError: if ``seconds`` is no finite number.
    """

    seconds: float

    def __post_init__(self) -> None:
        _check_number("MaxSeconds", self.seconds)

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether the time is up."""
        return current.seconds >= self.seconds


@dataclass(frozen=True, slots=True)
class MinLoss(Trigger):
    """Fires when the loss of an iteration falls below ``loss``.

    Raises:
        ConfigError: if ``loss`` is no finite number.
    """

    loss: float

    def __post_init__(self) -> None:
        _check_number("MinLoss", self.loss)

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether the loss is low enough; never before the first iteration."""
        return current.loss < self.loss


@dataclass(frozen=True, slots=True)
class MaxScore(_OfScore):
    """Fires when the monitored score of the last validation is at least ``score``.

    For scores of which higher is better, such as accuracy; :class:`MinScore` is for the others.

    Raises:
        ConfigError: if ``score`` is no finite number.
    """

    score: float

    def __post_init__(self) -> None:
        _check_number("MaxScore", self.score)

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether the score is high enough; never before the first validation."""
        return current.score >= self.score


@dataclass(frozen=True, slots=True)
class MinScore(_OfScore):
    """Fires when the monitored score of the last validation is at most ``score``.

    For scores of which lower is better, such as a loss; :class:`MaxScore` is for the others.

    Raises:
        ConfigError: if ``score`` is no finite number.
    """

    score: float

    def __post_init__(self) -> None:
        _check_number("MinScore", self.score)

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether the score is low enough; never before the first validation."""
        return current.score <= self.score


@dataclass(frozen=True, slots=True)
class Plateaued(_OfScore):
    """Fires when the last ``patience`` validations have not improved the best score.

    Raises:
        ConfigError: if ``patience`` is not a positive integer.
    """

    patience: int

    def __post_init__(self) -> None:
        _check_count("Plateaued", self.patience, least=1)

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether the score has stopped improving."""
        return current.stale >= self.patience


@dataclass(frozen=True, slots=True)
class _Two(Trigger):
    first: Trigger
    second: Trigger

    @property
    def foreseeable(self) -> bool:
        return self.first.foreseeable and self.second.foreseeable


class _Both(_Two):
    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        return self.first(previous, current) and self.second(previous, current)

    @property
    def needs_score(self) -> bool:
        return self.first.needs_score or self.second.needs_score


class _Either(_Two):
    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        return self.first(previous, current) or self.second(previous, current)

    def foresees(self, previous: TrainState, current: TrainState) -> bool:
        return self.first.foresees(previous, current) or self.second.foresees(previous, current)

    @property
    def needs_score(self) -> bool:
        return self.first.needs_score and self.second.needs_score


@dataclass(frozen=True, slots=True)
class _Not(Trigger):
    inner: Trigger

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        return not self.inner(previous, current)

    @property
    def foreseeable(self) -> bool:
        return self.inner.foreseeable


def trigger_option(owner: str, value: object) -> Trigger:
    """Return the option ``every``."""
    if not isinstance(value, Trigger):
        raise ConfigError(f"{owner}(every={value!r}): expected a trigger such as EveryEpoch()")
    return value


def _check_count(name: str, value: object, least: int = 0) -> None:
    if not is_integer(value, least):
        raise ConfigError(f"{name}({value!r}): expected an integer of at least {least}")


def _check_number(name: str, value: object) -> None:
    if not is_number(value) or not math.isfinite(value):
        raise ConfigError(f"{name}({value!r}): expected a finite number")
