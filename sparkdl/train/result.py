"""The result of a fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torch import nn

from sparkdl.train import shown
from sparkdl.train.history import History
from sparkdl.train.state import TrainState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

StoppedBy = Literal["end_when", "hook", "interrupt", "error"]
"""Why a fit has ended."""


@dataclass(frozen=True, slots=True)
class FitResult:
    """A trained module and how it came about.

    Attributes:
        module: a copy of the caller's module with the trained weights; with ``averaging``, with
            their average.
        history: one row per iteration.
        state: where the run ended.
        stopped_by: ``"end_when"``, ``"hook"``, ``"interrupt"`` (Ctrl-C) or ``"error"``.
        scores: last value of each validation metric, by ``"set/metric"``; where ``EarlyStopping`` went back
            to the best weights, those of their validation.
        unaveraged: with ``averaging``, a copy with the weights as the last iteration left them, unless
            a hook replaced them at the end, as ``EarlyStopping`` does.
    """

    module: nn.Module
    history: History
    state: TrainState
    stopped_by: StoppedBy
    scores: dict[str, float] = field(default_factory=dict)
    unaveraged: nn.Module | None = None

    def plot(self) -> Figure:
        """Draw loss, validation scores, learning rate and seconds by phase; needs matplotlib.

        Raises:
            ImportError: if matplotlib is missing.
        """
        return self.history.plot()

    def __repr__(self) -> str:
        name = type(self.module).__name__
        return f"FitResult({name}: {shown.ending(self.state, self.stopped_by, self.scores)})"

    def _repr_html_(self) -> str:
        return shown.result(self)
