"""A line of text now and then, through Python's logging."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sparkdl import attempts
from sparkdl.summary.interval import Interval
from sparkdl.summary.params import ending
from sparkdl.train.hooks.base import Hook
from sparkdl.train.options.triggers import EverySeconds, Trigger
from sparkdl.train.run import Run

logger = logging.getLogger("sparkdl")
_LEAST_SHARE = 0.05
_MOST_NUMBERS = 8  # of one metric in a line


class LogLine(Hook):
    """Logs epoch, iteration, loss, learning rate, records per second and where the time goes.

    Lines go to the logger ``sparkdl`` at level INFO. Where logging is not set up they go to stderr, for
    as long as the run lasts. A line is about all iterations since the one before::

        digits: epoch 2 (40%), iteration 140, 12.3 s: loss 0.2314, lr 0.001, 8,412 records/s; compute 61%,
        shuffle 18%, launch 9%, other 12%

    Args:
        every: when to log; every ten seconds by default.
    """

    def __init__(self, every: Trigger | None = None) -> None:
        self._every = every or EverySeconds(10)
        self._interval = Interval()
        self._undo: tuple[logging.Handler, int] | None = None

    def on_train_begin(self, run: Run) -> None:
        """Make sure that lines go somewhere."""
        self._interval = Interval()
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
            self._undo = handler, logger.level
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
        if (attempt := attempts.number()) is not None:
            logger.info("%s: attempt %d begins after iteration %d", run.name, attempt, run.state.iteration)

    def on_iteration_end(self, run: Run) -> None:
        """Log a line if one is due."""
        self._interval.add(run.history[-1])
        if self._every(run.previous, run.state):
            self._log(run)

    def on_validation_end(self, run: Run, name: str, scores: Mapping[str, float]) -> None:
        """Log the scores."""
        logger.info("%s: %s: %s %s", run.name, _where(run), name, _found(scores))

    def on_train_end(self, run: Run) -> None:
        """Log the last line and how the run ended."""
        if self._interval.rows:
            self._log(run)
        logger.info("%s: ended after %s: %s", run.name, _where(run), ending(run)[1])
        if self._undo is not None:
            handler, level = self._undo
            logger.removeHandler(handler)
            logger.setLevel(level)
            self._undo = None

    def _log(self, run: Run) -> None:
        interval = self._interval
        shown = {
            name: share
            for name, share in interval.shares().items()
            if share >= _LEAST_SHARE and name != "other"
        }
        shown["other"] = max(1 - sum(shown.values()), 0.0)
        logger.info(
            "%s: %s: loss %.4g, lr %.4g, %s records/s; %s",
            run.name,
            _where(run),
            interval.loss,
            interval.lr,
            f"{interval.records_per_second:,.0f}",
            ", ".join(f"{name} {share:.0%}" for name, share in shown.items()),
        )
        self._interval = Interval()


def _found(scores: Mapping[str, float]) -> str:
    """Return scores as text; of a metric of many numbers, such as a confusion matrix, how many they are."""
    by_metric: dict[str, list[str]] = {}
    for name, value in scores.items():
        by_metric.setdefault(name.partition("/")[0], []).append(f"{name} {value:.5g}")
    return ", ".join(
        ", ".join(own) if len(own) <= _MOST_NUMBERS else f"{metric} ({len(own)} numbers)"
        for metric, own in by_metric.items()
    )


def _where(run: Run) -> str:
    state = run.state
    done = state.step / run.steps if state.step or not state.iteration else 1.0
    epoch = state.epoch + (done < 1)
    return f"epoch {epoch} ({done:.0%}), iteration {state.iteration:,}, {state.seconds:.1f} s"
