"""Ready-made hooks: early stopping, freezing, gradient norms."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from sparkdl.allreduce.shard_states import Snapshot
from sparkdl.exceptions import SparkdlWarning, integer_option
from sparkdl.train.history import scores_of
from sparkdl.train.hooks.base import Hook
from sparkdl.train.options.triggers import EveryIterations, Trigger, trigger_option
from sparkdl.train.run import Run
from sparkdl.wire.frame import Array

_log = logging.getLogger(__name__)


class EarlyStopping(Hook):
    """Stops the run when the monitored score has not improved for a number of validations.

    A run that it has stopped is over: resumed, it trains no further, unless with more patience.

    Args:
        patience: validations without a new best score after which the run ends.
        restore_best: whether the run ends with the weights of the best validation, however it
            ends, and with its scores; with ``averaging=``, the averaged ones. Otherwise with the last ones.

    Raises:
        ConfigError: if ``patience`` is not a positive integer.
    """

    def __init__(self, patience: int, restore_best: bool = True) -> None:
        self.patience = integer_option("EarlyStopping", "patience", patience, 1)
        self.restore_best = restore_best
        self._validations = 0
        self._best: Snapshot | None = None

    def on_train_begin(self, run: Run) -> None:
        """Forget an earlier run; one that is resumed after it was stopped has nothing left to do."""
        self._validations = run.state.validations
        self._best = None
        self._stop_if_stale(run)

    def on_validation_end(self, run: Run, name: str, scores: Mapping[str, float]) -> None:
        """Keep the best weights; stop when there were none for long."""
        state = run.state
        if state.validations == self._validations:
            return  # a validation set whose scores are not monitored
        self._validations = state.validations
        if state.stale == 0 and self.restore_best:
            self._best = run.averaged()
        self._stop_if_stale(run)

    def _stop_if_stale(self, run: Run) -> None:
        state = run.state
        if state.stale >= self.patience:
            run.stop(
                f"EarlyStopping: no score better than {state.best_score:.6g} in {state.stale} validations"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the best weights so far."""
        return {} if self._best is None else asdict(self._best)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the best weights of the run that is resumed."""
        self._best = Snapshot(**state) if state else None

    def on_train_end(self, run: Run) -> None:
        """Go back to the best weights."""
        known = run.state.stale > 0 and not math.isnan(run.state.best_score)
        if self._best is not None and known:  # else it is of a score that was monitored before
            run.replace(self._best)
            run.scores.update(_scores_before(run, run.state.stale))
            _log.info(
                "EarlyStopping: restored the weights with score %.6g, %d validations back",
                run.state.best_score,
                run.state.stale,
            )
        elif self.restore_best and known:
            message = (
                f"EarlyStopping: the best score, {run.state.best_score:.6g}, is that of a validation before "
                "the run went on with this hook, which does not have its weights: the run ends with the last "
                "ones. Checkpoints of that time may have them"
            )
            warnings.warn(SparkdlWarning(message, code="config-resume"), stacklevel=4)
        self._best = None


def _scores_before(run: Run, back: int) -> dict[str, float]:
    """Return the scores of all sets by the monitored validation so many validations back."""
    monitored, _, score = run.monitored.partition("/")
    rows = [row for row in run.history.validations if row["name"] == monitored and score in row]
    at = rows[-1 - back]["iteration"] if len(rows) > back else None
    found: dict[str, float] = {}
    for row in run.history.validations:
        if row["iteration"] == at:
            found |= scores_of(row)
    return found


class Freeze(Hook):
    """Keeps parameters as they are for some epochs.

    Epochs count completed ones: ``Freeze("conv*", until_epoch=2)`` trains the rest alone in the
    first two epochs.

    Args:
        pattern: names of parameters, with ``*`` and ``?`` as in file names. A tied parameter matches by
            each of its names.
        until_epoch: completed epochs after which they are trained again; ``None`` for never.
        from_epoch: completed epochs after which they are frozen.

    Attributes:
        own: names of parameters that this hook keeps frozen; another one may do so, too.

    Raises:
        ConfigError: if the epochs cannot work; when the run begins, if no parameter matches.
    """

    def __init__(self, pattern: str, until_epoch: int | None = None, from_epoch: int = 0) -> None:
        self.pattern = pattern
        self.from_epoch = integer_option("Freeze", "from_epoch", from_epoch, 0)
        self.until_epoch = until_epoch
        if until_epoch is not None:
            integer_option("Freeze", "until_epoch", until_epoch, from_epoch + 1)
        self.own: frozenset[str] = frozenset()

    def on_train_begin(self, run: Run) -> None:
        """Check the pattern, and freeze if it is time."""
        self.own = frozenset()
        run.matching(self.pattern)  # complains early about a pattern that is applied only later
        self._apply(run)

    def on_epoch_begin(self, run: Run) -> None:
        """Freeze or train again if it is time."""
        self._apply(run)

    def on_train_end(self, run: Run) -> None:
        """Let go of all, for the next run."""
        self.own = frozenset()

    def _apply(self, run: Run) -> None:
        others = (hook.own for hook in run.config.hooks if isinstance(hook, Freeze) and hook is not self)
        shared = frozenset(name for own in others for name in own)
        if self.from_epoch <= run.state.epoch and not self._is_over(run.state.epoch):
            # Once: what is its own and trained again has been unfrozen by another hook.
            new = frozenset(run.matching(self.pattern)) - self.own - (run.frozen - shared)
            run.frozen |= new
            self.own |= new
        else:
            run.frozen -= self.own - shared  # and not what the module has frozen
            self.own = frozenset()

    def _is_over(self, epoch: int) -> bool:
        return self.until_epoch is not None and epoch >= self.until_epoch

    def __repr__(self) -> str:
        return f"Freeze({self.pattern!r}, {self.until_epoch}, {self.from_epoch})"

    def state_dict(self) -> dict[str, Any]:
        """Return what it has frozen."""
        return {"own": sorted(self.own)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what it has frozen in the run that is resumed."""
        self.own = frozenset(state["own"])


