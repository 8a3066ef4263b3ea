"""What a fit returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from sparkdl.train.history import History
from sparkdl.train.state import TrainState


@dataclass(frozen=True, slots=True)
class FitResult:
    """A trained module and how it came about.

    Attributes:
        module: a copy of the caller's module with the trained weights.
        history: one row per iteration.
        state: where the run ended.
        stopped_by: ``"end_when"``, ``"interrupt"`` (Ctrl-C) or ``"error"``.
    """

    module: nn.Module
    history: History
    state: TrainState
    stopped_by: Literal["end_when", "interrupt", "error"]
