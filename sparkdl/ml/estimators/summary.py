"""The summary of a model's training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl import html
from sparkdl.train import shown
from sparkdl.train.history import History
from sparkdl.train.result import FitResult
from sparkdl.train.state import TrainState

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class TrainingSummary:
    """How a model was trained; ``model.summary``.

    Args:
        result: result of the fit.

    Attributes:
        history: one row per iteration, and the scores of every validation.
        scores: value of each validation score, such as ``"val/loss"``, as of ``FitResult``.
        stoppedBy: ``"end_when"`` (maxEpochs or maxIter), ``"hook"`` (early stopping) or ``"interrupt"``
            (Ctrl-C).
        state: where the run ended.
    """

    def __init__(self, result: FitResult) -> None:
        self.history: History = result.history
        self.scores: dict[str, float] = dict(result.scores)
        self.stoppedBy: str = result.stopped_by
        self.state: TrainState = result.state

    @property
    def objectiveHistory(self) -> list[float]:
        """Mean loss over the batch of each iteration."""
        return self.history.column("loss")

    @property
    def totalIterations(self) -> int:
        """Number of iterations, those before a resumed fit among them."""
        return self.state.iteration

    @property
    def totalEpochs(self) -> int:
        """Number of completed passes over the rows."""
        return self.state.epoch

    def plot(self) -> Figure:
        """Draw loss, validation scores, learning rate and seconds by phase; needs matplotlib.

        Raises:
            ImportError: if matplotlib is missing.
        """
        return self.history.plot()

    def __repr__(self) -> str:
        return f"TrainingSummary({shown.ending(self.state, self.stoppedBy, self.scores)})"

    def _repr_html_(self) -> str:
        facts = shown.ended(self.state, self.stoppedBy)
        return html.block("Training", facts, shown.curves(self.history, self.scores))