class Unfreeze(Hook):
    """Trains parameters from some epoch on that the module, or another hook, has frozen.

    For fine-tuning: freeze a trained body with ``requires_grad_(False)``, train the head alone, and
    let the body take part with ``Unfreeze("body.*", at_epoch=3)``. Its parameters are part of
    parameter sync from the beginning.

    Args:
        pattern: names of parameters, with ``*`` and ``?`` as in file names. A tied parameter matches by
            each of its names.
        at_epoch: completed epochs after which they are trained.

    Raises:
        ConfigError: if the epoch cannot work; when the run begins, if no parameter matches.
    """

    def __init__(self, pattern: str, at_epoch: int) -> None:
        self.pattern = pattern
        self.at_epoch = integer_option("Unfreeze", "at_epoch", at_epoch, 0)
        self.unfreezes = (pattern,)
        self._done = False

    def on_train_begin(self, run: Run) -> None:
        """Check the pattern."""
        self._done = False
        run.matching(self.pattern)  # complains early about a pattern that is applied only later

    def on_epoch_begin(self, run: Run) -> None:
        """Unfreeze if it is time."""
        if not self._done and run.state.epoch >= self.at_epoch:
            run.unfreeze(self.pattern)
            self._done = True

    def __repr__(self) -> str:
        return f"Unfreeze({self.pattern!r}, {self.at_epoch})"

    def state_dict(self) -> dict[str, Any]:
        """Return whether it has unfrozen."""
        return {"done": self._done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as in the run that is resumed; another hook may have frozen since."""
        self._done = bool(state.get("done"))


class GradientNorms(Hook):
    """Records norms of gradients, to find gradients that vanish or explode.

    Args:
        every: trigger; after it fires, the next iteration's gradient travels to
            the driver, as many bytes as the weights.
        keep: rows to keep.

    Attributes:
        rows: the last rows, oldest first: ``epoch`` and ``iteration`` as in the history, ``norm``
            (L2, of the whole gradient before clipping), and ``parameters``: by name a dict of
            ``norm`` (L2), ``mean`` and ``max`` (largest absolute value).

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(self, every: Trigger | None = None, keep: int = 1000) -> None:
        self.every = self.gradients = trigger_option("GradientNorms", every or EveryIterations(100))
        self.keep = integer_option("GradientNorms", "keep", keep, 1)
        self.rows: list[dict[str, Any]] = []
        self._due = False

    def on_train_begin(self, run: Run) -> None:
        """Forget an earlier run."""
        self.rows.clear()
        self._due = False

    def on_iteration_begin(self, run: Run) -> None:
        """Note whether this iteration's gradient was asked for; another hook may ask for more."""
        self._due = self.every(run.previous, run.state)

    def on_iteration_end(self, run: Run) -> None:
        """Add a row if there is a gradient."""
        gradients = run.gradients() if self._due else {}
        if not gradients:
            return
        parameters = {name: _describe(gradient) for name, gradient in gradients.items() if gradient.size}
        row = {
            "epoch": run.previous.epoch + 1,
            "iteration": run.state.iteration,
            "norm": math.hypot(*(p["norm"] for p in parameters.values())),
            "parameters": parameters,
        }
        self.rows.append(row)
        del self.rows[: -self.keep]


def _describe(gradient: Array) -> dict[str, float]:
    values = gradient.ravel().astype(np.float64)
    return {
        "norm": float(np.linalg.norm(values)),
        "mean": float(values.mean()),
        "max": float(np.abs(values).max()),
    }
