"""Metrics of distributed validation: any of torchmetrics, the run's loss, and ranking metrics."""

from sparkdl.metrics.loss import Loss
from sparkdl.metrics.ranking import MAP, MRR, NDCG, HitRatio, Recall
from sparkdl.metrics.spec import Metrics, MetricSpec

__all__ = ["MAP", "MRR", "NDCG", "HitRatio", "Loss", "MetricSpec", "Metrics", "Recall"]
