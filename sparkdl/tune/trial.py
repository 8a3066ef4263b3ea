"""A trial: one choice of params, and its progress."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkdl import html
from sparkdl.exceptions import ConfigError

Status = Literal["running", "paused", "stopped", "finished", "diverged", "failed"]
"""A trial runs; waits to go on; was stopped early; has all its epochs; has diverged; or has failed."""

_ENDED = ("stopped", "finished", "diverged", "failed")
_WITHOUT_VALUE = ("diverged", "failed")


Catch = type[Exception] | Sequence[type[Exception]]
"""A class of exceptions, or several."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """One choice of params, and how far it has come.

    Attributes:
        number: from 0, in the order in which trials were asked for.
        params: those that it goes on with; population-based training changes them.
        first_params: those that it began with.
        reports: for each completed epoch its number, from 1, and its values by name.
        values: by epoch the metric, turned so that larger is better; minus infinity where it is not finite.
            Epochs that were not validated are not among them.
        epochs: completed epochs; of a trial that diverged or failed with those of its last rung.
        status: see :data:`Status`.
        copies: where population-based training has replaced it: the epoch, the trial that was copied, and the
            params from there on.
        seconds: time in iterations, of all its epochs.
        state: number of the rung that has left its state; ``None`` before the first.
        error: what a failed trial has raised.
        ends: the epochs at which its rungs have ended, of whose weights the best are the search's.
    """

    number: int
    params: dict[str, Any]
    first_params: dict[str, Any]
    reports: list[dict[str, float]] = field(default_factory=list)
    values: dict[int, float] = field(default_factory=dict)
    epochs: int = 0
    status: Status = "running"
    copies: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    state: int | None = None
    error: str = ""
    ends: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={html.short(value, repr)}" for name, value in self.params.items())
        which = f"{self.number}: {params}" if params else str(self.number)
        report = self.reports[-1] if self.reports else {}
        values = ", ".join(
            f"{name} {html.short(value, repr)}" for name, value in report.items() if name != "epoch"
        )
        ending = f"{self.error.splitlines()[0]:.200}" if self.error else values
        return f"Trial({which}; {self.status}, {self.epochs} epochs{ending and '; ' + ending})"

    @property
    def is_over(self) -> bool:
        """Whether it will not go on."""
        return self.status in _ENDED

    @property
    def last(self) -> float:
        """The latest value, larger is better; minus infinity if there is none, or it diverged or failed."""
        if self.status in _WITHOUT_VALUE or not self.values:
            return -math.inf
        return self.values[max(self.values)]

    @property
    def reached(self) -> float:
        """The best value at the end of a rung, which is what the search has of it; else as :attr:`last`."""
        return max((self.at(epoch) for epoch in self.ends), default=self.last)

    def at(self, epoch: int) -> float:
        """Return the value after an epoch; minus infinity if the trial did not get there."""
        return self.values.get(epoch, -math.inf)


def schedule_of(trials: Sequence[Trial], number: int, until: float = math.inf) -> list[dict[str, Any]]:
    """Return which params have trained the weights that a trial has after so many epochs.

    For each change: the epoch after which params held, and the params; the first from epoch 0.
    """
    trial = trials[number]
    copies = [copy for copy in trial.copies if copy["epoch"] < until]
    if not copies:
        return [{"epoch": 0, "params": dict(trial.first_params)}]
    last = copies[-1]  # what was before has gone with the weights that it replaced
    before = schedule_of(trials, last["trial"], last["epoch"])
    return [*before, {"epoch": last["epoch"], "params": dict(last["params"])}]


def best_first(trials: Iterable[Trial]) -> list[Trial]:
    """Return trials by their last value, the best first; of equal ones the earlier."""
    return sorted(trials, key=lambda trial: (-trial.last, trial.number))


def names_of(trials: Iterable[Trial]) -> list[str]:
    """Return the names of all params, in their order."""
    return list(dict.fromkeys(name for trial in trials for name in trial.params))


def caught_classes(catch: Any) -> tuple[type[Exception], ...]:
    """Return the classes of ``catch``."""
    found = tuple(catch) if isinstance(catch, Sequence) and not isinstance(catch, str) else (catch,)
    for each in found:
        if not isinstance(each, type) or not issubclass(each, Exception):
            raise ConfigError(
                f"catch={each!r:.100}: expected classes of exceptions such as (ValueError, ModelError)"
            )
    return found
