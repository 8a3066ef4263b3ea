"""Decisions of schedulers: the next epochs of a trial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkdl.tune.space import Space
from sparkdl.tune.trial import Trial


@dataclass(frozen=True, slots=True)
class Go:
    """A trial goes on until so many epochs are completed.

    Attributes:
        number: which trial.
        until: epochs to complete in all.
        donor: the trial whose weights and optimizer state it takes over, if any; one that has not ended.
        params: its params from here on, if they change.
    """

    number: int
    until: int
    donor: int | None = None
    params: Mapping[str, Any] | None = None


Verdict = Go | Literal["pause", "stop"]
"""What becomes of a trial that has completed a rung."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What a search is about, as schedulers need to know it.

    Attributes:
        trials: how many trials there will be, at most.
        max_epochs: most epochs of a trial.
        space: the space.
        seed: seed of the search.
        sign: 1 if larger values of the metric are better, else -1: trials have its values times this.
    """

    trials: int
    max_epochs: int
    space: Space
    seed: int
    sign: int = 1


class Scheduler(ABC):
    """Decides how far trials go.

    A scheduler sees results in one fixed order, whatever the order in which tasks end (see
    :mod:`sparkdl.tune.running.search`), and decides by them and by its seed alone.
    """

    def trials(self, max_epochs: int) -> int | None:
        """Return how many trials make a full search; ``None`` if any number does."""
        return None

    @abstractmethod
    def begin(self, outline: Outline) -> None:
        """Forget earlier searches, and prepare for one."""

    @abstractmethod
    def first(self, number: int) -> int:
        """Return the epochs of a new trial's first rung."""

    @abstractmethod
    def reported(self, trial: Trial, trials: Sequence[Trial]) -> Verdict:
        """Decide about a trial that has completed a rung; ignored if that has ended."""

    def resumed(self, trials: Sequence[Trial], exhausted: bool) -> Go | None:
        """Return a paused trial that goes on, asked when a place is free.

        Args:
            trials: all trials so far.
            exhausted: whether no new trial will come and none runs.
        """
        return None

    def describe(self) -> str:
        """Return what tells two schedulers apart."""
        options = ", ".join(f"{k}={v!r}" for k, v in sorted(vars(self).items()) if not k.startswith("_"))
        return f"{type(self).__name__}({options})"
