"""Falling learning rates of fits, where nobody chooses."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import ConstantLR

from sparkdl.nn.lightning import is_lightning
from sparkdl.train.options.schedule import polynomial, sequence

_LEVEL = partial(ConstantLR, factor=1.0, total_iters=1)  # for iterations that are over


def falling(estimator: Any, module: nn.Module, iterations: int, start: int = 0) -> dict[str, Any]:
    """Return a schedule that falls in a straight line to 0 at the last iteration, as option of a Trainer.

    An estimator's own schedule or optimizer, or that of a LightningModule, goes before. ``start`` are the
    iterations of a run before, from which it goes on.
    """
    chosen = estimator.schedule is not None or estimator.optimizer is not None or is_lightning(module)
    if chosen or not iterations:
        return {}
    line = polynomial(iterations)
    return {"schedule": sequence([(_LEVEL, start), (line, None)]) if start else line}
