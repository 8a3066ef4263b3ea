"""Where a training run is: everything triggers decide on."""

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
    """

    epoch: int = 0
    iteration: int = 0
    step: int = 0
    samples: int = 0
    loss: float = math.nan

    def advance(self, iterations_per_epoch: int, samples: int, loss: float) -> TrainState:
        """Return the state after one more iteration.

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
        )
