"""The closure that torch's optimizers take."""

from __future__ import annotations

from collections.abc import Callable

import torch


def evaluate(closure: Callable[[], float] | None) -> float | None:
    """Evaluate the model again, with gradients, if a step was asked to."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
