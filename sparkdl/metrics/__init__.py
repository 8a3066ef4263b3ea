"""Metrics of distributed validation: any of torchmetrics, the run's loss, and ranking metrics.

Importing this package loads no torchmetrics, which brings scipy, matplotlib and transformers where they are
installed and takes longer than torch: a fit that measures nothing waits for none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl.lazy import lazy

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

_HOMES = {
    "sparkdl.metrics.loss": "Loss",
    "sparkdl.metrics.ranking": "HitRatio MAP MRR NDCG Recall",
    "sparkdl.metrics.spec": "MetricSpec Metrics",
}

__all__, __getattr__, __dir__ = lazy(__name__, _HOMES)
