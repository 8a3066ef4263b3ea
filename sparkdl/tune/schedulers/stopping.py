"""Schedulers that let trials run, and stop those that will not win."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import optuna
from optuna.pruners import BasePruner

from sparkdl.exceptions import ConfigError, integer_option
from sparkdl.saved.digest import class_and_digest
from sparkdl.tune.sampling import Quiet
from sparkdl.tune.schedulers.moves import Go, Outline, Scheduler, Verdict
from sparkdl.tune.trial import Trial


class FIFO(Scheduler):
    """Every trial gets all its epochs.

    Args:
        rung: epochs of one Spark job; a task that is lost runs these again. All at once by default.

    Raises:
        ConfigError: if a number cannot work.
    """

    def __init__(self, rung: int | None = None) -> None:
        self.rung = rung if rung is None else integer_option("FIFO", "rung", rung, 1)

    def begin(self, outline: Outline) -> None:
        """See :class:`Scheduler`."""
        self._max = outline.max_epochs

    def first(self, number: int) -> int:
        """See :class:`Scheduler`."""
        return min(self.rung or self._max, self._max)

    def reported(self, trial: Trial, trials: Sequence[Trial]) -> Verdict:
        """See :class:`Scheduler`."""
        return Go(trial.number, min(trial.epochs + self.first(0), self._max))


class MedianStopping(Scheduler):
    """The median stopping rule (Golovin et al., KDD 2017).

    A trial stops if its best value so far is worse than the median of what the others had reached on average
    by the same epoch. Optuna's MedianPruner compares with completed trials only, and with single values.

    Args:
        grace_period: epochs that every trial gets.
        min_trials: a trial is compared with at least so many others.
        rung: epochs between two decisions.

    Raises:
        ConfigError: if a number cannot work.
    """

    def __init__(self, grace_period: int = 1, min_trials: int = 3, rung: int = 1) -> None:
        self.grace_period = integer_option("MedianStopping", "grace_period", grace_period, 1)
        self.min_trials = integer_option("MedianStopping", "min_trials", min_trials, 1)
        self.rung = integer_option("MedianStopping", "rung", rung, 1)

    def begin(self, outline: Outline) -> None:
        """See :class:`Scheduler`."""
        self._max = outline.max_epochs

    def first(self, number: int) -> int:
        """See :class:`Scheduler`."""
        return min(self.grace_period, self._max)

    def reported(self, trial: Trial, trials: Sequence[Trial]) -> Verdict:
        """See :class:`Scheduler`."""
        means = [
            _mean([value for epoch, value in other.values.items() if epoch <= trial.epochs])
            for other in trials
            if other.number != trial.number and trial.epochs in other.values
        ]
        known = trial.epochs in trial.values  # not where its epoch was not validated
        if known and len(means) >= self.min_trials and max(trial.values.values()) < median(means):
            return "stop"
        return Go(trial.number, min(trial.epochs + self.rung, self._max))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class Pruned(Scheduler):
    """Trials run until a pruner of Optuna stops them.

    Args:
        pruner: decides after each rung, by the metric's values.
        rung: epochs between two decisions.

    Raises:
        ConfigError: if it is no pruner.
    """

    def __init__(self, pruner: BasePruner, rung: int = 1) -> None:
        if not isinstance(pruner, BasePruner):
            raise ConfigError(
                f"pruner={pruner!r:.100}: expected one of Optuna such as optuna.pruners.PercentilePruner(25)"
            )
        self._described = class_and_digest(pruner)  # before it is used: some of Optuna's remember trials
        self._pruner = copy.deepcopy(pruner)
        self.rung = integer_option("Pruned", "rung", rung, 1)

    def begin(self, outline: Outline) -> None:
        """See :class:`Scheduler`."""
        self._max, self._sign = outline.max_epochs, outline.sign
        with Quiet():
            self._study = optuna.create_study(
                direction="maximize" if outline.sign > 0 else "minimize",
                pruner=self._pruner,
                sampler=optuna.samplers.RandomSampler(seed=outline.seed),
                study_name="sparkdl",
            )
        self._trials: dict[int, Any] = {}

    def first(self, number: int) -> int:
        """See :class:`Scheduler`."""
        return min(self.rung, self._max)

    def reported(self, trial: Trial, trials: Sequence[Trial]) -> Verdict:
        """See :class:`Scheduler`."""
        shadow = self._trials.get(trial.number)
        if shadow is None:
            shadow = self._trials[trial.number] = self._study.ask()
        value = self._sign * trial.last
        if math.isfinite(value):
            shadow.report(value, trial.epochs)
        ended = trial.is_over
        if not ended and shadow.should_prune():
            self._study.tell(shadow, state=optuna.trial.TrialState.PRUNED)
            return "stop"
        if ended:
            told = value if math.isfinite(value) else None
            state = optuna.trial.TrialState.COMPLETE if told is not None else optuna.trial.TrialState.FAIL
            self._study.tell(shadow, told, state=state)
        return Go(trial.number, min(trial.epochs + self.rung, self._max))

    def describe(self) -> str:
        """See :class:`Scheduler`."""
        return f"Pruned({self._described}, rung={self.rung})"
