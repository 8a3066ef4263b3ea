"""Successive halving: many trials a little way, the best of them further."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import cycle

from sparkdl.exceptions import integer_option
from sparkdl.tune.schedulers.moves import Go, Outline, Scheduler, Verdict
from sparkdl.tune.trial import Trial


class Ladder:
    """The rungs of some trials, in completed epochs, and who has reached which; of ``eta`` one goes on.

    With ``expected`` a rung waits for that many trials.
    """

    def __init__(self, rungs: Sequence[int], eta: int, expected: int | None = None) -> None:
        self.rungs = list(rungs)
        self._eta = eta
        self._values: list[dict[int, float]] = [{} for _ in self.rungs]
        self._promoted: list[set[int]] = [set() for _ in self.rungs]
        self._expected = expected

    def add(self, trial: Trial) -> None:
        """Note that a trial has ended a rung, with all its epochs or without."""
        level = next(
            (n for n, epochs in enumerate(self.rungs) if trial.epochs <= epochs), len(self.rungs) - 1
        )
        self._values[level][trial.number] = trial.last

    def promote(self, trials: Sequence[Trial], exhausted: bool) -> Go | None:
        """Return the best trial of the highest rung that may go on.

        Rungs that will get no more trials are looked at last, the lowest first: where one trial runs at a
        time, others may still be on their way to a rung that looks complete.
        """
        found = self._promoted_of(trials, reversed(range(len(self.rungs) - 1)), False)
        if found is None and exhausted:
            found = self._promoted_of(trials, range(len(self.rungs) - 1), True)
        return found

    def _promoted_of(self, trials: Sequence[Trial], levels: Iterable[int], exhausted: bool) -> Go | None:
        """Return the best trial of the first of some rungs that may go on."""
        for level in levels:
            values = self._values[level]
            most = self._most(level, exhausted)
            best = sorted(values, key=lambda number: (-values[number], number))[:most]
            for number in best:
                if number in self._promoted[level] or trials[number].status != "paused":
                    continue
                self._promoted[level].add(number)
                return Go(number, self.rungs[level + 1])
        return None

    def _most(self, level: int, exhausted: bool) -> int:
        """Return how many trials of a rung may go on, now."""
        reached = len(self._values[level])
        if self._expected is not None:
            expected = max(1, self._expected // self._eta**level)
            return max(1, expected // self._eta) if reached >= expected or exhausted else 0
        if exhausted and reached and not self._values[level + 1]:
            return max(1, reached // self._eta)  # the best of few trials gets to the end, too
        return reached // self._eta


def rungs_of(first: int, last: int, eta: int) -> list[int]:
    """Return the epochs of each rung: ``eta`` times those of the one before, and ``last`` at the end."""
    found = []
    epochs = first
    while epochs < last:
        found.append(epochs)
        epochs *= eta
    return [*found, last]


class ASHA(Scheduler):
    """Asynchronous successive halving (Li et al., MLSys 2020).

    A trial pauses at each rung. When a place is free, a trial that is among the best
    ``1 / reduction_factor`` of those that have reached its rung so far goes on; if there is none, a new trial
    begins. No rung waits for its slowest trial.

    Args:
        reduction_factor: of so many trials at a rung, one goes on.
        grace_period: epochs of the first rung.

    Raises:
        ConfigError: if a number cannot work.
    """

    def __init__(self, reduction_factor: int = 3, grace_period: int = 1) -> None:
        self.reduction_factor = integer_option("ASHA", "reduction_factor", reduction_factor, 2)
        self.grace_period = integer_option("ASHA", "grace_period", grace_period, 1)

    def begin(self, outline: Outline) -> None:
        """See :class:`Scheduler`."""
        self._ladder = Ladder(
            rungs_of(self.grace_period, outline.max_epochs, self.reduction_factor), self.reduction_factor
        )

    def first(self, number: int) -> int:
        """See :class:`Scheduler`."""
        return self._ladder.rungs[0]

    def reported(self, trial: Trial, trials: Sequence[Trial]) -> Verdict:
        """See :class:`Scheduler`."""
        self._ladder.add(trial)
        return "pause"

    def resumed(self, trials: Sequence[Trial], exhausted: bool) -> Go | None:
        """See :class:`Scheduler`."""
        return self._ladder.promote(trials, exhausted)


class SuccessiveHalving(ASHA):
    """Successive halving (Jamieson and Talwalkar, AISTATS 2016): a rung waits for all of its trials.

    Args:
        reduction_factor: of so many trials at a rung, one goes on.
        grace_period: epochs of the first rung.

    Raises:
        ConfigError: if a number cannot work.
    """

    def begin(self, outline: Outline) -> None:
        """See :class:`Scheduler`."""
        self._ladder = Ladder(
            rungs_of(self.grace_period, outline.max_epochs, self.reduction_factor),
            self.reduction_factor,
            outline.trials,
        )


class Hyperband(Scheduler):
    """Hyperband (Li et al., JMLR 2018): successive halving from several first rungs.

    The first bracket begins with many trials of few epochs, the last with few trials of all epochs. Trials
    are dealt to brackets in this order; more trials than one round of brackets begin another round.

    Args:
        reduction_factor: of so many trials at a rung, one goes on.
        grace_period: epochs of the smallest first rung.

    Raises:
        ConfigError: if a number cannot work.
    """

    def __init__(self, reduction_factor: int = 3, grace_period: int = 1) -> None:
        self.reduction_factor = integer_option("Hyperband", "reduction_factor", reduction_factor, 2)
        self.grace_period = integer_option("Hyperband", "grace_period", grace_period, 1)

    def _brackets(self, max_epochs: int) -> list[tuple[int, int]]:
        """Return trials and first rung of each bracket."""
        eta, rounds = self.reduction_factor, 0
        while self.grace_period * eta ** (rounds + 1) <= max_epochs:
            rounds += 1
        return [
            (math.ceil((rounds + 1) / (s + 1) * eta**s), max(self.grace_period, max_epochs // eta**s))
            for s in reversed(range(rounds + 1))
        ]

    def trials(self, max_epochs: int) -> int:
        """See :class:`Scheduler`."""
        return sum(count for count, _ in self._brackets(max_epochs))

    def begin(self, outline: Outline) -> None:
        """See :class:`Scheduler`."""
        self._ladders: list[Ladder] = []
        self._of: list[int] = []
        for count, first in cycle(self._brackets(outline.max_epochs)):
            count = min(count, outline.trials - len(self._of))
            if not count:
                break
            self._of += [len(self._ladders)] * count
            rungs = rungs_of(first, outline.max_epochs, self.reduction_factor)
            self._ladders.append(Ladder(rungs, self.reduction_factor, count))

    def first(self, number: int) -> int:
        """See :class:`Scheduler`."""
        return self._ladders[self._of[number]].rungs[0]

    def reported(self, trial: Trial, trials: Sequence[Trial]) -> Verdict:
        """See :class:`Scheduler`."""
        self._ladders[self._of[trial.number]].add(trial)
        return "pause"

    def resumed(self, trials: Sequence[Trial], exhausted: bool) -> Go | None:
        """See :class:`Scheduler`."""
        moves = (ladder.promote(trials, exhausted) for ladder in self._ladders)
        return next((move for move in moves if move is not None), None)
