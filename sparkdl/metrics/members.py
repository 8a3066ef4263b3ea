"""The metrics of a collection, each with the value that it has alone; alike ones count once.

A ``MetricCollection`` of torchmetrics lets metrics share one state for ever if their states are equal after
the first batch. Few rows tell few metrics apart: accuracies with two thresholds have one state as long as no
score lies between these. Here metrics share a state if their settings say that they count the same.
"""

from __future__ import annotations

import pickle
from typing import Any, cast

from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MultilabelRankingLoss

from sparkdl.metrics.spec import AnyMetric

_OF_TORCHMETRICS = "torchmetrics."


class Member:
    """A metric, which is updated, or several of a collection with one state; no name without a collection."""

    def __init__(self, name: str, metric: Metric) -> None:
        self.name, self.metric = name, metric
        self._others: list[Metric] = []
        # A collection passes arguments by name to a metric that takes them.
        self._updates: AnyMetric = MetricCollection({name: metric}, compute_groups=False) if name else metric

    def shares(self, other: Metric) -> bool:
        """Have another metric, too, if its state is always the same; return whether it is."""
        if not _count_alike(self.metric, other):
            return False
        self._others.append(other)
        return True

    def update(self, *positional: Any, **named: Any) -> None:
        """Add a batch."""
        ranking = self.metric if isinstance(self.metric, MultilabelRankingLoss) else None
        before = 0.0 if ranking is None else cast(Tensor, ranking.total).item()
        self._updates.update(*positional, **named)
        if ranking is not None:  # of a batch whose rows have all labels, or none, it counts one row
            preds = positional[0] if positional else named["preds"]
            cast(Tensor, ranking.total).fill_(before + preds.numel() // ranking.num_labels)
        for other in self._others:
            for state in self.metric.metric_state:
                setattr(other, state, getattr(self.metric, state))
            other._update_count, other._computed = self.metric._update_count, None


def members(metric: AnyMetric) -> list[Member]:
    """Return what is updated, of a collection in the order of its metrics."""
    if isinstance(metric, Metric):
        return [Member("", metric)]
    found: list[Member] = []
    for name, inside in metric.items(keep_base=True, copy_state=False):
        if not any(member.shares(inside) for member in found):
            found.append(Member(name, inside))
    return found


def _count_alike(one: Metric, other: Metric) -> bool:
    """Return whether two metrics of torchmetrics have one way to count, and the same settings for it.

    What one of them alone has, such as the beta of an F score, no way that both have can look at.
    """
    if type(one).update is not type(other).update or one.metric_state.keys() != other.metric_state.keys():
        return False
    for metric in (one, other):
        wraps = not metric.metric_state or any(True for _ in metric.children())
        if wraps or not type(metric).__module__.startswith(_OF_TORCHMETRICS):
            return False
    mine, its = _settings(one), _settings(other)
    try:
        return all(pickle.dumps(mine[name]) == pickle.dumps(its[name]) for name in mine.keys() & its.keys())
    except Exception:  # something that cannot be compared: each has its own state
        return False


def _settings(metric: Metric) -> dict[str, Any]:
    found = {
        name: value
        for name, value in vars(metric).items()
        if not name.startswith("_") and name not in {*metric.metric_state, "update", "compute"}
    }
    return found | {name: value.tolist() for name, value in metric.named_buffers()}
