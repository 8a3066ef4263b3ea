"""The place of a training run: everything triggers decide on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TrainState:
    """The position of a run, after some number of iterations.

    Attributes:
        epoch: completed epochs.
        iteration: completed iterations.
        step: completed iterations of the current epoch.
        samples: samples visited.
        loss: mean loss over the last iteration's global batch; NaN before the first.
        seconds: wall-clock seconds since the run began.
        validations: completed validations.
        score: the monitored score of the last validation; NaN before the first.
        best_score: the best score so far; NaN before the first.
        stale: validations since the one that gave ``best_score``.
    """

    epoch: int = 0
    iteration: int = 0
    step: int = 0
    samples: int = 0
    loss: float = math.nan
    seconds: float = 0.0
    validations: int = 0
    score: float = math.nan
    best_score: float = math.nan
    stale: int = 0

    def advance(
        self, iterations_per_epoch: int, samples: int, loss: float, seconds: float = 0.0
    ) -> TrainState:
        """Return the state after one more iteration that took ``seconds``.

        An iteration without samples keeps the last loss.
        """
        ends_epoch = self.step + 1 >= iterations_per_epoch
        return replace(
            self,
            epoch=self.epoch + ends_epoch,
            iteration=self.iteration + 1,
            step=0 if ends_epoch else self.step + 1,
            samples=self.samples + samples,
            loss=loss if samples else self.loss,
            seconds=self.seconds + seconds,
        )

    def since(self, begin: TrainState) -> TrainState:
        """Return the state with everything that is counted up counted from another one of the run."""
        return replace(
            self,
            epoch=self.epoch - begin.epoch,
            iteration=self.iteration - begin.iteration,
            samples=self.samples - begin.samples,
            seconds=self.seconds - begin.seconds,
            validations=self.validations - begin.validations,
        )

    def validated(self, score: float, *, higher_is_better: bool, min_delta: float = 0.0) -> TrainState:
        """Return the state after one more validation.

        Args:
            score: the monitored score.
            higher_is_better: whether larger scores are better.
            min_delta: how much better than the best a score must be to replace it.
        """
        gain = score - self.best_score if higher_is_better else self.best_score - score
        improved = not math.isnan(score) and (math.isnan(self.best_score) or gain > min_delta)
        return replace(
            self,
            validations=self.validations + 1,
            score=score,
            best_score=score if improved else self.best_score,
            stale=0 if improved else self.stale + 1,
        )
