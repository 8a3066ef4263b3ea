"""Validation in a run: its sets, the score that is monitored, and scores for history, state and schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdl.access.base import Published
from sparkdl.data.dataset import Dataset
from sparkdl.data.given import Validation
from sparkdl.data.sampler import in_order
from sparkdl.data.store import partition as store
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.metrics import LOSS
from sparkdl.train.history import RESERVED
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.passes.sweep import sweep
from sparkdl.train.run import Run
from sparkdl.train.scheduled import ScheduledHyper
from sparkdl.train.state import TrainState
from sparkdl.wire import frame
from sparkdl.wire.frame import Parts

if TYPE_CHECKING:
    from sparkdl.train.passes.evaluate import Evaluator

_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Monitor:
    """The score that triggers, schedules and early stopping look at."""

    set: str  # name of the validation set
    score: str  # name of the score
    higher_is_better: bool  # whether larger values are better
    min_delta: float  # how much better than the best a value must be to count as better


def validation_sets(validation: Validation) -> dict[str, Dataset]:
    """Name the validation sets."""
    given: object = validation
    if given is not None and not isinstance(given, Dataset | Mapping):
        raise ConfigError(
            f"validation: found a {type(given).__module__}.{type(given).__name__}, expected a sparkdl "
            "Dataset, or a dict from names to Datasets"
        )
    sets = {"val": validation} if isinstance(validation, Dataset) else dict(validation or {})
    for name, data in sets.items():
        if not isinstance(data, Dataset):
            raise ConfigError(f"validation: {name!r} is {data!r:.100}; expected a sparkdl Dataset")
        if not isinstance(name, str) or not name or "/" in name:
            raise ConfigError(f"validation: {name!r} cannot name a set; use a word without '/'")
    return sets


def check_validation(config: TrainConfig, shipped: bytes, sets: Mapping[str, Dataset]) -> Monitor | None:
    """Try the metrics on every set's first rows and choose the monitored score.

    By default that is the first score after the loss, on the first set, and the loss without metrics.

    Without validation it is ``None``. Raises ConfigError if ``monitor`` names no score, or it is unknown
    which of its values are better; ModelError if a metric fails on a set's rows.
    """
    if not sets:
        if config.monitor is not None:
            raise ConfigError(
                f"monitor={config.monitor!r} needs validation scores: give fit(data, validation=...)"
            )
        if config.end_when.needs_score:
            raise ConfigError(
                f"end_when={config.end_when!r} needs validation scores: without fit(data, validation=...) "
                "the run would never end"
            )
        return None
    from sparkdl.metrics.spec import higher_is_better  # with torchmetrics, which only validation needs
    from sparkdl.train.passes.evaluate import check_metrics, with_loss

    found = {name: check_metrics(shipped, data, config.metrics) for name, data in sets.items()}
    scores = {name: [*names.measured, *names.logged] for name, names in found.items()}
    taken = set(RESERVED) & {s for names in scores.values() for s in names}
    if taken:
        raise ConfigError(f"metrics: {', '.join(sorted(taken))} cannot name a metric; use another word")
    first = next(iter(sets))
    if config.monitor is None:
        name, score = first, next((s for s in found[first].measured if s != LOSS), LOSS)
    else:
        name, _, score = config.monitor.partition("/")
        if name not in sets or not score:  # a score's own name may have a slash in it, a set's may not
            name, score = first, config.monitor
            for other in sets:  # Lightning's users write val_loss
                plain = config.monitor.removeprefix(f"{other}_")
                if config.monitor not in scores[first] and plain in scores[other]:
                    name, score = other, plain
                    break
    if not scores[name]:
        raise ConfigError(
            f"validation: there is no score to monitor on {name!r}: its rows lack the label that the loss "
            "needs, and there are no metrics"
        )
    if not any(score == s or score.startswith(f"{s}/") for s in scores[name]):
        known = ", ".join(f"{set_name}/{s}" for set_name, names in scores.items() for s in names)
        raise ConfigError(f"monitor={config.monitor!r}: there is no such score; expected one of {known}")
    known_better = higher_is_better(with_loss(config.metrics), score)
    if score in found[name].logged and score.endswith(LOSS):  # val_loss, as Lightning's users write
        known_better = False
    better = {"max": True, "min": False}.get(config.monitor_mode or "", known_better)
    if better is None:
        raise ConfigError(
            f"monitor={score!r}: the metric does not say whether larger values are better; "
            "set monitor_mode to 'max' or 'min'"
        )
    return Monitor(name, score, better, config.min_delta)


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
        self.sets = sets
        self._monitor = monitor
        self._schedule = schedule

    @property
    def mode(self) -> str:
        """Which values of the monitored score are better: ``"max"`` or ``"min"``; empty without one."""
        if self._monitor is None:
            return ""
        return "max" if self._monitor.higher_is_better else "min"

    def is_due(self, previous: TrainState, state: TrainState) -> bool:
        """Return whether it is time for a validation."""
        return bool(self.sets) and self._run.config.validate_when(previous, state)

    def run(
        self, publish: Callable[[], AbstractContextManager[Published]], call: Callable[..., None]
    ) -> None:
        """Evaluate all sets; the monitored score enters the state. ``call`` calls a method of all hooks.

        ``publish`` makes weights available anew for each set: hooks that replace them release those before.
        """
        run = self._run
        done = {row["name"] for row in run.history.validations if row["iteration"] == run.state.iteration}
        for name, data in self.sets.items():
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


def check_weights(data: Dataset, monitor: Monitor | None, sets: Mapping[str, Dataset]) -> None:
    """Check that some row counts for training, and for the monitored score if that is a loss."""
    _check(data, "there is nothing to train on")
    if monitor is not None and monitor.score == LOSS:  # a loss counts weights; metrics count rows
        missing = f"the monitored score, the loss on {monitor.set!r}, would never have a value"
        _check(sets[monitor.set], missing)


def _check(data: Dataset, missing: str) -> None:
    """Check that some row has a weight above zero; one short job if rows have weights."""
    if not data.plan.weighted:
        return
    describe = "sparkdl: look at the sample weights"
    found = sweep(data.access, data, _any_weight, [], describe=describe, doing="looking at the weights")
    if not any(message.meta["any"] for message in found):
        source = next(column.source for column in data.plan.columns if column.key == "weight")
        raise DataError(
            f"weight column {source!r}: all {len(data)} weights are zero, so {missing}. "
            "Expected some above zero; leave the weights out to count all rows alike",
            code="data-value",
        )


def _any_weight(partition: int, frames: Iterator[bytes]) -> Iterator[bytes | Parts]:
    """Tell whether a partition has a row with a weight above zero."""
    (token,) = [store.Token.from_frame(frame.unpack(data)) for data in frames]
    try:
        blocks = range(0, token.rows, _BLOCK)
        found = any(in_order(token, start, _BLOCK).read({"weight"})["weight"].any() for start in blocks)
        yield frame.pack({"kind": "weights", "partition": partition, "any": bool(found)})
    except store.PartitionMissingError:
        yield store.missing(partition)
