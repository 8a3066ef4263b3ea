"""The search: which trial goes on, in an order that does not depend on how fast tasks are.

Results arrive in any order, and sooner or later where executors are lost. A scheduler that decided by that
order would find another winner each time. So the search keeps a clock of its own, on which an epoch of any
trial takes one unit of time and ``concurrent`` places work at a time. A rung ends when the clock says so: the
search waits for its result then, and not before. Rungs that end later on the clock go on running meanwhile,
so a long rung holds up nobody but those who are to be compared with it.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sparkdl.exceptions import ConfigError
from sparkdl.tune.running.advance import Advanced
from sparkdl.tune.running.journal import Journal, Rung
from sparkdl.tune.sampling import Asker
from sparkdl.tune.schedulers.moves import Go, Scheduler
from sparkdl.tune.trial import Trial

_MOST_OF_AN_ERROR = 2000  # characters of a failed trial's error in journal and table


class Runner(Protocol):
    """Runs rungs."""

    def start(self, rung: Rung, state: Callable[[], bytes] | None) -> Callable[[], Advanced]:
        """Start a rung; return what waits for its result."""


@dataclass(slots=True)
class Best:
    """The best state of a search so far."""

    trial: int
    epoch: int
    value: float
    params: Mapping[str, Any]
    rung: int


@dataclass(slots=True, kw_only=True)
class Search:
    """Runs a search."""

    asker: Asker  # chooses params
    scheduler: Scheduler  # decides how far trials go
    runner: Runner  # runs rungs
    journal: Journal  # keeps results
    metric: str  # what to compare trials by
    sign: int  # 1 if larger values are better, else -1
    count: int  # most trials
    max_epochs: int  # most epochs of a trial
    budget: int | None  # most epochs of all trials; ``None`` for any number
    concurrent: int  # how many rungs run at a time
    stop: Callable[[], str]  # returns why no further rung is to begin; empty if one may
    # called after each rung, with its trial and whether that has ended
    on_rung: Callable[[Trial, bool], None]
    # returns what the Trainer of a new trial's params is made of, see :class:`Rung`
    describe: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}
    # whether a trial that raised this is passed over, and the search goes on
    passes: Callable[[Exception], bool] = lambda _: False
    trials: list[Trial] = field(default_factory=list)  # all so far
    best: Best | None = None  # the best state so far
    spent: int = 0  # epochs that have run or are running
    rungs: int = 0  # how many have begun
    ended: str = ""  # why it has ended; empty before
    _going: deque[Go] = field(default_factory=deque)
    _running: dict[int, tuple[Rung, Callable[[], Advanced]]] = field(default_factory=dict)

    @property
    def completed(self) -> int:
        """How many rungs have ended."""
        return self.rungs - len(self._running)

    def run(self) -> str:
        """Search until nothing is left to do; return why it has ended."""
        clock: list[tuple[int, int]] = []  # when a rung ends, and its number
        now, stopped = 0, ""
        while True:
            stopped = stopped or self.stop()
            while not stopped and len(clock) < self.concurrent and (move := self._next(not clock)):
                rung = self._start(move)
                heapq.heappush(clock, (now + rung.until - rung.done, rung.number))
            if not clock:
                self.ended = stopped or self.ended or "done"
                self._end_all()
                return self.ended
            now, number = heapq.heappop(clock)
            self._complete(*self._running.pop(number))

    def _next(self, idle: bool) -> Go | None:
        """Return what is to begin next; ``None`` if it depends on a rung that runs, or nothing is left."""
        if self.ended:
            return None
        left = len(self.trials) < self.count
        if self._going:
            move: Go | None = self._going.popleft()
        else:
            move = self.scheduler.resumed(self.trials, idle and not left)
        new = move is None and left
        if new:
            number = len(self.trials)
            move = Go(number, min(self.scheduler.first(number), self.max_epochs))
        if move is None:
            return None
        begin = 0 if new else self.trials[move.number if move.donor is None else move.donor].epochs
        if self.budget is not None and self.spent + move.until - begin > self.budget:
            self.ended = "budget"
            return None
        if new:
            params = self.asker.ask(self.trials)
            self.trials.append(Trial(number=move.number, params=params, first_params=dict(params)))
        return move

    def _start(self, move: Go) -> Rung:
        trial = self.trials[move.number]
        if move.donor is not None:
            donor = self.trials[move.donor]
            if donor.is_over:
                raise ConfigError(
                    f"{self.scheduler.describe()}: {move} copies trial {donor.number}, which is "
                    f"{donor.status}: its state is deleted; copy a trial that is paused or running"
                )
            trial.params = dict(move.params or donor.params)
            trial.copies.append({"epoch": donor.epochs, "trial": donor.number, "params": dict(trial.params)})
            trial.state, trial.epochs = donor.state, donor.epochs
        trial.status = "running"
        params = dict(trial.params)
        rung = Rung(self.rungs, trial.number, trial.epochs, move.until, trial.state, params)
        self.rungs += 1
        self.spent += rung.until - rung.done
        self._running[rung.number] = self._begun(rung)
        return rung

    def _begun(self, rung: Rung) -> tuple[Rung, Callable[[], Advanced]]:
        """Return a rung with what its Trainer is made of, and what waits for its result."""
        failed: Advanced | None = None
        if not rung.done:
            try:
                rung = replace(rung, made=self.describe(rung.params))
            except Exception as error:
                failed = self._failed(rung, error)
        found = self.journal.known(rung) or failed
        if found is None:
            state = rung.state
            read = None if state is None else lambda: self.journal.state(state)
            try:
                return rung, self.runner.start(rung, read)
            except Exception as error:
                found = self._failed(rung, error)
        return rung, lambda: found

    def _failed(self, rung: Rung, error: Exception) -> Advanced:
        """Return the result of a rung that raised; raise that if it ends the search."""
        error.add_note(
            f"Trial {rung.trial}, epochs {rung.done + 1} to {rung.until}, with {dict(rung.params)!r:.300}"
        )
        if getattr(error, "code", None) == "config-resume" or not self.passes(error):
            raise error
        return Advanced([], "failed", None, 0.0, f"{type(error).__name__}: {error}"[:_MOST_OF_AN_ERROR])

    def _complete(self, rung: Rung, wait: Callable[[], Advanced]) -> None:
        """Take the result of a rung, and decide about its trial."""
        try:
            result = wait()
        except Exception as error:
            result = self._failed(rung, error)
        trial = self.trials[rung.trial]
        self._check(result)
        self.journal.add(rung, result)
        trial.reports += result.reports
        trial.seconds += result.seconds
        for report in result.reports:
            if self.metric not in report:  # an epoch that was not validated
                continue
            value = report[self.metric]
            trial.values[int(report["epoch"])] = self.sign * value if math.isfinite(value) else -math.inf
        trial.epochs = rung.until
        if result.ending in ("diverged", "failed"):
            trial.values[rung.until] = -math.inf
            trial.status, trial.state, trial.error = result.ending, None, result.error
        else:
            over = result.ending == "finished" or rung.until >= self.max_epochs
            trial.status, trial.state = "finished" if over else "paused", rung.number
            if result.ending == "finished" and result.reports:
                trial.epochs = int(result.reports[-1]["epoch"])
            self._note_best(trial, rung)
        verdict = self.scheduler.reported(trial, self.trials)
        if trial.status == "paused":
            if isinstance(verdict, Go):
                self._going.append(verdict)
            elif verdict == "stop":
                trial.status = "stopped"
        self.on_rung(trial, trial.is_over)
        self.asker.show(trial, self.metric, trial.is_over)
        held = [trial.state for trial in self.trials if trial.status == "paused"]
        begun = [rung.state for rung, _ in self._running.values()]
        best = [self.best.rung] if self.best is not None else []
        self.journal.prune({number for number in [*held, *begun, *best] if number is not None})

    def _note_best(self, trial: Trial, rung: Rung) -> None:
        value = trial.last
        trial.ends.append(max(trial.values, default=0))
        if math.isfinite(value) and (self.best is None or value > self.best.value):
            self.best = Best(trial.number, trial.epochs, value, dict(trial.params), rung.number)

    def _check(self, result: Advanced) -> None:
        """Check that trials report the metric."""
        if result.ending in ("", "finished") and result.reports and self.metric not in result.reports[-1]:
            known = ", ".join(sorted(set(result.reports[-1]) - {"epoch"}))
            raise ConfigError(
                f"metric={self.metric!r}: trials report {known} at the end of a rung; take one, or give "
                "validation rows, and the Trainer's metrics= for others, with validate_when=EveryEpoch()"
            )

    def _end_all(self) -> None:
        """End trials that wait for good.

        A storage never changes a trial that is complete: it has those that go on when the search is resumed
        as running.
        """
        goes_on = self.journal.is_kept and self.ended != "done"
        for trial in self.trials:
            if trial.status == "paused":
                trial.status = "stopped"
                self.on_rung(trial, True)
                self.asker.show(trial, self.metric, not goes_on)
