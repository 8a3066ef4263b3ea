"""Metrics of distributed validation: any of torchmetrics, the run's loss, and ranking metrics.

Importing this package loads no torchmetrics, which brings scipy, matplotlib and transformers where they are
installed and takes longer than torch: a fit that measures nothing waits for none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.metrics.loss import Loss as Loss
    from sparkdl.metrics.ranking import MAP as MAP
    from sparkdl.metrics.ranking import MRR as MRR
    from sparkdl.metrics.ranking import NDCG as NDCG
    from sparkdl.metrics.ranking import HitRatio as HitRatio
    from sparkdl.metrics.ranking import Recall as Recall
    from sparkdl.metrics.spec import Metrics as Metrics
    from sparkdl.metrics.spec import MetricSpec as MetricSpec

LOSS = "loss"
"""Name of the run's loss among the scores."""

_HOME = {
    "HitRatio": "sparkdl.metrics.ranking",
    "Loss": "sparkdl.metrics.loss",
    "MAP": "sparkdl.metrics.ranking",
    "MRR": "sparkdl.metrics.ranking",
    "MetricSpec": "sparkdl.metrics.spec",
    "Metrics": "sparkdl.metrics.spec",
    "NDCG": "sparkdl.metrics.ranking",
    "Recall": "sparkdl.metrics.ranking",
}

__all__ = ["MAP", "MRR", "NDCG", "HitRatio", "Loss", "MetricSpec", "Metrics", "Recall"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'sparkdl.metrics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
