"""Validation in the course of a run: scores for history and state, and for a schedule that follows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from sparkdl.access.base import Published
from sparkdl.data.dataset import Dataset
from sparkdl.train.passes.validation import Monitor
from sparkdl.train.run import Run
from sparkdl.train.scheduled import ScheduledHyper
from sparkdl.train.state import TrainState

if TYPE_CHECKING:
    from sparkdl.train.passes.evaluate import Evaluator


class Validator:
    """Evaluates the validation sets of a run."""

    def __init__(
        self,
        run: Run,
        evaluator: Evaluator | None,
        sets: Mapping[str, Dataset],
        monitor: Monitor | None,
        schedule: ScheduledHyper,
    ) -> None:
        self._run = run
        self._evaluator = evaluator
        self._sets = sets
        self._monitor = monitor
        self._schedule = schedule

    @property
    def has_sets(self) -> bool:
        """Whether there is anything to validate on."""
        return bool(self._sets)

    def is_due(self, previous: TrainState, state: TrainState) -> bool:
        """Return whether it is time for a validation."""
        return self.has_sets and self._run.config.validate_when(previous, state)

    def run(
        self, publish: Callable[[], AbstractContextManager[Published]], call: Callable[..., None]
    ) -> None:
        """Evaluate all sets; the monitored score enters the state. ``call`` calls a method of all hooks.

        ``publish`` makes weights available anew for each set: hooks that replace them release those before.
        """
        run = self._run
        done = {row["name"] for row in run.history.validations if row["iteration"] == run.state.iteration}
        for name, data in self._sets.items():
            assert self._evaluator is not None
            if name in done:  # before the error that ended the run that is resumed
                continue
            call("on_validation_begin", name)
            describe = f"sparkdl fit {run.name}: epoch {run.previous.epoch + 1}, validation {name}"
            with publish() as weights:
                scores = self._evaluator.run(data, weights, describe, run.previous.epoch, run.state.iteration)
            run.scores |= {f"{name}/{score}": value for score, value in scores.items()}
            run.history.add_scores(run.state.iteration, run.previous.epoch + 1, name, scores)
            self._note_score(name, scores)
            call("on_validation_end", name, scores)

    def _note_score(self, name: str, scores: Mapping[str, float]) -> None:
        monitor = self._monitor
        if monitor is None or monitor.set != name or monitor.score not in scores:
            return
        run, score = self._run, scores[monitor.score]
        run.state = run.state.validated(
            score, higher_is_better=monitor.higher_is_better, min_delta=monitor.min_delta
        )
        self._schedule.after_validation(score)

    def monitored(self, validations: Sequence[Mapping[str, Any]]) -> dict[int, float]:
        """Return the monitored score of each validation of a history, by completed iterations."""
        monitor = self._monitor
        if monitor is None:
            return {}
        rows = (row for row in validations if row["name"] == monitor.set and monitor.score in row)
        return {row["iteration"]: row[monitor.score] for row in rows}
